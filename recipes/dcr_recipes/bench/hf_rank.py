"""The apply benchmark on the ``hf`` runtime, in this process."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from dcr_adapters.hf.loader import HfLoader
from dcr_recipes.bench.apply_data import make_versions
from dcr_recipes.bench.apply_model import config_of, shape_of, specs_of
from dcr_recipes.bench.apply_ranks import learning_of
from dcr_recipes.bench.apply_ways import measure

PACKED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


def results(model: str, rates: Sequence[float], *, rounds: int, quick: bool) -> Iterator[dict[str, Any]]:
    """One result a rate, as ``vllm_ranks`` prints them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        shape = shape_of(model, quick=quick)
        loader = loader_of(config_of(shape))
        for rate in rates:
            versions = make_versions(specs_of(shape), rate)
            learning = learning_of(loader, versions.catalogue)
            measured = measure(loader, versions, {}, rounds=rounds)
            rank = {
                "cpu_s": {name: cost.cpu_s for name, cost in measured.costs.items()},
                "wall_s": {name: cost.wall_s for name, cost in measured.costs.items()},
                "num_writes": measured.num_writes,
                "learning": learning.as_json(),
            }
            yield {"rate": versions.rate, "num_changed": versions.num_changed, "ranks": [rank]}
    finally:
        torch.set_num_threads(threads)


def loader_of(config: Any) -> HfLoader:
    """A packed model whose weights nobody made: what they are does not matter before the first load."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)  # type: ignore[no-untyped-call]
    model = model.to_empty(device="cpu").requires_grad_(False).eval()
    return HfLoader(model, PACKED)
