"""What a bridge's hook on converted weights adds to those of one task: copies of them, or constants.

Nothing is traced element by element, so that it serves embeddings too, from which hooks make the
tensors of multi-token prediction.
"""

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

from dcr.model import digest_hex, stored_bits
from dcr_adapters.megatron.pieces import Target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    Modify: TypeAlias = Callable[[dict[str, torch.Tensor]], dict[str, Any]]


def with_copies(targets: tuple[Target, ...], modify: "Modify") -> tuple[Target, ...] | None:
    """``targets`` and the whole copies of them that ``modify`` adds.

    None if it alters one of them, or adds anything else that is no constant.
    """
    first, *more = _ramps(targets)
    added = _added(first, modify)
    if added is None or any(_added(given, modify) != added for given in more):
        return None
    by_name = {target.name: target for target in targets}
    copies = ((name, by_name.get(origin)) for name, origin in added.items())
    return (*targets, *(replace(of, name=name) for name, of in copies if of is not None))


def _added(given: "dict[str, torch.Tensor]", modify: "Modify") -> dict[str, str] | None:
    """What ``modify`` adds to ``given``: the name whose copy it is, or a digest; None if it alters one."""
    try:
        kept = modify(dict(given))
        if not all(kept.pop(name, None) is tensor for name, tensor in given.items()):
            return None
        return {name: _origin(tensor, given) for name, tensor in kept.items()}
    except (RuntimeError, TypeError, ValueError, KeyError, AttributeError):
        return None


def _origin(tensor: "torch.Tensor", given: "dict[str, torch.Tensor]") -> str:
    """The given tensor that this one equals, or a digest."""
    for name, each in given.items():
        if tensor.dtype == each.dtype and tensor.shape == each.shape and bool((tensor == each).all()):
            return name
    return f"{tensor.dtype} {tuple(tensor.shape)} {digest_hex(stored_bits(tensor).tobytes())}"


def _ramps(targets: tuple[Target, ...]) -> "Iterator[dict[str, torch.Tensor]]":
    """Converted weights, without memory, that together tell any two elements apart.

    One ramp for each dimension; the last are larger than all of these and negative.
    """
    import torch

    shapes = {target.name: target.shape for target in targets}
    step = 1 + max((1, *(size for shape in shapes.values() for size in shape)))
    for dim in range(max((1, *(len(shape) for shape in shapes.values())))):
        yield {name: _ramp(shape, dim, index * step) for index, (name, shape) in enumerate(shapes.items())}
    yield {
        name: torch.tensor(-2.0 * step * (len(shapes) + index)).expand(shape)
        for index, (name, shape) in enumerate(shapes.items())
    }


def _ramp(shape: tuple[int, ...], dim: int, start: int) -> "torch.Tensor":
    """FP32 values that grow by one along ``dim``, if the shape has it."""
    import torch

    along = tuple(size if at == dim else 1 for at, size in enumerate(shape))
    return (torch.arange(prod(along), dtype=torch.float32) + start).reshape(along).expand(shape)
