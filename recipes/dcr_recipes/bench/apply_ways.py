"""The ways in which a rank's storage can come from one version to the next, each as a piece of work."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch

from dcr.codec import Payload
from dcr.errors import IntegrityError
from dcr.model import Encoding
from dcr.receiver.ports import NativeLoader
from dcr.receiver.rank import RankPort
from dcr_recipes.bench.apply_data import Versions, singly
from dcr_recipes.bench.apply_floor import Floor, Storages, hold, snapshot, storages_of
from dcr_recipes.bench.apply_ranks import hooked, learned
from dcr_recipes.bench.timing import Cost, Work, interleaved, process_clock

Native: TypeAlias = Callable[[], None]
"""A runtime's own way to apply sparse changes."""

ENGINES = ("numba", "numpy", "torch")
LEARNED = "learned numba set"
"""The method that the others are compared with."""

_ENCODINGS = {"set": Encoding.OVERWRITE, "xor": Encoding.XOR, "add": Encoding.DELTA16}


@dataclass(frozen=True, slots=True)
class Measured:
    """What was found on one rank: cost by method, writes of the floor, equality checked."""

    costs: dict[str, Cost]
    num_writes: int


def measure(
    loader: NativeLoader, versions: Versions, natives: Mapping[str, Native], *, rounds: int
) -> Measured:
    """Prove that every method ends in the bits of a dense load, then time them in turn.

    Raises:
        IntegrityError: one does not; names it.
    """
    storages = storages_of(loader)
    _load(loader, versions.old_tensors())
    wanted = snapshot(storages)
    _load(loader, versions.new_tensors())
    floor = Floor(storages, wanted)
    del wanted  # before the next copy is made
    wanted = snapshot(storages)
    works: dict[str, Work] = {
        "floor": floor.run,
        "dense refit": lambda: _load(loader, versions.new_tensors()),
        **dict(_appliers(loader, versions)),
        **natives,
    }
    for method, work in works.items():
        _prove(method, work, loader, versions, (storages, wanted))
    return Measured(interleaved(works, rounds=rounds, clock=process_clock, warm=False), floor.num_writes)


def _appliers(loader: NativeLoader, versions: Versions) -> Iterator[tuple[str, Work]]:
    payloads = {name: versions.payloads(encoding) for name, encoding in _ENCODINGS.items()}
    hook = hooked(loader, versions.catalogue)
    for name in _ENCODINGS:
        yield f"hook streamed {name}", _applying(hook, payloads[name])
    yield "hook per item xor", _applying(hook, singly(payloads["xor"]))
    for engine in ENGINES:
        rank = learned(loader, versions.catalogue, engine)
        for name in _ENCODINGS:
            yield f"learned {engine} {name}", _applying(rank, payloads[name])
    yield (
        "learned numba add, checked",
        _checked(learned(loader, versions.catalogue, "numba"), payloads["add"]),
    )


def _applying(rank: RankPort, payloads: list[Payload]) -> Work:
    def work() -> None:
        rank.begin(clean=True)
        for payload in payloads:
            rank.apply(payload)

    return work


def _checked(rank: RankPort, payloads: list[Payload]) -> Work:
    """Apply, then read back and digest everything that was written (DESIGN R13, B6)."""
    apply = _applying(rank, payloads)

    def work() -> None:
        apply()
        rank.check()

    return work


def _prove(
    method: str, work: Work, loader: NativeLoader, versions: Versions, target: tuple[Storages, Storages]
) -> None:
    storages, wanted = target
    _load(loader, versions.old_tensors())
    work()
    if not hold(storages, wanted):
        raise IntegrityError(f"{method} does not leave the bits of a dense load")


def _load(loader: NativeLoader, tensors: Iterator[tuple[str, torch.Tensor]]) -> None:
    with torch.no_grad():
        loader.load(tensors)
