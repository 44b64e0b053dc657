"""Tokens of a run's SGLang engines follow from weights, prompt and seed, on the CPU too.

SGLang draws with a seed of each request's own in its deterministic mode only, which it has for GPUs. Where
``sglang_arguments.SEEDED`` says so, the three steps of that mode that the CPU lacks are replaced, by
SGLang's own means for plug-ins (entry point group ``sglang.srt.plugins``); any other engine is as it was.
"""

import os
from typing import TYPE_CHECKING, Any

from dcr_recipes.runtime.sglang_arguments import SEEDED

if TYPE_CHECKING:
    import torch

_SAMPLER = "sglang.srt.layers.sampler.multinomial_with_seed"
_KERNELS = "sglang.srt.model_executor.model_runner.ModelRunner.maybe_enable_batch_invariant_mode"
_MIX = 0x9E3779B97F4A7C15
"""Spreads positions over the seeds of generators, as SplitMix64 does."""


def register() -> None:
    """Replace them where it is asked for and no GPU is there."""
    import torch

    if os.environ.get(SEEDED) != "1" or torch.cuda.is_available():
        return
    from sglang.srt.arg_groups import choices
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    choices.add_deterministic_attention_backend_choices(["torch_native"])
    choices.add_radix_supported_deterministic_attention_backend_choices(["torch_native"])
    HookRegistry.register(_SAMPLER, draw, HookType.REPLACE)
    HookRegistry.register(_KERNELS, _keep_kernels, HookType.REPLACE)


def draw(logprobs: "torch.Tensor", seed: "torch.Tensor", positions: "torch.Tensor") -> "torch.Tensor":
    """One index [n, 1] int64 a row of ``logprobs`` [n, m], by the row's ``seed`` [n] and position [n]."""
    import torch

    scores = logprobs.to(torch.float64)
    rows = zip(scores, seed.tolist(), positions.tolist(), strict=True)
    drawn = [int(torch.argmax(row + _gumbel(row.numel(), one, at))) for row, one, at in rows]
    return torch.tensor(drawn, dtype=torch.int64, device=logprobs.device).view(-1, 1)


def _gumbel(num: int, seed: int, position: int) -> "torch.Tensor":
    """Standard Gumbel noise [num] float64: whose largest sum with log probabilities is a draw of them."""
    import torch

    generator = torch.Generator().manual_seed((seed + (position + 1) * _MIX) % (1 << 64))
    uniform = torch.rand(num, generator=generator, dtype=torch.float64)
    noise: torch.Tensor = -torch.log(-torch.log(uniform.clamp_min(torch.finfo(torch.float64).tiny)))
    return noise


def _keep_kernels(_: Any) -> None:
    """The kernels of the batch-invariant mode are for GPUs; a run's groups are one batch each instead."""
