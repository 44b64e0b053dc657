"""``refit=dcr``: the trainer's loop on top of ``dcr.Refit``."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from dcr.errors import AttemptFailed, Conflict, Unreachable
from dcr.refit import Refit, SyncReport
from dcr_recipes.members import Members
from dcr_recipes.refitter import Audit, Figures, Position
from dcr_recipes.verify import Status

logger = logging.getLogger(__name__)
_PAUSE_S = 0.2


class Serving(Protocol):
    """A runtime instance and its place in the run."""

    def status(self) -> Status:
        """Answer without waiting."""
        ...

    def admit(self) -> object:
        """Have the coordinator bring it to the committed version, restored and proven if need be."""
        ...


@dataclass(frozen=True, slots=True)
class DeltaRefitter:
    """One rank's refit. ``resume``: whatever run the run folder holds is ours to take over.

    ``instances`` are asked by rank 0 only and are empty elsewhere; one that does not serve is waited for
    until ``patience_s``, and so is one that has never served (an engine takes its time to start). With
    ``members`` one that has been left out of the run is not waited for.
    """

    refit: Refit
    resume: bool
    instances: Mapping[str, Serving]
    patience_s: float = 120.0
    seen: set[str] = field(default_factory=set)
    members: Members | None = None

    @property
    def reads_export(self) -> bool:
        """Owners read their own shards; the gathered candidate only serves verification."""
        return False

    def open(self) -> Position:
        """Join the run; all ranks get rank 0's answer, which no transition can overtake any more."""
        import torch
        import torch.distributed as dist

        record = self.refit.open(resume=self.resume)
        position = torch.tensor([record.version, record.step])
        dist.broadcast(position, src=0)
        return Position(*position.tolist())

    def serve(self, version: int) -> None:
        """Have instances repaired that a transition whose candidate is gone has left closed (P5)."""
        members = None if self.members is None else self.members()
        for name, instance in self.instances.items():
            if members is not None and name not in members:
                continue
            starts = name not in self.seen
            bring_to(name, instance, version, patience_s=self.patience_s, starts=starts)
            self.seen.add(name)

    def sync(self, step: int, parent: int) -> Figures:
        """Publish the changed bits."""
        return self._figures(self.refit.sync(step))

    def audit(self) -> Audit:
        """The table that the record names; the same on every rank."""
        return Audit(self.refit.audit(), self.refit.audit_key)

    def last(self) -> Figures:
        """Figures of the committed version, from the archive."""
        return self._figures(self.refit.last())

    def _figures(self, report: SyncReport) -> Figures:
        """v0 has no required receivers: whoever is to serve it restores it."""
        required = report.required if report.record.version else tuple(self.instances)
        left_out = tuple(name for name in self.instances if name not in required)
        if left_out:
            logger.warning("version %d is without %s", report.record.version, ", ".join(left_out))
        return _figures(report, left_out)


def bring_to(name: str, instance: Serving, version: int, *, patience_s: float, starts: bool = False) -> None:
    """Return when ``instance`` serves ``version``, or is away: a restarted one asks for itself.

    ``starts``: it has not been seen yet, so that its being away means that it is not up.

    Raises:
        Unreachable: it can be reached, but was not brought to ``version`` in time.
    """
    end, why = time.monotonic() + patience_s, ""
    while True:
        try:
            status = instance.status()
        except Unreachable:
            if not starts or time.monotonic() >= end:
                return
            time.sleep(_PAUSE_S)
            continue
        if status.is_open and status.version == version:
            return
        if why and time.monotonic() >= end:
            raise Unreachable(f"{name} was not brought to version {version}: {why}")
        why = _admitted(name, instance, version)
        time.sleep(_PAUSE_S)


def _admitted(name: str, instance: Serving, version: int) -> str:
    """Ask the coordinator to bring ``instance`` to ``version``; why it may not serve that yet."""
    try:
        instance.admit()
    except (AttemptFailed, Conflict, Unreachable) as err:
        logger.warning("%s is not at version %d yet: %s", name, version, err)
        return str(err)
    return "it is admitted, but has no lease yet"


def _figures(report: SyncReport, left_out: tuple[str, ...]) -> Figures:
    return Figures(
        version=report.record.version,
        num_changed=report.num_changed,
        num_elements=report.num_elements,
        payload_bytes=report.payload_bytes,
        dense_bytes=report.dense_bytes,
        seconds=report.seconds,
        num_attempts=report.num_attempts,
        manifest=report.record.manifest,
        left_out=left_out,
        pause_s=max(report.pauses.values(), default=None),
    )
