"""Counting differing bits: every instance against one that only the stock loader has ever filled.

After each refit the oracle process loads the gathered dense candidate, every instance dumps the raw
storage of all its parameters and buffers, and the bytes are compared.
"""

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from dcr.errors import Unreachable
from dcr_recipes.errors import VerificationError
from dcr_recipes.members import Members, Silence
from dcr_recipes.runtime.dump import RawTensor, read_dump

ORACLE = "oracle"


class Status(Protocol):
    """What a serving process says of itself; see ``dcr_recipes.runtime.answers.RuntimeStatus``."""

    @property
    def process(self) -> int:
        """Its process id: another one means that it restarted."""
        ...

    @property
    def version(self) -> int:
        """The version it served last; -1 before the first."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether it admits requests."""
        ...


class Instance(Protocol):
    """What verification asks of a serving process; see ``dcr_recipes.runtime.worker``."""

    def status(self) -> Status:
        """Answer without waiting."""
        ...

    def dump(self, path: str, share: float = 1.0, sample: str = "") -> int:
        """Write the raw bytes of all parameters and buffers, or of the ``share`` that ``sample`` picks."""
        ...

    def load_dense(self, path: str, version: int) -> object:
        """Load a safetensors file through the stock loader. Asked of the oracle only."""
        ...


class Difference(NamedTuple):
    """``num_bits`` stored bits of one tensor differ between ``instance`` and the oracle."""

    instance: str
    tensor: str
    num_bits: int


@dataclass(frozen=True, slots=True)
class Verifier:
    """Compares ``instances`` with ``oracle``; dumps go to ``folder``, which is overwritten each time.

    Below 1, ``share`` is the part of the tensors that is compared, another one for each version; which
    one follows from ``seed`` and the version alone, so that any process can be asked again.
    A process that restarts meanwhile is waited for until ``deadline_s``: its bytes count only if the
    same process served the version before and after it wrote them. With ``members`` one that is none, and
    does not serve the version, is left out; so is one that has not answered for ``away_s`` (None: never).
    """

    oracle: Instance
    instances: Mapping[str, Instance]
    folder: Path
    deadline_s: float = 120.0
    pause_s: float = 0.1
    share: float = 1.0
    seed: int = 0
    members: Members | None = None
    away_s: float | None = None

    def verify(self, dense: Path, version: int) -> list[Difference]:
        """Differences of every instance after the refit to ``version``, whose weights are in ``dense``.

        Raises:
            VerificationError: an instance holds other tensors than the oracle.
            Unreachable: a process did not serve ``version`` within the deadline, or no instance is left.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        end = time.monotonic() + self.deadline_s
        parties = {ORACLE: self.oracle, **self.instances}
        with ThreadPoolExecutor(len(parties)) as pool:
            tasks = [
                pool.submit(
                    self._dump_patiently, name, party, dense if name == ORACLE else None, version, end
                )
                for name, party in parties.items()
            ]
            dumped = dict(zip(parties, [task.result() for task in tasks], strict=True))
        paths = {name: path for name, path in dumped.items() if path is not None}
        expected = read_dump(paths.pop(ORACLE))
        if not paths:
            raise Unreachable(f"no instance is left that serves version {version}, so none was verified")
        return [
            difference
            for name, path in paths.items()
            for difference in differences(name, read_dump(path), expected)
        ]

    def _dump_patiently(
        self, name: str, party: Instance, dense: Path | None, version: int, end: float
    ) -> Path | None:
        path, silence = self.folder / f"{name}.bin", Silence(None if dense else self.away_s)
        while True:
            asked_at = time.monotonic()
            try:
                if dense is not None:
                    party.load_dense(str(dense), version)
                if self._dump_steadily(party, path, version):
                    return path
                failure = f"it does not serve version {version}"
                silence.answered()
            except Unreachable as err:
                failure = str(err)
                if silence.is_too_long(asked_at, time.monotonic()):
                    return None
            if dense is None and self.members is not None and name not in self.members():
                return None
            if time.monotonic() >= end:
                raise Unreachable(f"{name} cannot be verified in {self.deadline_s:g} s: {failure}")
            time.sleep(self.pause_s)

    def _dump_steadily(self, party: Instance, path: Path, version: int) -> bool:
        """Dump; false unless one process served ``version`` before and after."""
        before = party.status()
        if not before.is_open or before.version != version:
            return False
        party.dump(str(path), self.share, f"{self.seed}-{version}")
        after = party.status()
        return after.is_open and (after.process, after.version) == (before.process, version)


def differences(
    instance: str, found: Mapping[str, RawTensor], expected: Mapping[str, RawTensor]
) -> list[Difference]:
    """Tensors of ``found`` whose stored bits are not the expected ones, most bits first.

    Raises:
        VerificationError: names, dtypes or shapes differ, so bits cannot be compared one to one.
    """
    if missing := sorted(set(found) ^ set(expected)):
        raise VerificationError(f"{instance}: only one of it and the oracle has {', '.join(missing[:3])}")
    result = []
    for name, tensor in found.items():
        other = expected[name]
        if (tensor.dtype, tensor.shape) != (other.dtype, other.shape):
            raise VerificationError(
                f"{instance}: {name} is {tensor.dtype}{list(tensor.shape)},"
                f" the oracle's {other.dtype}{list(other.shape)}"
            )
        num_bits = int(np.bitwise_count(tensor.data ^ other.data).sum(dtype=np.int64))
        if num_bits:
            result.append(Difference(instance, name, num_bits))
    return sorted(result, key=lambda difference: -difference.num_bits)


def refuse(found: list[Difference], version: int) -> None:
    """Stop the run if anything differs.

    Raises:
        VerificationError: names the worst tensor, its instance and its number of bits, and the total.
    """
    if not found:
        return
    worst = found[0]
    total = sum(difference.num_bits for difference in found)
    raise VerificationError(
        f"version {version}: {worst.instance} differs from a dense refit in {worst.num_bits} bits of"
        f" {worst.tensor}; {total} bits of {len(found)} tensors in all"
    )
