"""Views of clones of views: what they read of the scratch, against an arange."""

import torch
from hypothesis import event, given
from hypothesis import strategies as st

from dcr.receiver.mirror import Mirror

SHAPE = (4, 3, 8)


@st.composite
def viewed(draw: st.DrawFn, tensor: torch.Tensor) -> torch.Tensor:
    """One or two operations that make views, reshapes and arbitrary strides included."""
    for _ in range(draw(st.integers(1, 2))):
        kind = draw(st.sampled_from(["permute", "step", "narrow", "flatten", "unfold", "strided", "expand"]))
        if kind == "strided":
            last = tensor.untyped_storage().nbytes() // 4 - 1
            n = draw(st.integers(1, min(4, last + 1)))
            tensor = tensor.as_strided((n,), (draw(st.integers(1, max(1, last // max(n - 1, 1)))),), 0)
        elif kind == "flatten" and tensor.is_contiguous():
            tensor = tensor.view(-1)
        elif kind == "expand":
            tensor = tensor.unsqueeze(0).expand(2, *tensor.shape)
        elif tensor.dim():
            tensor = _of_one_dim(draw, kind, tensor)
    return tensor


def _of_one_dim(draw: st.DrawFn, kind: str, tensor: torch.Tensor) -> torch.Tensor:
    dim = draw(st.integers(0, tensor.dim() - 1))
    n = tensor.shape[dim]
    if kind == "step":
        return tensor[(*[slice(None)] * dim, slice(draw(st.integers(0, n - 1)), None, 2))]
    if kind == "narrow":
        start = draw(st.integers(0, n - 1))
        return tensor.narrow(dim, start, draw(st.integers(1, n - start)))
    if kind == "unfold":
        return tensor.unfold(dim, draw(st.integers(1, n)), 1)
    return tensor.permute(draw(st.permutations(range(tensor.dim()))))


@given(st.data())
def test_what_a_view_of_a_clone_reads(data: st.DataObject) -> None:
    """If a mirror says where a view lies in the scratch, that is what the view holds."""
    scratch = torch.arange(96, dtype=torch.float32).view(SHAPE)
    tensor, mirror = scratch, Mirror("w", scratch.dtype)
    for _ in range(data.draw(st.integers(1, 2))):
        view = data.draw(viewed(tensor))
        layout = data.draw(st.sampled_from([torch.contiguous_format, torch.preserve_format]))
        clone = view.clone(memory_format=layout)
        twin = mirror.twin(view, clone)
        if twin is None:
            event("not a plain clone")
            return
        tensor, mirror = clone, twin
    for view in (tensor, data.draw(viewed(tensor))):
        source = mirror.read_by(view)
        event("found" if source is not None else "needs several strides")
        if source is not None:
            found = scratch.view(-1).as_strided(view.shape, source.strides, source.offset)
            assert torch.equal(found, view)
    assert mirror.read_by(tensor) is not None
