"""Dithering: deterministic, within half a step, and only where there is a grid."""

import torch

from dcr_recipes.models.dither import dither


def _grid() -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(3)
    levels = torch.randint(16, (8, 4, 32), generator=draw)
    levels[..., 0], levels[..., 1] = 0, 15  # every block spans its range
    return {
        "matrix": (levels * 0.01 - 0.07).reshape(8, 128).bfloat16(),
        "embedding": (torch.randint(-127, 128, (8, 128), generator=draw) / 127).bfloat16(),
        "norm": torch.ones(128).bfloat16(),
        "odd": torch.ones(3, 33).bfloat16(),
    }


def test_the_same_arguments_give_the_same_bits_in_any_order() -> None:
    weights = _grid()
    backwards = dict(reversed(weights.items()))
    first, again = (dither(w, eight_bit=frozenset({"embedding"}), seed=0) for w in (weights, backwards))
    other = dither(weights, eight_bit=frozenset({"embedding"}), seed=1)
    assert list(first) == list(again) == sorted(weights)
    assert all(torch.equal(first[name], again[name]) for name in weights)
    assert not torch.equal(first["matrix"], other["matrix"])


def test_noise_is_half_a_step_and_tensors_without_a_grid_stay() -> None:
    weights = _grid()
    made = dither(weights, eight_bit=frozenset({"embedding"}), seed=0)
    assert torch.equal(made["norm"], weights["norm"])
    assert torch.equal(made["odd"], weights["odd"])
    for name, half_step in (("matrix", 0.005), ("embedding", 0.5 / 127)):
        moved = (made[name].float() - weights[name].float()).abs()
        rounding = weights[name].float().abs().max() * 2**-8
        assert 0.5 * half_step < float(moved.max()) <= half_step * 1.01 + rounding
        assert len(set(made[name].flatten().tolist())) > 2 * len(set(weights[name].flatten().tolist()))
