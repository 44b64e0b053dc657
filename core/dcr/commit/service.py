"""The coordinator as a process offers it: one request at a time, nothing kept but its epoch."""

import threading
from collections.abc import Callable

from dcr.commit.context import Context, Request, Roster, TransitionReport
from dcr.commit.coordinator import transition
from dcr.commit.driver import Driver
from dcr.commit.lifecycle import FIRST_EPOCH, admit, already_exists, create_run, resume_run
from dcr.config import CommitConfig
from dcr.errors import ConfigError, MissingObject, Unreachable
from dcr.model import Catalogue, CommitRecord, Manifest, ReceiverReport, from_json, new_nonce


class CoordinatorService:
    """Serializes requests onto the scripts. Every method may be asked again after a crash of either side.

    Call order: ``open_run`` once in each life, then ``admit`` and ``transition`` in any order.
    """

    def __init__(
        self, driver: Driver, config: CommitConfig, roster: Roster, nonce: Callable[[], str] = new_nonce
    ) -> None:
        self._driver = driver
        self._config = config
        self._roster = roster
        self._nonce = nonce
        self._lock = threading.Lock()
        self._context: Context | None = None
        self._created = False

    def open_run(self, resume: bool, catalogue: Catalogue | None = None) -> CommitRecord:
        """Create the run, or with ``resume`` take it over and finish its last commit.

        ``catalogue`` is required to create and checked when resuming, where the archive holds it.

        Raises:
            ConfigError: the run exists and ``resume`` is false; does not exist and it is true; or
                the catalogue is missing or not the run's.
        """
        with self._lock:
            return self._resume(catalogue) if resume else self._create(catalogue)

    def transition(self, step: int, parent_version: int, requester: str = "") -> TransitionReport:
        """Publish the candidate of ``step`` as ``parent_version`` + 1; see ``coordinator.transition``.

        ``requester`` is the incarnation of trainer rank 0, so that its successor need not wait.
        """
        with self._lock:
            script = transition(self._opened(), Request(step, parent_version, requester))
            outcome = self._driver.execute(script)
            manifest = from_json(
                Manifest, self._driver.archive.get_object("manifest", outcome.record.manifest)
            )
        return TransitionReport(outcome.record, manifest, outcome.acks, outcome.num_attempts)

    def admit(self, receiver: str) -> ReceiverReport:
        """Let a restarted ``receiver`` restore the committed version and serve; see ``lifecycle.admit``.

        Waits for the transition in progress, which restores the receiver by itself.
        """
        if receiver not in self._roster.receivers:
            raise ConfigError(
                f"receiver {receiver!r} is not in this run: {', '.join(self._roster.receivers)}"
            )
        with self._lock:
            return self._driver.execute(admit(self._opened(), receiver))

    def record(self) -> CommitRecord:
        """The committed record, read from the control plane."""
        return self._driver.plane.read(self._driver.run).record

    def _create(self, catalogue: Catalogue | None) -> CommitRecord:
        if self._context is not None:
            return self._created_before(catalogue)
        if catalogue is None:
            raise ConfigError("open_run: a new run needs the trainer's catalogue")
        if catalogue.run != self._driver.run:
            raise ConfigError(f"open_run: the catalogue is of run {catalogue.run}, not {self._driver.run}")
        context = self._new_context(catalogue)
        record = self._driver.execute(create_run(context, 0))
        self._context, self._created = context, True
        return record

    def _created_before(self, catalogue: Catalogue | None) -> CommitRecord:
        """A client that lost the answer to its creation asks again; anyone else is refused."""
        record = self.record()
        same = catalogue is not None and catalogue.digest() == record.catalogue
        if not (self._created and same and record.version == 0):
            raise already_exists(self._driver.run, record.version)
        return record

    def _resume(self, catalogue: Catalogue | None) -> CommitRecord:
        try:
            record = self.record()
        except MissingObject:
            raise ConfigError(f"run {self._driver.run} does not exist; start without resume=true") from None
        stored = self._driver.archive.get_object("catalogue", record.catalogue)
        context = self._new_context(catalogue or from_json(Catalogue, stored))
        self._context, record = self._driver.execute(resume_run(context))
        return record

    def _new_context(self, catalogue: Catalogue) -> Context:
        roster = self._roster
        return Context(
            self._driver.run, FIRST_EPOCH, roster.owners, roster.receivers, catalogue, self._config,
            self._nonce,
        )  # fmt: skip

    def _opened(self) -> Context:
        if self._context is None:
            raise Unreachable("this coordinator has not opened the run; call open_run first")
        return self._context
