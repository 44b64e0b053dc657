"""Which elements an operator that stores by index really writes (DESIGN R12)."""

from typing import Any

import numpy as np
import torch

from dcr.indexmap import boxes_from_pairs
from dcr.receiver.schema import aten, tensors_in
from dcr.receiver.trace import Write

_MAX_PIECES = 256
_VALUES_AT = {
    aten.index_put_.default: 2,
    aten.index_copy_.default: 3,
    aten.index_fill_.int_Scalar: 3,
    aten.scatter_.src: 3,
    aten.scatter_.value: 3,
    aten.masked_fill_.Scalar: 2,
    aten.masked_scatter_.default: 2,
}


def touched(func: Any, args: tuple[Any, ...], whole: Write) -> list[Write]:
    """``whole``, a write into all of ``args[0]``, cut down to what ``func`` stores.

    The operator is run on marks instead of contents; where its indices have no contents, or the pieces
    are many, ``whole`` stays.
    """
    at = _VALUES_AT.get(func)
    if at is None or any(tensor.device.type == "meta" for tensor in tensors_in(args[1:at])):
        return [whole]
    marks = torch.zeros(whole.shape, dtype=torch.bool)
    values = args[at]
    ones: Any = torch.ones(values.shape, dtype=torch.bool) if isinstance(values, torch.Tensor) else True
    indices = [_on_host(argument) for argument in args[1:at]]
    func(marks, *indices, ones)
    offsets = np.full((), whole.offset, dtype=np.int64)
    for n, stride in zip(whole.shape, whole.strides, strict=True):
        offsets = offsets[..., None] + np.arange(n, dtype=np.int64) * stride
    found = np.sort(offsets[marks.numpy()])
    boxes = boxes_from_pairs(found, found)
    if len(boxes) > _MAX_PIECES:
        return [whole]
    return [whole._replace(offset=box.dst_offset, shape=box.shape, strides=box.dst_strides) for box in boxes]


def _on_host(argument: Any) -> Any:
    if isinstance(argument, torch.Tensor):
        return argument.cpu()
    return [_on_host(one) for one in argument] if isinstance(argument, list) else argument
