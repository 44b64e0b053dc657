"""Ways in which a loader can break the conditions of Table A.2, for ``ToyRuntime.hostile``."""

import torch

from dcr.testing.toy_runtime import ToyRuntime


def second_copy(runtime: ToyRuntime, name: str, weight: torch.Tensor) -> None:
    """Copy twice: an XOR mask would cancel."""
    runtime.place(name, weight)
    runtime.place(name, weight)


def no_copy(runtime: ToyRuntime, name: str, weight: torch.Tensor) -> None:
    """Drop the tensor in silence, as loaders do with names they do not know."""


def half_copy(runtime: ToyRuntime, name: str, weight: torch.Tensor) -> None:
    """Copy the first half of the rows."""
    runtime.data("qkv")[:2].copy_(weight[:2])


def elsewhere(runtime: ToyRuntime, name: str, weight: torch.Tensor) -> None:
    """Copy to rows that belong to another tensor."""
    runtime.data("qkv")[1:5].copy_(weight)


def write_outside(runtime: ToyRuntime, name: str, weight: torch.Tensor) -> None:
    """Place it, and change another tensor with an operation that is no copy."""
    runtime.place(name, weight)
    runtime.data("decay").add_(1)


def list_write(runtime: ToyRuntime, name: str, weight: torch.Tensor) -> None:
    """Place it, and write through an operator that takes a list of destinations."""
    runtime.place(name, weight)
    torch._foreach_mul_([runtime.data("down"), runtime.data("left")], 2.0)


def out_write(runtime: ToyRuntime, name: str, weight: torch.Tensor) -> None:
    """Write by an ``out=`` argument."""
    torch.add(weight, weight, out=runtime.data("qkv")[:4])


def indexed_write(runtime: ToyRuntime, name: str, weight: torch.Tensor) -> None:
    """Assign through an index tensor: ``index_put_``, not ``copy_``."""
    runtime.data("qkv")[torch.tensor([3, 1, 0, 2])] = weight


def fill_live(runtime: ToyRuntime, name: str, weight: torch.Tensor) -> None:
    """Clear the destination first."""
    runtime.data("qkv")[:4].zero_()
    runtime.place(name, weight)


def computed(runtime: ToyRuntime, name: str, weight: torch.Tensor) -> None:
    """Copy something made from the tensor (a composed load)."""
    runtime.place(name, -torch.exp(weight))


def made_contiguous(runtime: ToyRuntime, name: str, weight: torch.Tensor) -> None:
    """Copy a clone: equal values, but not the scratch."""
    runtime.place(name, weight.clone())


def negated_view(runtime: ToyRuntime, name: str, weight: torch.Tensor) -> None:
    """Copy a view that shares storage, yet means other values."""
    runtime.place(name, torch._neg_view(weight))


def changes_input(runtime: ToyRuntime, name: str, weight: torch.Tensor) -> None:
    """Scale the tensor that was passed in."""
    weight.mul_(2)
    runtime.place(name, weight)


def reinterpreted(runtime: ToyRuntime, name: str, weight: torch.Tensor) -> None:
    """Copy the bits under another dtype."""
    runtime.data("qkv")[:4].view(torch.int16).copy_(weight.view(torch.int16))


def conditional(runtime: ToyRuntime, name: str, weight: torch.Tensor) -> None:
    """Decide by the values."""
    if not bool((weight > 1).any()):
        runtime.place(name, weight)


def permuted_rows(runtime: ToyRuntime, name: str, weight: torch.Tensor) -> None:
    """Copy rows one by one, in reverse: legal, each is a plain view of the scratch."""
    for row in reversed(range(weight.shape[0])):
        runtime.data("qkv")[row].copy_(weight[row])


def rebinds(runtime: ToyRuntime, name: str, weight: torch.Tensor) -> None:
    """Replace the storage behind a parameter."""
    runtime._tensors["down"].data = runtime.data("down").clone()
    runtime.place(name, weight)


def set_storage(runtime: ToyRuntime, name: str, weight: torch.Tensor) -> None:
    """Replace the storage by an operator."""
    runtime._tensors["down"].set_(runtime.data("down").clone())  # type: ignore[call-overload]
    runtime.place(name, weight)


def swallows(runtime: ToyRuntime, name: str, weight: torch.Tensor) -> None:
    """Write what it must not, and hide the error."""
    runtime.place(name, weight)
    try:
        runtime.data("decay").add_(1)
    except Exception:  # noqa: BLE001 -- what a careless loader does
        return


def through_numpy(runtime: ToyRuntime, name: str, weight: torch.Tensor) -> None:
    """Write where no dispatch hook can see it."""
    runtime.place(name, weight)
    runtime.data("decay").numpy().view("u1")[0] += 1


def hidden_cache(runtime: ToyRuntime, name: str, weight: torch.Tensor) -> None:
    """Keep a second copy in memory that ``resident`` does not list."""
    runtime.place(name, weight)
    _HIDDEN.copy_(weight)


_HIDDEN = torch.zeros(4, 4, dtype=torch.bfloat16)


def raises(runtime: ToyRuntime, name: str, weight: torch.Tensor) -> None:
    """Fail half way."""
    runtime.place(name, weight)
    raise RuntimeError("out of patience")
