"""The placement map of one rank: canonical names in, canonical bits out (DESIGN B2, B6).

Landings that cast have rows of their own: values are cast before they are scattered, and what is read
is cast back. Replicas, casts included, are compared with one another whenever they are read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dcr.codec import Item, Positions
from dcr.model import Bits, Encoding, TensorSpec, width_bytes
from dcr.receiver.casts import cast_back, cast_bits
from dcr.receiver.landing import Landing
from dcr.receiver.scatter.batch import ACTIONS, Entries, Readback
from dcr.receiver.scatter.engine import Engine
from dcr.receiver.scatter.numpy_engine import merge
from dcr.receiver.scatter.plan import Plan, Route, Stores, compile_plan
from dcr.receiver.scatter.reader import read_range


@dataclass(frozen=True, slots=True)
class Row:
    """Row ``number`` of the plan; ``cast`` is the stored dtype if it is not the catalogue's."""

    number: int
    cast: torch.dtype | None


@dataclass(frozen=True, slots=True)
class PlacedTensors:
    """Where every mapped name lies. ``rows`` has the rows of each, those that keep the bits first."""

    plan: Plan
    rows: Mapping[str, tuple[Row, ...]]
    specs: Mapping[str, TensorSpec]

    def __contains__(self, name: object) -> bool:
        return name in self.rows

    def scatter(self, items: Sequence[Item], engine: Engine) -> None:
        """Write ``items``, whose names are mapped; casts take absolute values only."""
        batch: list[Entries] = []
        for item in items:
            action = ACTIONS[item.encoding]
            for row in self.rows[item.name]:
                values = item.values if row.cast is None else _cast(item, row.cast)
                batch.append(Entries(row.number, action, item.positions, values))
        engine.scatter(self.plan, batch)

    def plain(self, name: str) -> bool:
        """Whether ``name`` has one row, which keeps the bits."""
        rows = self.rows[name]
        return len(rows) == 1 and rows[0].cast is None

    def read(self, wanted: Sequence[tuple[str, Positions]], engine: Engine) -> list[Readback]:
        """Canonical bits at positions [E], ascending, of each name."""
        batch = [(row.number, at) for name, at in wanted for row in self.rows[name]]
        answers = iter(engine.read(self.plan, batch))
        return [self._canonical(name, [next(answers) for _ in self.rows[name]]) for name, _ in wanted]

    def read_range(self, name: str, start: int, stop: int) -> Readback:
        """Canonical bits start .. stop - 1 of ``name``, in memory bounded by the range."""
        return self._canonical(
            name, [read_range(self.plan, row.number, start, stop) for row in self.rows[name]]
        )

    def _canonical(self, name: str, answers: Sequence[Readback]) -> Readback:
        """One answer from those of all rows of ``name``."""
        if len(answers) == 1 and self.rows[name][0].cast is None:
            return answers[0]
        parts = [self._undo(name, row, answer) for row, answer in zip(self.rows[name], answers, strict=True)]
        values, held, differs = parts[0].values.copy(), parts[0].held.copy(), parts[0].differs
        for row, part in zip(self.rows[name][1:], parts[1:], strict=True):
            at = np.flatnonzero(part.held)
            agrees = merge(values, held, at, part.values[at])
            if part.differs >= 0 or not agrees:
                differs = part.differs if part.differs >= 0 else int(self.plan.first_box[row.number])
        return Readback(values, held, differs)

    def _undo(self, name: str, row: Row, answer: Readback) -> Readback:
        if row.cast is None:
            return answer
        values, wrong = cast_back(answer.values, self.specs[name].dtype, row.cast)
        differs = int(self.plan.first_box[row.number]) if (wrong & answer.held).any() else answer.differs
        return Readback(values, answer.held, differs)


def _cast(item: Item, cast: torch.dtype) -> Bits:
    assert item.encoding is Encoding.OVERWRITE, "validated before"
    return cast_bits(item.values, item.dtype, cast)


def place(
    specs: Mapping[str, TensorSpec], landings: Mapping[str, Sequence[Landing]], stores: Stores
) -> PlacedTensors:
    """Compile ``landings`` of canonical names.

    Raises:
        UnsupportedPath: a landing leaves its tensor or its storage.
    """
    routes: list[Route] = []
    rows: dict[str, tuple[Row, ...]] = {}
    for name, found in landings.items():
        if not found:
            continue
        casts = list(dict.fromkeys(None if one.preserving else one.dtype for one in found))
        casts.sort(key=lambda cast: cast is not None)
        rows[name] = tuple(Row(len(routes) + i, cast) for i, cast in enumerate(casts))
        routes += [_route(name, specs[name], found, cast) for cast in casts]
    return PlacedTensors(compile_plan(routes, stores), rows, {name: specs[name] for name in rows})


def _route(name: str, spec: TensorSpec, found: Sequence[Landing], cast: torch.dtype | None) -> Route:
    width = width_bytes(spec.dtype) if cast is None else cast.itemsize
    kept = [(one.box, one.storage) for one in found if (None if one.preserving else one.dtype) == cast]
    return Route(name, spec.num_elements, width, tuple(kept))
