"""How a run's configuration becomes the arguments and the environment of an SGLang engine. Free of SGLang."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dcr_recipes.config import RecipeConfig, RuntimeConfig

LOADER = "dcr_recipes.runtime.sglang_worker.run_call"
"""For ``custom_weight_loader``."""
CONTEXT = "DCR_SGLANG_RUN"
"""Variable of the workers: run folder, process name and incarnation, as JSON."""
SEEDED = "DCR_SGLANG_SEEDED"
"""Variable: 1 makes each token depend on its request's seed alone, on the CPU too; see ``sglang_plugin``."""

OWNED: Mapping[str, str] = {
    "model_path": "set model",
    "random_seed": "set seed",
    "dtype": "leave it out: served weights are bfloat16",
    "load_format": "leave it out: weights come with the first refit",
    "skip_tokenizer_init": "leave it out: prompts are token ids",
    "tp_size": "set runtime.tensor_parallel",
    "dp_size": "leave it out: set runtime.instances",
    "pp_size": "leave it out: pipeline stages take no deltas",
    "max_total_tokens": "set runtime.kv_cache_mib",
    "context_length": "set runtime.context_tokens",
    "max_running_requests": "set recipe.group_size",
    "disable_radix_cache": "set runtime.prompt_cache_mib",
    "custom_weight_loader": "leave it out: it is the receiver's",
    "enable_deterministic_inference": "leave it out: every response has a seed",
}
"""Engine argument -> what to do instead of giving it."""


def engine_arguments(model: Path, runtime: RuntimeConfig, recipe: RecipeConfig) -> dict[str, Any]:
    """Arguments of SGLang's engine over the model folder ``model``.

    The whole group is one batch: all of it can run at once, and one step takes all of its prompts. So
    neither the tokens nor their log probabilities depend on what else was asked.
    """
    return {
        "attention_backend": "torch_native",
        "sampling_backend": "pytorch",
        "disable_cuda_graph": True,
        "disable_overlap_schedule": True,
        "device": "cpu",
        "mem_fraction_static": 0.5,  # of what is free when it starts; max_total_tokens is what it takes
        "skip_server_warmup": True,
        "log_level": "warning",
        **runtime.arguments,
        "model_path": str(model),
        "dtype": "bfloat16",
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "tp_size": runtime.tensor_parallel,
        "max_total_tokens": kv_tokens(model, runtime, recipe),
        "context_length": runtime.context_tokens,
        "max_running_requests": recipe.group_size,
        "chunked_prefill_size": -1,
        "max_prefill_tokens": recipe.group_size * runtime.context_tokens,
        "disable_radix_cache": runtime.prompt_cache_mib == 0,
        "custom_weight_loader": [LOADER],
        "enable_deterministic_inference": True,
    }


def environment(runtime: RuntimeConfig) -> dict[str, str]:
    """Variables that SGLang's processes need before they start.

    Ranks are not bound to cores of their own, which instances share.
    """
    cores = "all" if runtime.tensor_parallel == 1 else "|".join(["0"] * runtime.tensor_parallel)
    return {
        "SGLANG_USE_CPU_ENGINE": "1",
        "SGLANG_CPU_OMP_THREADS_BIND": cores,
        SEEDED: "1",
        "TORCHDYNAMO_DISABLE": "1",
    }


def kv_tokens(model: Path, runtime: RuntimeConfig, recipe: RecipeConfig) -> int:
    """Tokens whose keys and values fit into ``runtime.kv_cache_mib`` on each rank, a group at least."""
    told: dict[str, int] = json.loads((model / "config.json").read_text())
    heads = told["num_attention_heads"]
    head_dim = told.get("head_dim") or told["hidden_size"] // heads
    of_rank = max(1, told.get("num_key_value_heads", heads) // runtime.tensor_parallel)
    layer_bytes = 2 * 2 * of_rank * head_dim  # a token's keys and values, bfloat16
    fitting = (runtime.kv_cache_mib << 20) // (told["num_hidden_layers"] * layer_bytes)
    return max(fitting, recipe.group_size * runtime.context_tokens)
