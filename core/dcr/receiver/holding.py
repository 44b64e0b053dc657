"""What one instance's resident storage holds, and whether it is served (DESIGN P8)."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dcr import observe
from dcr.errors import AttemptFailed, RefitError, UnsupportedPath
from dcr.model import CommitRecord, ReceiverState
from dcr.receiver import rules
from dcr.receiver.ports import RequestGate
from dcr.receiver.proof import Prover
from dcr.receiver.rank import LOSES_BITS
from dcr.receiver.writer import Writer

if TYPE_CHECKING:
    from dcr.receiver.session import Session

_log = logging.getLogger(__name__)


class Holding:
    """Standing, record and gate of one instance; ``lock`` guards them and every write.

    ``record`` is that of the clean version, else None. ``classification`` is what prewarm said last.
    ``changed``: something was written since the gate last served. ``num_standings`` counts changes.
    ``lost`` is set while the instance has taken itself out and nobody has repaired it. ``pause_s``: how long
    the gate was shut by the last transition, None while it is.
    """

    def __init__(self, name: str, writer: Writer, prover: Prover, gate: RequestGate) -> None:
        """Prewarm, unless ``writer`` has been, and shut the gate. Raises UnsupportedPath."""
        self.lock = threading.RLock()
        self.standing = rules.EMPTY
        self.record: CommitRecord | None = None
        self.session: Session | None = None
        self.changed = True
        self.num_standings = 0
        self.lost = threading.Event()
        self.classification = writer.prewarm()
        _warn_of_lost_bits(name, writer)
        self._name = name
        self._writer = writer
        self._prover = prover
        self.pause_s: float | None = None
        self._shut_ns: int | None = None
        self._gate = gate
        gate.close()

    @contextmanager
    def clean(self) -> Iterator[CommitRecord | None]:
        """Nothing is written inside the block; gives the record of the clean version, None without one.

        A storage that the runtime rebuilt meanwhile is learned and proven first.
        """
        with self.lock:
            if self.standing.state is ReceiverState.CLEAN:
                self.notice_rebuilt()
            yield self.record if self.standing.state is ReceiverState.CLEAN else None

    def stand(self, standing: rules.Standing, record: CommitRecord | None = None) -> None:
        """Take on a standing that no open attempt writes to; what is not proven is not served."""
        self.standing = standing
        self.num_standings += 1
        self.record = record if standing.state is ReceiverState.CLEAN else None
        if standing.state is not ReceiverState.MIXED:
            self.session = None
        if standing.state is ReceiverState.CLEAN:
            self.lost.clear()
        if standing.state is ReceiverState.EMPTY:
            self._gate.close()

    def shut_gate(self) -> None:
        """Serve no more, and return when nothing is in flight; the pause begins. Raises AttemptFailed."""
        if self._shut_ns is None:
            self._shut_ns = time.perf_counter_ns()
            self.pause_s = None
        self._gate.close()

    def open_gate(self) -> None:
        """Serve, if what is held may be served; the pause, if there was one, ends."""
        if not rules.may_open_gate(self.standing):
            return
        self._gate.open(self.standing.version, changed=self.changed)
        self.changed = False
        if self._shut_ns is not None:
            self.pause_s = (time.perf_counter_ns() - self._shut_ns) / 1e9
            observe.interval("receiver.pause", self._shut_ns, version=self.standing.version)
            self._shut_ns = None

    def condemn(self, reason: str) -> int:
        """Serve no more: resident bits are not the committed ones. Inside ``clean``.

        ``lost`` is set: whoever runs this process asks the coordinator to be admitted again. Returns
        ``num_standings``, which tells whether anything happened since.
        """
        _log.error("%s takes itself out: %s", self._name, reason)
        observe.point("receiver.condemned", reason=reason)
        self.lost.set()
        try:
            self.stand(rules.EMPTY)
        except RefitError as err:  # requests in flight would not end, or an engine does not answer
            _log.error("%s: %s", self._name, err)
        return self.num_standings

    def notice_rebuilt(self) -> None:
        """Learn a rebuilt storage anew while it is clean; what cannot be proven counts as EMPTY (P8).

        Raises:
            UnsupportedPath: the rebuilt storage takes no deltas.
        """
        if self.standing.state is ReceiverState.EMPTY or not (why := self._writer.rebuilt()):
            return
        _log.warning("%s: the runtime rebuilt its storage (%s)", self._name, why)
        self.changed = True
        record = self.record if self.standing.state is ReceiverState.CLEAN else None
        if record is None:
            self.stand(rules.EMPTY)
            return
        try:
            self.classification = self._prover.relearn(record)
        except RefitError as err:
            self.condemn(str(err))
            if isinstance(err, UnsupportedPath):
                raise

    def refuse_rebuilt(self) -> None:
        """Storage that was rebuilt after the fence: the attempt's classes may be wrong for it.

        Raises:
            AttemptFailed: they are; the next fence tells those that hold now.
        """
        announced = self.classification
        self.notice_rebuilt()
        if self.classification != announced:
            raise AttemptFailed(f"{self._name}: the runtime rebuilt its storage, whose paths now differ")


def _warn_of_lost_bits(name: str, writer: Writer) -> None:
    """Say once that storage holds casts: what is served is not the version's own bits."""
    lossy = {
        tensor: choice.reason
        for rank in writer.diagnose()
        for tensor, choice in rank.tensors.items()
        if choice.reason.startswith(LOSES_BITS)
    }
    if lossy:
        _log.warning(
            "%s: %d tensors are %s. Each that changes is loaded whole, and storage holds only what the "
            "loader makes of a version; serve the dtype that the trainer publishes, e.g. --dtype bfloat16",
            name, len(lossy), "; ".join(sorted(set(lossy.values()))),
        )  # fmt: skip
