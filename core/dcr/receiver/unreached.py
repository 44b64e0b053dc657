"""Parameters that no canonical tensor reaches: the catalogue or the loader is not this model's (R11)."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from itertools import accumulate

import torch

from dcr.receiver.overlap import Region
from dcr.receiver.storages import Storages
from dcr.receiver.trace import Kind, extent_of


def unreached(
    resident: dict[str, torch.Tensor], regions: Iterable[Region], storages: Storages
) -> dict[str, str]:
    """Parameter -> reason, of those into whose bytes nothing but constants is written."""
    reached: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for region in regions:
        if region.write.kind is not Kind.CONSTANT:
            storage, start, stop = region.write.extent
            reached[storage].append((start, stop))
    starts, ends = {}, {}
    for storage, found in reached.items():
        found.sort()
        starts[storage] = [start for start, _ in found]
        ends[storage] = list(accumulate((stop for _, stop in found), max))
    missing = {}
    for name, tensor in resident.items():
        number = storages.number_of(name)
        if isinstance(tensor, torch.nn.Parameter) and tensor.numel() and number is not None:
            place = int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride()
            extent = extent_of(number, *place, tensor.element_size())
            before = bisect_left(starts.get(number, []), extent.stop)
            if before == 0 or ends[number][before - 1] <= extent.start:
                missing[name] = "no canonical tensor reaches this parameter"
    return missing
