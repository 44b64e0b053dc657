"""Request gate of an inference engine that serves by itself (paper section 7, DESIGN R19).

The engine freezes requests in flight and takes new ones without running them. Opening after a change forgets
every cached key and value, so that kept requests go on from their tokens: what they have said stays, and
the next token is computed by the new weights alone.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from dcr.errors import IntegrityError
from dcr.receiver.gate import ServingGate
from dcr.receiver.workers.control import EngineControl


class EngineGate:
    """Implements ``RequestGate`` for an engine that serves by itself. Thread-safe.

    The engine runs until the first ``close``; version -1 before the first ``open``.
    """

    def __init__(self, control: EngineControl) -> None:
        self._control = control
        self._lock = threading.Lock()
        self._closed = False
        self._version = -1

    @property
    def is_open(self) -> bool:
        """Whether requests are computed now."""
        return not self._closed and self._version >= 0

    @property
    def version(self) -> int:
        """Version of the last opening; -1 before the first."""
        return self._version

    def close(self) -> None:
        """Return when no step of the model runs; kept requests wait. Idempotent. Raises Unreachable."""
        with self._lock:
            self._control.pause()
            self._closed = True

    def open(self, version: int, *, changed: bool) -> None:
        """Let kept and new requests run on ``version``.

        Raises:
            IntegrityError: weights changed while requests were computed.
            Unreachable: the engine is dead; the gate stays closed.
        """
        with self._lock:
            if self.is_open and version == self._version:
                return
            if changed:
                if not self._closed:
                    raise IntegrityError(f"weights became version {version} while requests were computed")
                self._control.reset_caches()
            self._control.set_version(str(version))
            self._control.resume()
            self._version = version
            self._closed = False


class OfflineGate:
    """Implements ``RequestGate`` for an offline ``LLM``: ``generate`` runs inside ``generating``."""

    def __init__(
        self, control: EngineControl, *, admit_deadline_s: float = 600.0, drain_deadline_s: float = 600.0
    ) -> None:
        self._control = control
        self._gate = ServingGate(admit_deadline_s=admit_deadline_s, drain_deadline_s=drain_deadline_s)
        self._gate.on_change(control.reset_caches)

    @property
    def is_open(self) -> bool:
        """Whether ``generating`` would be entered now."""
        return self._gate.is_open

    @property
    def version(self) -> int:
        """Version of the last opening; -1 before the first."""
        return self._gate.version

    def close(self) -> None:
        """See ``ServingGate.close``."""
        self._gate.close()

    def open(self, version: int, *, changed: bool) -> None:
        """See ``ServingGate.open``; answers then name ``version``."""
        if not (self._gate.is_open and version == self._gate.version):
            self._control.set_version(str(version))
        self._gate.open(version, changed=changed)

    @contextmanager
    def generating(self) -> Iterator[int]:
        """Hold the gate open for one call of ``LLM.generate``; yields its version. Raises Unreachable."""
        with self._gate.enter() as version:
            yield version
