"""``refit=dense``: every byte of every version goes to every runtime: the baseline to compare with."""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dcr.errors import Unreachable
from dcr.model import stored_bits
from dcr_recipes.layout import RunFolder
from dcr_recipes.recorder import dense_path
from dcr_recipes.refitter import Figures, Position
from dcr_recipes.summary import write_atomically
from dcr_recipes.verify import Instance

_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class DenseRefitter:
    """Loads whole versions, which the loop has exported. Instances are asked by rank 0 only.

    One that is away is waited for until ``patience_s``.

    A file plays the part of the commit record: it is replaced when every instance serves the version.
    """

    folder: RunFolder
    instances: Mapping[str, Instance]
    rank: int
    patience_s: float = 120.0

    @property
    def reads_export(self) -> bool:
        """Instances load the file of the gathered candidate."""
        return True

    def open(self) -> Position:
        """What was last served everywhere; version 0 at step 0 in a new run."""
        if not self._record.exists():
            return Position(0, 0)
        return Position(**json.loads(self._record.read_text()))

    def serve(self, version: int) -> None:
        """Load ``version`` into every instance that does not serve it; returns when all have."""
        import torch.distributed as dist

        if self.rank == 0:
            for name, instance in self.instances.items():
                load_patiently(
                    name, instance, dense_path(self.folder, version), version, patience_s=self.patience_s
                )
        dist.barrier()

    def sync(self, step: int, parent: int) -> Figures:
        """Load the present weights everywhere as the next version."""
        start = time.perf_counter()
        self.serve(parent + 1)
        seconds = time.perf_counter() - start
        if self.rank == 0:
            write_atomically(self._record, json.dumps(asdict(Position(parent + 1, step))))
        return self._figures(parent + 1, seconds)

    def audit(self) -> None:
        """Dense refits keep no digests of what they served."""
        return

    def last(self) -> Figures:
        """What the two newest files tell."""
        return self._figures(self.open().version, None)

    @property
    def _record(self) -> Path:
        return self.folder.dense / "served.json"

    def _figures(self, version: int, seconds: float | None) -> Figures:
        if self.rank != 0:
            return Figures(version, 0, 0, 0, 0, seconds, None)
        counts = count_changes(dense_path(self.folder, version - 1), dense_path(self.folder, version))
        attempts = None if seconds is None else 1
        return Figures(
            version, counts.changed, counts.elements, counts.num_bytes, counts.num_bytes, seconds, attempts
        )


class Counts(NamedTuple):
    """Elements of a version that differ in their stored bits from its predecessor, elements, and bytes."""

    changed: int
    elements: int
    num_bytes: int


def count_changes(before: Path, after: Path) -> Counts:
    """Compare two dense candidates (safetensors with the same names and shapes) on their stored bits."""
    from safetensors import safe_open

    changed = elements = num_bytes = 0
    with safe_open(before, framework="pt") as old, safe_open(after, framework="pt") as new:
        for name in new.keys():  # noqa: SIM118 -- not a dict
            ours, theirs = stored_bits(new.get_tensor(name)), stored_bits(old.get_tensor(name))
            changed += int(np.count_nonzero(ours != theirs))
            elements += ours.size
            num_bytes += ours.nbytes
    return Counts(changed, elements, num_bytes)


def load_patiently(name: str, instance: Instance, dense: Path, version: int, *, patience_s: float) -> None:
    """Have ``instance`` serve ``version`` from the file ``dense``, unless it does; wait while it restarts.

    Raises:
        Unreachable: it stayed away.
    """
    end = time.monotonic() + patience_s
    while True:
        try:
            status = instance.status()
            if status.version != version or not status.is_open:
                instance.load_dense(str(dense), version)
        except Unreachable as err:
            if time.monotonic() >= end:
                raise Unreachable(
                    f"{name} did not load version {version} in {patience_s:g} s: {err}"
                ) from err
            time.sleep(_PAUSE_S)
        else:
            return
