"""How a run's configuration becomes the arguments and the environment of a vLLM engine. Free of vLLM."""

from collections.abc import Mapping
from typing import Any

from dcr_recipes.config import RecipeConfig, RuntimeConfig

BLOCK_TOKENS = 32
"""Tokens of one prefix cache block: the least that vLLM's CPU attention takes; the default would be 128."""

EXTENSION = "dcr_recipes.runtime.vllm_worker.RunWorkerExtension"
"""For ``worker_extension_cls``."""
CONTEXT = "dcr_run"
"""Key of the engine's ``additional_config``: run folder, process name and incarnation."""

OWNED: Mapping[str, str] = {
    "model": "set model",
    "seed": "set seed",
    "dtype": "leave it out: served weights are bfloat16",
    "load_format": "leave it out: weights come with the first refit",
    "skip_tokenizer_init": "leave it out: prompts are token ids",
    "logprobs_mode": "leave it out: log probabilities are those of the distribution that was drawn from",
    "tensor_parallel_size": "set runtime.tensor_parallel",
    "kv_cache_memory_bytes": "set runtime.kv_cache_mib",
    "max_model_len": "set runtime.context_tokens",
    "max_num_seqs": "set recipe.group_size",
    "max_num_batched_tokens": "leave it out: a step takes a whole group",
    "enable_prefix_caching": "set runtime.prompt_cache_mib",
    "worker_extension_cls": "leave it out: it is the receiver's",
    "weight_transfer_config": "leave it out: it is the receiver's",
}
"""Engine argument -> what to do instead of giving it."""


def engine_arguments(model: str, runtime: RuntimeConfig, recipe: RecipeConfig) -> dict[str, Any]:
    """Arguments of vLLM's engine over the model folder ``model``, but for the receiver's.

    The whole group is one batch: all of it can run at once, and one step takes all of its prompts. So
    neither the tokens nor their log probabilities depend on what else was asked.
    """
    return {
        "enforce_eager": True,
        "block_size": BLOCK_TOKENS,
        "async_scheduling": False,
        "disable_log_stats": True,
        **runtime.arguments,
        "model": model,
        "dtype": "bfloat16",
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "logprobs_mode": "processed_logprobs",
        "tensor_parallel_size": runtime.tensor_parallel,
        "kv_cache_memory_bytes": runtime.kv_cache_mib << 20,
        "max_model_len": runtime.context_tokens,
        "max_num_seqs": recipe.group_size,
        "max_num_batched_tokens": recipe.group_size * runtime.context_tokens,
        "enable_prefix_caching": runtime.prompt_cache_mib > 0,
    }


def environment(runtime: RuntimeConfig, *, serves: bool = True) -> dict[str, str]:
    """Variables that vLLM's processes need before they start; one that ``serves`` has children.

    Without binding, threads of several instances share the cores; vLLM would give each instance the same
    ones. ``torch.compile`` costs a compilation at the first request of every start and saves nothing
    where the model runs eagerly.
    """
    found = {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "DCR_VLLM_KEEP_UNPACKED": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1" if serves else "0",
    }
    if runtime.arguments.get("enforce_eager", True):
        found["TORCHDYNAMO_DISABLE"] = "1"
    return found
