"""Request gate of one serving process (paper section 7, DESIGN R19, P11).

Requests enter and leave; a transition closes the gate, waits for those in flight, writes, and opens
it again. A request sees one version from its first token to its last. Under a lease an answer leaves only
while that is valid: else the run may have gone on without this process.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dcr.errors import AttemptFailed, IntegrityError, Unreachable
from dcr.receiver.lease import Lease
from dcr.receiver.ports import RequestGate


class ServingGate:
    """Implements ``dcr.receiver.ports.RequestGate`` for threads. Starts closed, at no version (-1).

    ``admit_deadline_s`` is how long a request waits at a closed gate: short, so that its sender may ask
    another instance. ``drain_deadline_s`` is how long ``close`` waits for requests in flight (P12).
    ``inner`` is the gate of an engine behind this one: it closes after this one and opens before it.
    ``lease`` None: no lease is needed; ``serve_under`` gives one later.
    """

    def __init__(
        self,
        inner: RequestGate | None = None,
        *,
        admit_deadline_s: float = 5.0,
        drain_deadline_s: float = 60.0,
        lease: Lease | None = None,
    ) -> None:
        self._inner = inner
        self._admit_deadline_s = admit_deadline_s
        self._drain_deadline_s = drain_deadline_s
        self._turn = threading.Lock()
        """Held by who closes or opens; the inner gate moves under it alone, which may take long."""
        self._moved = threading.Condition()
        self._open = False
        self._version = -1
        self._in_flight = 0
        self._clear_caches: list[Callable[[], None]] = []
        self._lease: Lease | None = None
        if lease is not None:
            self.serve_under(lease)

    def serve_under(self, lease: Lease) -> None:
        """Admit and answer only while ``lease`` is valid. Before the first request."""
        self._lease = lease
        lease.on_extend(self._notify)

    @property
    def is_open(self) -> bool:
        """Whether a request would be admitted now."""
        return self._open and self._may_serve()

    @property
    def version(self) -> int:
        """Version of the last opening; -1 before the first."""
        return self._version

    def on_change(self, clear: Callable[[], None]) -> None:
        """Register ``clear``, to be called before the first request that could see changed weights."""
        with self._moved:
            self._clear_caches.append(clear)

    def close(self) -> None:
        """Admit no further request and return when none is in flight. Idempotent.

        Raises:
            AttemptFailed: requests are still in flight after the drain deadline; the gate stays closed.
        """
        with self._turn:
            with self._moved:
                self._open = False
                drained = self._moved.wait_for(lambda: self._in_flight == 0, self._drain_deadline_s)
                if not drained:
                    raise AttemptFailed(
                        f"{self._in_flight} requests still in flight after {self._drain_deadline_s:g} s"
                    )
            if self._inner is not None:
                self._inner.close()

    def open(self, version: int, *, changed: bool) -> None:
        """Admit requests again; answers carry ``version``. Opening an open gate at its version is no event.

        Raises:
            IntegrityError: weights changed while requests were admitted or in flight.
        """
        with self._turn:
            if self._open and version == self._version:
                return
            if changed:
                self._clear_for(version)
            if self._inner is not None:
                self._inner.open(version, changed=changed)
            with self._moved:
                self._version = version
                self._open = True
                self._moved.notify_all()
        if not self._may_serve():
            self._want_lease()

    @contextmanager
    def enter(self) -> Iterator[int]:
        """Hold the gate open for one request; yields the version that the whole request is served with.

        Raises:
            Unreachable: the gate stayed closed, or without a lease, for the admission deadline; or the lease
                has run out at the end of the block, whose answer must be dropped.
        """
        if not self._may_serve():
            self._want_lease()
        with self._moved:
            if not self._moved.wait_for(self._admits, self._admit_deadline_s):
                why = "without a lease" if self._open else "closed"
                raise Unreachable(f"gate {why} for {self._admit_deadline_s:g} s; ask another instance")
            self._in_flight += 1
            version = self._version
        try:
            yield version
        finally:
            with self._moved:
                self._in_flight -= 1
                self._moved.notify_all()
        if not self._may_serve():
            self._want_lease()
            raise Unreachable("the lease ran out while this was answered; ask another instance")

    def _admits(self) -> bool:
        return self._open and self._may_serve()

    def _may_serve(self) -> bool:
        return self._lease is None or self._lease.valid()

    def _want_lease(self) -> None:
        if self._lease is not None:
            self._lease.want()

    def _notify(self) -> None:
        with self._moved:
            self._moved.notify_all()

    def _clear_for(self, version: int) -> None:
        with self._moved:
            if self._open or self._in_flight:
                raise IntegrityError(f"weights became version {version} while requests used {self._version}")
            clears = tuple(self._clear_caches)
        for clear in clears:  # nobody is admitted before who closes or opens has had its turn
            clear()
