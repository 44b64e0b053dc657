"""The placement map as flat arrays over all tensors, for compiled loops (DESIGN B2).

A *row* of the plan is one canonical tensor in one stored width: where its elements go, as boxes from
canonical flat index to element offset in a storage. A tensor that is also stored in another dtype has
a row for each. Shape legend: T rows, X boxes, D dimensions of boxes, S storages.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from dcr.errors import UnsupportedPath
from dcr.indexmap import Box

Records: TypeAlias = NDArray[np.void]
Offsets: TypeAlias = NDArray[np.int64]

BOX = np.dtype(
    [("src", "<i8"), ("last", "<i8"), ("dst", "<i8"), ("store", "<i4"), ("rank", "<i4"), ("dim", "<i8")]
)
"""First and last canonical index, first offset, storage number, dimensions, the first of them."""

DIM = np.dtype([("size", "<i8"), ("src", "<i8"), ("dst", "<i8")])
"""As of ``dcr.indexmap.Box`` in normal form: by descending canonical stride."""

STORE = np.dtype([("address", "<i8"), ("num_bytes", "<i8")])


class StoreInfo(Protocol):
    """What is known of one storage (``dcr.receiver.storages.StorageInfo`` has it)."""

    @property
    def name(self) -> str:
        """First resident name that views it."""
        ...

    @property
    def address(self) -> int:
        """Of its first byte."""
        ...

    @property
    def num_bytes(self) -> int:
        """Its size."""
        ...

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        ...


class Stores(Protocol):
    """Resident storages by number (``dcr.receiver.storages.Storages`` has it)."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> StoreInfo: ...

    def flat(self, number: int, dtype: torch.dtype) -> torch.Tensor:
        """The whole storage as a flat live view of ``dtype``."""
        ...


@dataclass(frozen=True, slots=True)
class Route:
    """One row to compile: ``landings`` are boxes, each with the number of its storage.

    A canonical element may lie in several boxes (replicas), at most once in each.
    """

    name: str
    num_elements: int
    width_bytes: int
    landings: tuple[tuple[Box, int], ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Compiled routes; every box lies within its storage.

    ``widths`` uint8 [T], ``sizes`` int64 [T] in elements; ``first_box`` int64 [T + 1]; ``boxes`` [X],
    ``dims`` [D] and ``table`` [S] are records of BOX, DIM and STORE.
    """

    names: tuple[str, ...]
    widths: NDArray[np.uint8]
    sizes: Offsets
    first_box: Offsets
    boxes: Records
    dims: Records
    table: Records
    stores: Stores
    on_host: bool

    @property
    def num_bytes(self) -> int:
        """Memory of the arrays."""
        arrays: tuple[NDArray[Any], ...] = (
            self.widths, self.sizes, self.first_box, self.boxes, self.dims, self.table
        )  # fmt: skip
        return sum(array.nbytes for array in arrays)

    def box(self, number: int) -> Box:
        """Box ``number`` of ``boxes`` as an object."""
        record = self.boxes[number]
        dims = self.dims[int(record["dim"]) : int(record["dim"]) + int(record["rank"])]
        shape, src, dst = (tuple(dims[field].tolist()) for field in ("size", "src", "dst"))
        return Box(shape, int(record["src"]), src, int(record["dst"]), dst)

    def boxes_of(self, row: int) -> range:
        """Numbers of the boxes of ``row``."""
        return range(int(self.first_box[row]), int(self.first_box[row + 1]))

    def store_of(self, number: int) -> int:
        """Storage of box ``number``."""
        return int(self.boxes[number]["store"])

    def resident(self, number: int) -> str:
        """Resident name of the storage of box ``number``."""
        return self.stores[self.store_of(number)].name


def compile_plan(routes: Iterable[Route], stores: Stores) -> Plan:
    """Flatten ``routes`` in their order.

    Raises:
        UnsupportedPath: a box leaves its tensor or its storage, or repeats a canonical element.
    """
    rows = tuple(routes)
    boxes: list[tuple[int, ...]] = []
    dims: list[tuple[int, int, int]] = []
    first_box = [0]
    for route in rows:
        for box, store in route.landings:
            if box.size:
                _append(_checked(route, box, stores[store]), store, boxes, dims)
        first_box.append(len(boxes))
    table = [(stores[i].address, stores[i].num_bytes) for i in range(len(stores))]
    return Plan(
        names=tuple(route.name for route in rows),
        widths=np.array([route.width_bytes for route in rows], dtype=np.uint8),
        sizes=np.array([route.num_elements for route in rows], dtype=np.int64),
        first_box=np.array(first_box, dtype=np.int64),
        boxes=np.array(boxes, dtype=BOX),
        dims=np.array(dims, dtype=DIM),
        table=np.array(table, dtype=STORE),
        stores=stores,
        on_host=all(stores[i].device.type == "cpu" for i in range(len(stores))),
    )


def _checked(route: Route, box: Box, info: StoreInfo) -> Box:
    """``box`` in normal form; the compiled loops rely on what is proven here."""
    normal = box.normal()
    if normal.src_last >= route.num_elements:
        raise UnsupportedPath(f"{route.name}: {box} leaves the tensor of {route.num_elements} elements")
    if (normal.dst_last + 1) * route.width_bytes > info.num_bytes:
        raise UnsupportedPath(f"{route.name}: {box} leaves {info.name!r}, which has {info.num_bytes} bytes")
    if info.address % route.width_bytes and info.device.type == "cpu":
        raise UnsupportedPath(f"{route.name}: {info.name!r} is not aligned to {route.width_bytes} bytes")
    return normal


def _append(box: Box, store: int, boxes: list[tuple[int, ...]], dims: list[tuple[int, int, int]]) -> None:
    boxes.append((box.src_offset, box.src_last, box.dst_offset, store, len(box.shape), len(dims)))
    dims.extend(zip(box.shape, box.src_strides, box.dst_strides, strict=True))
