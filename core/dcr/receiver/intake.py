"""What the items of a payload are to this rank, all at once (DESIGN P8, P15, P16, B2).

An item costs one look-up of its name, shape and dtype; all else is arithmetic on the payload's columns.
``dcr.receiver.items.validate`` is the rule, word by word; it is asked only where something is not plain.
Shape legend: I items of a payload, T names of the catalogue.
"""

from collections.abc import Container, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dcr.codec import Columns, Item, Payload
from dcr.codec.columns import ENCODINGS
from dcr.model import Encoding, PathClass, TensorSpec, width_bytes
from dcr.receiver.items import validate
from dcr.receiver.methods import RankMap
from dcr.receiver.rank import ItemKey, Method, RankPath
from dcr.receiver.scatter.batch import ACTIONS, Action, Widths
from dcr.receiver.scatter.numba_engine import LEAST

_TENSOR = np.dtype([("size", "<i8"), ("row", "<i8"), ("width", "u1"), ("method", "u1"), ("flags", "u1")])
"""Elements; row of the plan, -1 unless it is the name's only one and keeps the bits; Method; what follows."""

_TAKES_DIFFERENCES, _IS_BOOL = 1, 2
_METHODS = {method: number for number, method in enumerate(Method)}
_ACTIONS = np.array([ACTIONS[encoding] for encoding in ENCODINGS], dtype=np.int64)
_OVERWRITE, _DELTA16 = ENCODINGS.index(Encoding.OVERWRITE), ENCODINGS.index(Encoding.DELTA16)


_LOOKS = np.where(_ACTIONS == Action.SET, _ACTIONS, int(Action.READ))
_WIDTHS = [Widths(element, position) for element in (2, 4, 1, 8) for position in (4, 8)]


class Taken(NamedTuple):
    """Items of one payload [I]. ``rows``: of plain LEARNED ones; -1 of others. ``widths`` in bytes."""

    payload: Payload
    methods: NDArray[np.uint8]
    rows: NDArray[np.int64]
    widths: NDArray[np.uint8]

    @property
    def columns(self) -> Columns:
        """Of the payload."""
        return self.payload.columns

    @property
    def actions(self) -> NDArray[np.int64]:
        """``Action`` of each item [I]."""
        actions: NDArray[np.int64] = _ACTIONS[self.columns.encodings]
        return actions

    def going(self, method: Method) -> NDArray[np.bool_]:
        """Which items go that way [I]."""
        going: NDArray[np.bool_] = self.methods == _METHODS[method]
        return going

    def chosen(self, method: Method) -> NDArray[np.intp]:
        """Positions in the payload of those that go that way and have entries."""
        return np.flatnonzero(self.going(method) & (self.columns.nums > 0))

    def items(self, method: Method) -> list[Item]:
        """Those that go that way and have entries."""
        return [self.payload.items[i] for i in self.chosen(method).tolist()]

    @property
    def looks(self) -> NDArray[np.int64]:
        """As ``actions``, but READ where values are differences, which are not there afterwards [I]."""
        looks: NDArray[np.int64] = _LOOKS[self.columns.encodings]
        return looks

    def plain(self) -> Iterator[tuple[Widths, NDArray[np.intp]]]:
        """Items with entries that have one row and keep the bits, by widths, where compiling pays."""
        nums, index_bytes = self.columns.nums, self.columns.index_bytes
        plain = (self.rows >= 0) & (nums > 0)
        for widths in _WIDTHS:
            some = plain & (self.widths == widths.element) & (index_bytes == widths.position)
            if int(nums[some].sum()) >= LEAST:
                yield widths, np.flatnonzero(some)

    def key(self, position: int) -> ItemKey:
        """Of the item at ``position``."""
        return self.payload.owner, self.payload.sequence, position

    def held(self, without: Container[ItemKey] = ()) -> list[tuple[ItemKey, Item]]:
        """Every item of a tensor that this rank holds, ``without`` some, with its key."""
        at = np.flatnonzero(~self.going(Method.NONE)).tolist()
        return [(key, self.payload.items[i]) for i in at if (key := self.key(i)) not in without]


class Intake:
    """Knows every name of the catalogue; made once a learning pass, never changed."""

    def __init__(self, rank_map: RankMap, specs: Mapping[str, TensorSpec]) -> None:
        self._specs = specs
        self._paths = rank_map.paths
        self._places = {
            (name, tuple(spec.shape), spec.dtype): place for place, (name, spec) in enumerate(specs.items())
        }
        rows = rank_map.placed.rows
        cells = []
        for name, spec in specs.items():
            plain = name in rank_map.placed and rank_map.placed.plain(name)
            row = rows[name][0].number if plain else -1
            path = self._paths[name]
            cells.append(
                (spec.num_elements, row, width_bytes(spec.dtype), _METHODS[path.method], _flags(spec, path))
            )
        self._tensors = np.array(cells, dtype=_TENSOR)

    def take(self, payload: Payload, *, allow_xor: bool) -> Taken:
        """Check the items and say which way each of them goes.

        Raises:
            AttemptFailed: as ``validate`` of the first item that is not acceptable.
        """
        columns = payload.columns
        find = self._places.get
        places = np.array([find(key, -1) for key in columns.keys], dtype=np.int64)
        doubtful = places < 0
        tensors = self._tensors[places]  # of an unknown one it is the last; it is doubtful already
        doubtful |= (columns.firsts < 0) | ((columns.lasts >= tensors["size"]) & (columns.nums > 0))
        doubtful |= (tensors["flags"] & _IS_BOOL) != 0
        builds = columns.encodings != _OVERWRITE
        fit = np.logical_and((tensors["flags"] & _TAKES_DIFFERENCES) != 0, allow_xor)
        fit &= (columns.encodings != _DELTA16) | (tensors["width"] == 2)
        doubtful |= builds & ~fit
        for i in np.flatnonzero(doubtful).tolist():
            validate(payload.items[i], self._specs, self._paths, allow_xor=allow_xor)
        learned = tensors["method"] == _METHODS[Method.LEARNED]
        return Taken(payload, tensors["method"], np.where(learned, tensors["row"], -1), tensors["width"])


def _flags(spec: TensorSpec, path: RankPath) -> int:
    differences = path.path in (PathClass.XOR, PathClass.SKIP)
    return differences * _TAKES_DIFFERENCES | (spec.dtype == "bool") * _IS_BOOL
