"""The apply benchmark on vLLM's own models and loaders; run with the interpreter of the lane ``vllm``.

    .venv-vllm/bin/python -m dcr_recipes.bench.vllm_ranks --model dense --tp 2 --rates 0.01

One process a rank, forked, with gloo between them; no engine, no KV cache. Prints one JSON object.
"""

import argparse
import json
import multiprocessing
import os
import queue
import socket
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from dcr_recipes.bench.apply_data import Versions, make_versions
from dcr_recipes.bench.apply_model import config_of, shape_of, specs_of
from dcr_recipes.bench.apply_ranks import Learning, learning_of
from dcr_recipes.bench.apply_ways import Native, measure

_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "DCR_VLLM_KEEP_UNPACKED": "1",
}
_DEADLINE_S = 1500
PATCHES = "vllm load_checkpoint_weight_patches"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure every rate and print the results."""
    parser = argparse.ArgumentParser(description="Apply benchmark on vLLM's loaders; see dcr bench apply.")
    parser.add_argument("--model", choices=("dense", "moe"), required=True)
    parser.add_argument("--tp", type=int, required=True)
    parser.add_argument("--rates", type=float, nargs="+", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args(argv)
    os.environ.update(_ENVIRONMENT)
    results = []
    for rate in args.rates:
        versions = make_versions(specs_of(shape_of(args.model, quick=args.quick)), rate)
        print(f"{args.model}, TP={args.tp}: {100 * versions.rate:.2f}% changed", file=sys.stderr, flush=True)
        ranks = _run(args, versions)
        results.append({"rate": versions.rate, "num_changed": versions.num_changed, "ranks": ranks})
    print(json.dumps(results))
    return 0


def _run(args: argparse.Namespace, versions: Versions) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="dcr-bench-") as folder:
        config_of(shape_of(args.model, quick=args.quick)).save_pretrained(folder)
        config = _engine_config(Path(folder), args.tp)
        context = multiprocessing.get_context("fork")
        answers: Any = context.Queue()
        port = _free_port()
        ranks = [
            context.Process(
                target=_rank, args=((rank, args.tp, port), config, versions, args.rounds, answers)
            )
            for rank in range(args.tp)
        ]
        for process in ranks:
            process.start()
        try:
            return _collect(answers, ranks)
        finally:
            for process in ranks:
                process.join(10)
                process.kill()


def _collect(answers: Any, ranks: Sequence[Any]) -> list[dict[str, Any]]:
    """Answers in the order of ranks.

    Raises:
        SystemExit: a rank failed or did not answer.
    """
    found: dict[int, dict[str, Any]] = {}
    while len(found) < len(ranks):
        try:
            rank, answer = answers.get(timeout=_DEADLINE_S)
        except queue.Empty:
            raise SystemExit(f"error: a rank did not answer within {_DEADLINE_S} s") from None
        if "error" in answer:
            raise SystemExit(f"error: rank {rank}:\n{answer['error']}")
        found[rank] = answer
    return [found[rank] for rank in sorted(found)]


def _rank(place: tuple[int, int, int], config: Any, versions: Versions, rounds: int, answers: Any) -> None:
    rank = place[0]
    try:
        torch.set_num_threads(1)
        with _model(place, config) as model:
            answers.put((rank, _measure(model, config, versions, rounds)))
    except BaseException:  # noqa: BLE001 -- the parent prints it; a silent rank would be waited for
        answers.put((rank, {"error": traceback.format_exc()}))


def _measure(model: Any, config: Any, versions: Versions, rounds: int) -> dict[str, Any]:
    from dcr_adapters.vllm.loader import VllmLoader

    loader = VllmLoader(model, config)
    learning: Learning = learning_of(loader, versions.catalogue)
    measured = measure(loader, versions, _natives(model, versions), rounds=rounds)
    return {
        "cpu_s": {name: cost.cpu_s for name, cost in measured.costs.items()},
        "wall_s": {name: cost.wall_s for name, cost in measured.costs.items()},
        "num_writes": measured.num_writes,
        "learning": learning.as_json(),
    }


def _natives(model: Any, versions: Versions) -> dict[str, Native]:
    """VLLM's own sparse refit."""
    from vllm.model_executor.model_loader.checkpoint_weight_patch import (
        CheckpointWeightPatch,
        load_checkpoint_weight_patches,
    )

    patches = [
        CheckpointWeightPatch(
            spec.name,
            spec.shape,
            torch.bfloat16,
            torch.from_numpy(versions.changes[spec.name].new.view("i2")).view(torch.bfloat16),
            torch.from_numpy(versions.changes[spec.name].locations),
        )
        for spec in versions.catalogue.tensors
        if versions.changes[spec.name].locations.size
    ]
    return {PATCHES: lambda: load_checkpoint_weight_patches(model, patches)}


def _engine_config(folder: Path, tp: int) -> Any:
    from vllm.engine.arg_utils import EngineArgs

    return EngineArgs(
        model=str(folder), tensor_parallel_size=tp, dtype="bfloat16", max_model_len=256, enforce_eager=True,
        load_format="dummy", skip_tokenizer_init=True,
    ).create_engine_config()  # fmt: skip


@contextmanager
def _model(place: tuple[int, int, int], config: Any) -> Iterator[Any]:
    """This rank's model, unpacked, with the process groups that its loader asks for its rank."""
    rank, tp, port = place
    os.environ["VLLM_DIST_IDENT"] = str(port)
    from vllm.config import set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel
    from vllm.model_executor.model_loader import get_model

    from dcr_adapters.vllm import keep_unpacked

    keep_unpacked.install()
    _without_accelerator()
    with set_current_vllm_config(config):
        init_distributed_environment(tp, rank, f"tcp://127.0.0.1:{port}", rank, backend="gloo")
        initialize_model_parallel(tp)
        yield get_model(vllm_config=config)


def _without_accelerator() -> None:
    """Loading asks the accelerator to free memory; a CPU worker of vLLM has these calls stubbed as well."""
    if not torch.accelerator.is_available():
        torch.accelerator.empty_cache = lambda: None
        torch.accelerator.synchronize = lambda *_: None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    sys.exit(main())
