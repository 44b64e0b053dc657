"""From what was learned to what one rank does with each tensor (DESIGN B2, P8)."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from dcr.model import TensorSpec
from dcr.receiver.padding import Padding, paddings
from dcr.receiver.placement import PlacementTable
from dcr.receiver.rank import FORCED, Method, RankPath, RankPlacement
from dcr.receiver.scatter.placed import PlacedTensors, place

MethodName: TypeAlias = Literal["auto", "hook"]


@dataclass(frozen=True, slots=True)
class RankMap:
    """One rank's working state between two learning passes; nothing in it changes.

    ``paths`` have the method that is used. ``placed`` maps every tensor that can be read back through
    landings; of the others, ``shadowed``, a host copy is kept.
    """

    table: PlacementTable
    paths: Mapping[str, RankPath]
    placed: PlacedTensors
    shadowed: tuple[str, ...]
    paddings: tuple[Padding, ...]

    @property
    def placement(self) -> RankPlacement:
        """The answer to ``RankPort.prewarm``."""
        return replace(self.table.rank_placement, paths=dict(self.paths))

    def specs_of(self, method: Method) -> dict[str, TensorSpec]:
        """Specs of the names that go that way."""
        return {name: self.table.specs[name] for name, path in self.paths.items() if path.method is method}

    def together(self, names: Mapping[str, object]) -> list[str]:
        """``names`` and what must be loaded along with them, in the catalogue's order."""
        wanted = {other for name in names for other in self.table.together.get(name, (name,))}
        return [name for name in self.paths if name in wanted]

    def batches(self, names: Iterable[str], num_bytes: int) -> Iterator[list[str]]:
        """``together`` of ``names`` in parts of hardly more than ``num_bytes``, to be loaded one by one.

        What goes together stays together; learning has seen that the rest may be absent (``alone``).
        """
        part: dict[str, None] = {}
        size, known = 0, set[str]()
        for name in self.together(dict.fromkeys(names)):
            if name not in known:
                group = self.table.together.get(name, (name,))
                known.update(group)
                part.update(dict.fromkeys(group))
                size += sum(self.table.specs[other].num_bytes for other in group)
            if size >= num_bytes:
                yield self.together(part)
                part, size = {}, 0
        if part:
            yield self.together(part)


def rank_map(table: PlacementTable, method: MethodName) -> RankMap:
    """Choose the method of every tensor; ``hook`` forces the paper's path wherever the hook can see it.

    Raises:
        UnsupportedPath: a landing leaves its storage.
    """
    specs = table.specs
    paths = {name: _path(table, name, method) for name in table.paths}
    whole = {name for name, path in paths.items() if path.method is Method.WHOLE}
    whole |= {other for name in whole for other in table.together.get(name, ())}
    landings = {name: found for name, found in table.landings.items() if name not in whole}
    placed = place(specs, landings, table.storages)
    unmapped = {n for n, path in paths.items() if path.method is Method.HOOK and n not in placed}
    shadowed = tuple(name for name in paths if name in whole or name in unmapped)
    constants = [constant for constant in table.constants if constant.name not in shadowed]
    compiled = replace(table, landings={})  # the plan has them in a fraction of the memory
    return RankMap(compiled, paths, placed, shadowed, paddings(constants, landings, table.storages))


def _path(table: PlacementTable, name: str, method: MethodName) -> RankPath:
    path = table.paths[name]
    if path.method is not Method.LEARNED:
        return path
    if reason := table.loses_bits(name):
        return replace(path, method=Method.WHOLE, reason=reason)
    if method == "hook" and name in table.copies:
        return replace(path, method=Method.HOOK, reason=FORCED)
    return path
