"""Counting differing bits: every instance against one that only the stock loader has ever filled.

After each refit the oracle process loads the gathered dense candidate, every instance dumps the raw
storage of all its parameters and buffers, and the bytes are compared.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from dcr_adapters.hf.dump import RawTensor, read_dump
from dcr_recipes.errors import VerificationError

ORACLE = "oracle"


class Instance(Protocol):
    """What verification asks of a serving process; see ``dcr_adapters.hf.worker``."""

    def dump(self, path: str) -> int:
        """Write the raw bytes of every parameter and buffer."""
        ...


class Oracle(Instance, Protocol):
    """The instance that never takes a delta."""

    def load_dense(self, path: str, version: int) -> object:
        """Load a safetensors file through the stock loader."""
        ...


class Difference(NamedTuple):
    """``num_bits`` stored bits of one tensor differ between ``instance`` and the oracle."""

    instance: str
    tensor: str
    num_bits: int


@dataclass(frozen=True, slots=True)
class Verifier:
    """Compares ``instances`` with ``oracle``; dumps go to ``folder``, which is overwritten each time."""

    oracle: Oracle
    instances: Mapping[str, Instance]
    folder: Path

    def verify(self, dense: Path, version: int) -> list[Difference]:
        """Differences of every instance after the refit to ``version``, whose weights are in ``dense``.

        Raises:
            VerificationError: an instance holds other tensors than the oracle.
        """
        self.folder.mkdir(exist_ok=True)
        self.oracle.load_dense(str(dense), version)
        parties: dict[str, Instance] = {ORACLE: self.oracle, **self.instances}
        paths = {name: self.folder / f"{name}.bin" for name in parties}
        with ThreadPoolExecutor(len(parties)) as pool:
            list(pool.map(lambda name: parties[name].dump(str(paths[name])), parties))
        expected = read_dump(paths[ORACLE])
        return [
            difference
            for name in self.instances
            for difference in differences(name, read_dump(paths[name]), expected)
        ]


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
