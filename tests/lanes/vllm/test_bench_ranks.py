"""The apply benchmark's ranks: every method proven on vLLM's own loader, small, at TP=2."""

import json
import subprocess
import sys

import pytest

_LEARNED = {
    f"learned {engine} {way}" for engine in ("numba", "numpy", "torch") for way in ("set", "xor", "add")
}


@pytest.mark.parametrize("model", ["dense", "moe"])
def test_every_method_is_proven_and_timed(model: str) -> None:
    words = ["--model", model, "--tp", "2", "--rates", "0.02", "--rounds", "1", "--quick"]
    done = subprocess.run(
        [sys.executable, "-m", "dcr_recipes.bench.vllm_ranks", *words],
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        check=True,
    )
    (result,) = json.loads(done.stdout.splitlines()[-1])
    assert len(result["ranks"]) == 2
    for rank in result["ranks"]:
        wanted = {"floor", "dense refit", "vllm load_checkpoint_weight_patches", *_LEARNED}
        assert wanted <= rank["cpu_s"].keys()
        assert rank["learning"]["learned_share"] >= 0.99
    assert sum(rank["num_writes"] for rank in result["ranks"]) >= result["num_changed"]
