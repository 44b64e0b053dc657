"""Undo the grid of a quantized model, so that its weights are spread like those of a trained one.

A dequantized 4-bit model has few distinct values per block and many exact zeros; changes of its stored
bits would not be typical. Uniform noise of half a quantization step to either side restores a smooth
distribution, and the model still speaks.
"""

from collections.abc import Mapping

import torch

_BLOCK = 32
"""Elements along a row that share a scale, in Q4_1 and in Q8_0."""
_Q4_STEPS = 15
_Q8_HALF_RANGE = 127


def dither(
    weights: Mapping[str, torch.Tensor], *, eight_bit: frozenset[str], seed: int
) -> dict[str, torch.Tensor]:
    """Dithered copies in BF16, by sorted name; tensors without quantized rows are only cast.

    ``eight_bit`` names the tensors that were stored as Q8_0 (symmetric); the other matrices were Q4_1.
    The same arguments give the same bits.
    """
    draw = torch.Generator().manual_seed(seed)
    return {name: _dithered(weights[name], name in eight_bit, draw).bfloat16() for name in sorted(weights)}


def _dithered(weight: torch.Tensor, is_eight_bit: bool, draw: torch.Generator) -> torch.Tensor:
    if weight.ndim != 2 or weight.shape[1] % _BLOCK:
        return weight
    blocks = weight.float().view(weight.shape[0], -1, _BLOCK)
    if is_eight_bit:
        step = blocks.abs().amax(-1, keepdim=True) / _Q8_HALF_RANGE
    else:
        step = (blocks.amax(-1, keepdim=True) - blocks.amin(-1, keepdim=True)) / _Q4_STEPS
    noise = torch.rand(blocks.shape, generator=draw) - 0.5
    return (blocks + noise * step).view_as(weight)
