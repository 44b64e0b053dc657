"""Tensors that go whole, loaded without the others (DESIGN R11, P15).

Their check asks the loader itself, so it would not notice a loader that waits for a tensor which does not
come along. What was learned in one stream of everything must hold for each of them on its own.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from dcr.receiver.learn_pass import PassResult
from dcr.receiver.placement import PlacementTable
from dcr.receiver.rank import Method
from dcr.receiver.trace import Kind, Trace, Traces

Group: TypeAlias = tuple[str, ...]
Place: TypeAlias = tuple[object, ...]
Stream: TypeAlias = Callable[[Sequence[str]], PassResult]
_FEW = 32
DEPENDS = "what the loader does with it depends on which other tensors come along"


def unlike_alone(table: PlacementTable, traces: Traces, stream: Stream) -> dict[str, str]:
    """Refusals of tensors with which the loader does otherwise when not all come along.

    ``traces`` are those of everything, and what follows the last tensor has its owners there; ``stream``
    runs a learning pass over some names. Many groups are fed by halves, so that each is once without each
    other one: 2 log2(n) passes instead of n.
    """
    whole = [
        name for name, path in table.paths.items() if path.method is Method.WHOLE or table.loses_bits(name)
    ]
    groups = list(dict.fromkeys(table.together.get(name, (name,)) for name in whole))
    known = _Known(traces)
    refused: dict[str, str] = {}
    for some in _subsets(groups):
        if not known.fits(some, stream):
            found = [group for group in some if len(some) == 1 or not known.fits([group], stream)]
            refused |= {name: DEPENDS for group in found or some for name in group}
    return refused


def _subsets(groups: list[Group]) -> Iterator[list[Group]]:
    if len(groups) <= _FEW:
        yield from ([group] for group in groups)
        return
    for bit in range((len(groups) - 1).bit_length()):
        for side in (0, 1):
            yield [group for number, group in enumerate(groups) if number >> bit & 1 == side]


class _Known:
    """Where everything is written, constants and weights apart."""

    def __init__(self, traces: Traces) -> None:
        self._traces = traces
        self._constants = _places(traces.values(), constant=True)

    def fits(self, groups: Sequence[Group], stream: Stream) -> bool:
        """Whether these groups, without all others, go where they went among them."""
        names = [name for group in groups for name in group]
        known = _places((self._traces[name] for name in names), constant=False)
        found = stream(names).traces
        if any(found[name].error for name in names):
            return False
        weights = _places(found.values(), constant=False)
        constants = _places(found.values(), constant=True)
        return weights <= known <= weights | constants and constants <= self._constants | known


def _places(traces: Iterable[Trace], *, constant: bool) -> set[Place]:
    return {
        write[1:6] for trace in traces for write in trace.writes if (write.kind is Kind.CONSTANT) is constant
    }
