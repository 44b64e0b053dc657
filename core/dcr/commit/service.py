"""The coordinator as a process offers it: one request at a time, nothing kept but its epoch."""

import threading
from collections.abc import Callable
from time import monotonic

from dcr.commit.context import Context, Request, Rollback, Roster, TransitionReport
from dcr.commit.coordinator import transition
from dcr.commit.driver import Driver
from dcr.commit.giving_up import rollback
from dcr.commit.lifecycle import FIRST_EPOCH, admit, already_exists, create_run, go_on, take_over
from dcr.commit.membership import check_name, grant_lease, leave_run
from dcr.commit.remote import Departures
from dcr.config import MODES, CommitConfig
from dcr.errors import ConfigError, MissingObject, Unreachable
from dcr.model import (
    AttemptId,
    Catalogue,
    CommitRecord,
    LeaseGrant,
    Manifest,
    ReceiverReport,
    from_json,
    new_nonce,
)

_LOOK_AGAIN_S = 0.2
_NOT_OPENED = "this coordinator has not opened the run; call open_run first"


class CoordinatorService:
    """Serializes requests onto the scripts. Every method may be asked again after a crash of either side.

    Call order: ``open_run`` once in each life, then the others in any order; ``renew``, ``leave`` and
    ``record`` do not wait for the rest.
    """

    def __init__(
        self,
        driver: Driver,
        config: CommitConfig,
        roster: Roster,
        nonce: Callable[[], str] = new_nonce,
        clock: Callable[[], float] = monotonic,
        departures: Departures | None = None,
    ) -> None:
        """Do nothing yet; ``departures`` is told who leaves and who comes.

        Raises:
            ConfigError: ``config.mode`` is no choice.
        """
        if config.mode not in MODES:
            raise ConfigError(f"commit.mode: {config.mode!r} is not a choice; accepted: {', '.join(MODES)}")
        self._driver = driver
        self._config = config
        self._roster = roster
        self._nonce = nonce
        self._clock = clock
        self._departures = Departures() if departures is None else departures
        self._lock = threading.Lock()
        self._context: Context | None = None  # since the run is ours, also while its commit is being finished
        self._created = False
        self._is_adrift = False

    @property
    def is_adrift(self) -> bool:
        """Whether the run may be under a later claim of this service that it gave up: take it over again."""
        return self._is_adrift

    def open_run(self, resume: bool, catalogue: Catalogue | None = None) -> CommitRecord:
        """Create the run, or with ``resume`` take it over and finish its last commit.

        Once it is taken over, requests are carried out, whether or not its last commit could be finished.

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
        self._await_members()
        with self._lock:
            script = transition(self._opened(), Request(step, parent_version, requester))
            outcome = self._driver.execute(script)
            manifest = from_json(
                Manifest, self._driver.archive.get_object("manifest", outcome.record.manifest)
            )
        return TransitionReport(outcome.record, manifest, outcome.acks, outcome.num_attempts, outcome.pauses)

    def _await_members(self) -> None:
        """Let receivers join that are just being started: once a transition has begun they have to wait."""
        self._opened()
        config = self._config
        for _ in range(int(config.collect_deadline_s / _LOOK_AGAIN_S)):
            if len(self._driver.plane.read(self._driver.run).members) >= config.min_receivers:
                return
            self._driver.pause(_LOOK_AGAIN_S)

    def admit(self, receiver: str) -> ReceiverReport:
        """Let a restarted ``receiver`` restore the committed version and serve; see ``lifecycle.admit``.

        Waits for the transition in progress, which restores the receiver by itself.

        Raises:
            ConfigError: it has a name that is not a receiver's.
        """
        check_name(receiver, self._roster.owners)
        self._departures.comes(receiver)
        with self._lock:
            return self._driver.execute(admit(self._opened(), receiver))

    def renew(self, receiver: str, incarnation: str, held: AttemptId | None) -> LeaseGrant:
        """Let ``receiver``, which stands on what ``held`` committed, serve for a while from its asking (P11).

        Waits for nothing but the control plane, so a transition in progress does not delay it.

        Raises:
            Conflict: it must not serve, or another coordinator does this now.
        """
        context = self._opened()
        state = self._driver.plane.read(self._driver.run)
        return grant_lease(context, state, receiver=receiver, incarnation=incarnation, held=held)

    def leave(self, receiver: str, incarnation: str) -> tuple[str, ...]:
        """Do without ``receiver`` from now on; the members that remain. Idempotent.

        Only from a process that will never serve again: nobody waits for its lease to run out. It does not
        wait for a transition in progress, whose present attempt fails and is repeated without it; a call that
        waits for it to come back gives up.

        Raises:
            ConfigError: it has a name that is not a receiver's.
            Conflict: ``incarnation`` is not known to be the process of that name; it is evicted in time.
        """
        check_name(receiver, self._roster.owners)
        members = self._driver.execute(leave_run(self._opened(), receiver, incarnation)).members
        self._departures.leaves(receiver)
        return members

    def rollback(self) -> Rollback:
        """Have every member serve the committed version again, whatever it holds; see ``giving_up.rollback``.

        Waits for the transition in progress.
        """
        with self._lock:
            return self._driver.execute(rollback(self._opened()))

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
        try:
            context, state = self._driver.execute(take_over(context))
        except ConfigError:
            raise  # nothing was claimed
        except Exception:  # whatever it was, the claim may have landed
            self._is_adrift = self._context is not None
            raise
        self._context, self._is_adrift = context, False
        return self._driver.execute(go_on(context, state))

    def _new_context(self, catalogue: Catalogue) -> Context:
        roster = self._roster
        return Context(
            self._driver.run, FIRST_EPOCH, roster.owners, roster.receivers, catalogue, self._config,
            self._nonce, self._clock,
        )  # fmt: skip

    def _opened(self) -> Context:
        if self._context is None:
            raise Unreachable(_NOT_OPENED)
        return self._context
