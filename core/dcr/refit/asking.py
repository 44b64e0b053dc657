"""What trainer rank 0 asks of the coordinator, whichever is active and whatever becomes of it meanwhile."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from dcr.commit.context import TransitionReport
from dcr.commit.remote import LOOK_AGAIN_S, Party
from dcr.errors import ConfigError, Conflict, MissingObject, OutcomeUnknown, StoreError, Unreachable
from dcr.model import Catalogue, CommitRecord, Manifest, OwnerClose, from_json
from dcr.transport.base import Archive

_LEAST_S = 1.0


@dataclass(frozen=True, slots=True)
class Asker:
    """Requests that may be made again until they are answered: they are idempotent.

    ``incarnation`` is that of the trainer rank that asks.
    """

    coordinator: Party
    archive: Archive
    catalogue: Catalogue
    incarnation: str

    def create_run(self, anchor: Callable[[], OwnerClose | None], deadline_s: float) -> None:
        """Create the run; ``anchor`` tells what this rank has published of it, if it has.

        Raises:
            ConfigError: it exists, and not because this trainer has just created it.
            Unreachable: no coordinator answered within ``deadline_s``.
        """
        try:
            self._open_run(resume=False, deadline_s=deadline_s)
        except ConfigError:
            if not self._is_made_of(anchor()):
                raise
            self.resume_run(deadline_s)  # created, but the coordinator died before it could say so

    def resume_run(self, deadline_s: float) -> None:
        """Have the coordinator take the run over; raises as ``CoordinatorService.open_run``."""
        self._open_run(resume=True, deadline_s=deadline_s)

    def transition(self, step: int, parent_version: int, patience_s: float) -> TransitionReport:
        """Have the presented candidate of ``step`` published as ``parent_version`` + 1.

        If the coordinator dies in between, or cannot find out how its commit ended, it or its successor is
        asked again: whoever coordinates has taken the run over by itself, so that what was under way can no
        longer land, and looks whether it did.

        Raises:
            Conflict: another version is committed.
            AttemptFailed: the transition was given up.
            Unreachable, OutcomeUnknown: no answer within ``patience_s``, or for ``fence_deadline_s`` nothing
                but errors of the store, in which parties find one another.
        """
        end = time.monotonic() + patience_s
        store_end: float | None = None
        while True:
            left_s = max(end - time.monotonic(), _LEAST_S)
            try:
                return self._transition(step, parent_version, left_s)
            except Conflict as err:
                message = f"step {step} on version {parent_version}: {err}; resume from the record"
                raise Conflict(message) from err
            except (Unreachable, OutcomeUnknown):
                if time.monotonic() > end:
                    raise
                store_end = None
            except StoreError as err:
                store_end = store_end or time.monotonic() + self.coordinator.config.fence_deadline_s
                if time.monotonic() > store_end:
                    raise Unreachable(f"step {step}: the coordinator cannot be asked: {err}") from err
            time.sleep(LOOK_AGAIN_S)

    def _transition(self, step: int, parent_version: int, deadline_s: float) -> TransitionReport:
        return self.coordinator.now(
            "transition", TransitionReport, deadline_s,
            step=step, parent_version=parent_version, requester=self.incarnation,
        )  # fmt: skip

    def _open_run(self, *, resume: bool, deadline_s: float) -> None:
        self.coordinator.patiently(
            "open_run", CommitRecord, deadline_s, resume=resume, catalogue=self.catalogue
        )

    def _is_made_of(self, anchor: OwnerClose | None) -> bool:
        """Whether the record is v0 of a run whose manifest lists, payload by payload, what we published."""
        try:
            deadline_s = self.coordinator.config.fence_deadline_s
            record = self.coordinator.patiently("record", CommitRecord, deadline_s)
        except MissingObject:
            return False
        if record.version != 0 or record.catalogue != self.catalogue.digest():
            return False
        manifest = from_json(Manifest, self.archive.get_object("manifest", record.manifest))
        return anchor is not None and anchor in manifest.owners
