"""Request gate of an inference engine that serves by itself (paper section 7, DESIGN R19).

The engine freezes requests in flight and takes new ones without running them. Opening after a change forgets
every cached key and value, so that kept requests go on from their tokens: what they have said stays, and
the next token is computed by the new weights alone.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from dcr.errors import IntegrityError, RefitError
from dcr.receiver.gate import ServingGate
from dcr.receiver.lease import Lease
from dcr.receiver.workers.control import ControlClosed, EngineControl, Lends, OfflineEngine

_log = logging.getLogger(__name__)
_LOOK_S = 0.5
"""Between two looks at the lease, which may also end, or run out while the machine sleeps."""


class EngineGate:
    """Implements ``RequestGate`` for an engine that serves by itself. Thread-safe.

    The engine runs until the first ``close``; version -1 before the first ``open``. Under a lease it runs
    only while that is valid, too.
    """

    def __init__(self, control: EngineControl) -> None:
        self._control = control
        self._lock = threading.Lock()
        self._closed = False
        self._runs: bool | None = True
        """None: what it was told last was not answered, and may have been done or not, or be done yet."""
        self._version = -1
        self._lease: Lease | None = None
        self._moved = threading.Event()

    @property
    def is_open(self) -> bool:
        """Whether requests are computed now."""
        return self._opened and self._runs is True and self._may_run()

    @property
    def version(self) -> int:
        """Version of the last opening; -1 before the first."""
        return self._version

    def serve_under(self, lease: Lease) -> None:
        """Pause the engine while ``lease`` is not valid, from a thread of its own. Before the first request.

        An engine with a front of its own (``Lends``) also refuses by itself: whoever looks after the lease
        may be suspended while the engine runs on.

        Raises:
            ConfigError: that front does not look at leases.
            Unreachable: it does not answer.
        """
        self._lend(lease)
        self._lease = lease
        lease.on_extend(self._moved.set)
        threading.Thread(target=self._watch, args=(lease,), name="engine lease", daemon=True).start()

    def follow_lease(self) -> None:
        """Pause or resume the engine as the lease has it; the thread of ``serve_under`` calls this.

        Raises:
            Unreachable: the engine does not answer; to be called again.
        """
        with self._lock:
            runs = self._opened and self._may_run()
            if self._runs is not runs and (self._opened or self._runs is None):
                self._let(runs=runs)

    def close(self) -> None:
        """Return when no step of the model runs; kept requests wait. Idempotent. Raises Unreachable."""
        with self._lock:
            self._closed = (
                True  # first: if the answer is lost the engine may stand still, and must be resumed
            )
            self._let(runs=False)

    def open(self, version: int, *, changed: bool) -> None:
        """Let kept and new requests run on ``version``, as soon as there is a lease where one is needed.

        Raises:
            IntegrityError: weights changed while requests were computed.
            Unreachable: the engine is dead; the gate stays closed.
        """
        with self._lock:
            if self._opened and version == self._version:
                return
            if changed:
                if not self._closed:
                    raise IntegrityError(f"weights became version {version} while requests were computed")
                if self._runs is not False:  # an earlier opening was not answered
                    self._let(runs=False)
                self._control.reset_caches()
            self._control.set_version(str(version))
            runs = self._may_run()
            if runs or self._runs is not False:
                self._let(runs=runs)
            self._version, self._closed = version, False
        self._moved.set()

    @property
    def _opened(self) -> bool:
        return not self._closed and self._version >= 0

    def _let(self, *, runs: bool) -> None:
        self._runs = None
        (self._control.resume if runs else self._control.pause)()
        self._runs = runs

    def _may_run(self) -> bool:
        return self._lease is None or self._lease.valid()

    def _lend(self, lease: Lease) -> None:
        if isinstance(self._control, Lends):
            self._control.lend(lease.left_s)

    def _watch(self, lease: Lease) -> None:
        lent = lease.until
        while True:
            left_s = lease.left_s()
            self._moved.wait(min(_LOOK_S, left_s) if left_s > 0 else _LOOK_S)
            self._moved.clear()
            if self._opened and not lease.valid():
                lease.want()
            try:
                if (until := lease.until) != lent:
                    self._lend(lease)
                    lent = until
                self.follow_lease()
            except ControlClosed:
                return
            except RefitError as err:
                _log.warning("the engine was not told of its lease, trying again: %s", err)


class OfflineGate:
    """Implements ``RequestGate`` for an offline ``LLM``: ``generate`` runs inside ``generating``."""

    def __init__(
        self, control: OfflineEngine, *, admit_deadline_s: float = 600.0, drain_deadline_s: float = 600.0
    ) -> None:
        self._control = control
        self._gate = ServingGate(
            _Named(control), admit_deadline_s=admit_deadline_s, drain_deadline_s=drain_deadline_s
        )
        self._gate.on_change(control.reset_caches)

    @property
    def is_open(self) -> bool:
        """Whether ``generating`` would be entered now."""
        return self._gate.is_open

    @property
    def version(self) -> int:
        """Version of the last opening; -1 before the first."""
        return self._gate.version

    def serve_under(self, lease: Lease) -> None:
        """See ``ServingGate.serve_under``."""
        self._gate.serve_under(lease)

    def close(self) -> None:
        """See ``ServingGate.close``."""
        self._gate.close()

    def open(self, version: int, *, changed: bool) -> None:
        """See ``ServingGate.open``; answers then name ``version``."""
        self._gate.open(version, changed=changed)

    @contextmanager
    def generating(self) -> Iterator[int]:
        """Hold the gate open for one call of ``LLM.generate``, alone; yields its version. Raises Unreachable.

        Calls of other threads (a fence's, an audit's) wait until it has ended, and it waits for theirs.
        """
        with self._gate.enter() as version, self._control.alone():
            yield version


class _Named:
    """The gate behind an offline gate: tells the engine the name of its version once it may change."""

    def __init__(self, control: EngineControl) -> None:
        self._control = control
        self._version = -1

    def close(self) -> None:
        """Nothing runs between two calls of ``generate``."""

    def open(self, version: int, *, changed: bool) -> None:
        """Set the version, unless requests in flight, which a failed ``close`` left, name it already."""
        if version != self._version:
            self._control.set_version(str(version))
            self._version = version
