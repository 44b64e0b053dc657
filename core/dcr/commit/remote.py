"""Owners and receivers of other processes as endpoints (``dcr.commit.endpoints``).

Each call finds its party anew, so one that restarted is met at its new port. Calls that begin an
attempt or repair a run wait for a missing party until their deadline (P12); calls inside an
attempt fail at once, because a party that restarted has lost the attempt anyway. Nobody waits for a
receiver that has left. Asking twice is
harmless: every call is idempotent.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Any, Protocol, TypeVar

from dcr.commit.context import Roster
from dcr.config import CommitConfig
from dcr.errors import Unreachable
from dcr.model import (
    ApplyAck,
    AttemptId,
    Classification,
    CommitRecord,
    OwnerClose,
    OwnerReport,
    ReceiverReport,
    StagedAck,
)
from dcr.transport.peers import Peers
from dcr.transport.rpc import Client

R = TypeVar("R")
LOOK_AGAIN_S = 0.2


class Caller(Protocol):
    """One call over the network; ``HttpCaller`` is the real one."""

    def __call__(
        self, name: str, method: str, result: type[Any], deadline_s: float, params: dict[str, object]
    ) -> Any:
        """Call ``method`` of the party called ``name``.

        Raises:
            Unreachable: it is not there, or did not answer in ``deadline_s``.
            RefitError: as the party raised it.
        """
        ...


@dataclass(slots=True, eq=False)
class _Line:
    """Connections to one life of a party, and how many calls are under way on them."""

    client: Client
    num_calls: int = 0
    is_over: bool = False

    def close_if_idle(self) -> None:
        """Close what nobody will use any more."""
        if self.is_over and not self.num_calls:
            self.client.close()


class HttpCaller:
    """``Caller`` over ``dcr.transport.rpc``; the party's url is looked up for every call. Thread-safe.

    Connections to a life that is over are closed when the last call on them has ended.
    """

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._lock = threading.Lock()
        self._lines: dict[str, _Line] = {}

    def __call__(
        self, name: str, method: str, result: type[Any], deadline_s: float, params: dict[str, object]
    ) -> Any:
        """See ``Caller``."""
        peer = self._peers.find(name)
        if peer is None:
            raise Unreachable(f"{name} has not announced itself")
        line = self._taken(name, peer.url)
        try:
            return line.client.call(method, result, deadline_s=deadline_s, **params)
        finally:
            with self._lock:
                line.num_calls -= 1
                line.close_if_idle()

    def close(self) -> None:
        """Close all connections; those in use when their call has ended."""
        with self._lock:
            for name in tuple(self._lines):
                self._hang_up(name)

    def _taken(self, name: str, url: str) -> _Line:
        with self._lock:
            known = self._lines.get(name)
            if known is not None and known.client.url != url:
                self._hang_up(name)
            if name not in self._lines:
                self._lines[name] = _Line(Client(url))
            line = self._lines[name]
            line.num_calls += 1
            return line

    def _hang_up(self, name: str) -> None:
        line = self._lines.pop(name)
        line.is_over = True
        line.close_if_idle()


class Departures:
    """Names whose process has left: nobody waits for it to come back (P11). Thread-safe."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}

    def leaves(self, name: str) -> None:
        """Until ``comes`` its calls fail as soon as it cannot be reached."""
        self._names[name] = None

    def comes(self, name: str) -> None:
        """A process of this name asks to be admitted."""
        self._names.pop(name, None)

    def __contains__(self, name: str) -> bool:
        return name in self._names


class RemoteEndpoints(Mapping[str, object]):
    """A proxy for each party: the roster's owners; any other name is a receiver's, which may join (P11)."""

    def __init__(self, roster: Roster, caller: Caller, config: CommitConfig, departures: Departures) -> None:
        self._roster = roster
        self._caller = caller
        self._config = config
        self._departures = departures

    def __getitem__(self, name: str) -> object:  # type: ignore[explicit-override]  # typing.override: 3.12
        """The proxy of ``name``; whether it can be reached shows at the first call."""
        party = Party(name, self._caller, self._config, departures=self._departures)
        return RemoteOwner(party) if name in self._roster.owners else RemoteReceiver(party)

    def __iter__(self) -> Iterator[str]:  # type: ignore[explicit-override]  # typing.override: 3.12
        """Names of the roster."""
        return iter((*self._roster.owners, *self._roster.receivers))

    def __len__(self) -> int:  # type: ignore[explicit-override]  # typing.override: 3.12
        """How many the roster names."""
        return len(self._roster.owners) + len(self._roster.receivers)


def remote_endpoints(
    roster: Roster, caller: Caller, config: CommitConfig, departures: Departures | None = None
) -> Mapping[str, object]:
    """The ``endpoints`` of a ``Driver``; receivers that the roster does not name are found too."""
    return RemoteEndpoints(roster, caller, config, Departures() if departures is None else departures)


@dataclass(frozen=True, slots=True)
class Party:
    """A party's name and how to reach it."""

    name: str
    caller: Caller
    config: CommitConfig
    clock: Callable[[], float] = monotonic
    pause: Callable[[float], None] = sleep
    departures: Departures = field(default_factory=Departures)

    def now(self, method: str, result: type[R], deadline_s: float, **params: object) -> R:
        """One try."""
        answer: R = self.caller(self.name, method, result, deadline_s, params)
        return answer

    def patiently(self, method: str, result: type[R], deadline_s: float, **params: object) -> R:
        """Try until the party answers, the deadline has passed, or it is not there and has left."""
        end = self.clock() + deadline_s
        while True:
            left = max(end - self.clock(), LOOK_AGAIN_S)
            try:
                return self.now(method, result, left, **params)
            except Unreachable:
                if self.clock() >= end or self.name in self.departures:
                    raise
            self.pause(min(LOOK_AGAIN_S, max(end - self.clock(), 0.0)))


@dataclass(frozen=True, slots=True)
class RemoteOwner:
    """``OwnerEndpoint`` of a trainer rank in another process."""

    party: Party

    def collect(self, step: int | None) -> OwnerReport:
        """See ``OwnerEndpoint.collect``."""
        deadline = self.party.config.collect_deadline_s
        return self.party.patiently("collect", OwnerReport, deadline, step=step)

    def anchor(self) -> OwnerClose:
        """See ``OwnerEndpoint.anchor``."""
        return self.party.patiently("anchor", OwnerClose, self.party.config.construct_deadline_s)

    def fence(self, attempt: AttemptId, record: CommitRecord) -> OwnerReport:
        """See ``OwnerEndpoint.fence``."""
        deadline = self.party.config.fence_deadline_s
        return self.party.patiently("fence", OwnerReport, deadline, attempt=attempt, record=record)

    def construct(
        self,
        attempt: AttemptId,
        record: CommitRecord,
        overwrite_only: bool,
        classification: Classification,
        dense: bool = False,
        since: int | None = None,
    ) -> OwnerClose:
        """See ``OwnerEndpoint.construct``."""
        return self.party.now(
            "construct", OwnerClose, self.party.config.construct_deadline_s,
            attempt=attempt, record=record, overwrite_only=overwrite_only, classification=classification,
            dense=dense, since=since,
        )  # fmt: skip

    def stop_and_wait(self, attempt: AttemptId) -> None:
        """See ``OwnerEndpoint.stop_and_wait``."""
        deadline = self.party.config.fence_deadline_s
        self.party.now("stop_and_wait", type(None), deadline, attempt=attempt)

    def fold_in(self, attempt: AttemptId, record: CommitRecord) -> OwnerReport:
        """See ``OwnerEndpoint.fold_in``."""
        deadline = self.party.config.fold_in_deadline_s
        return self.party.patiently("fold_in", OwnerReport, deadline, attempt=attempt, record=record)


@dataclass(frozen=True, slots=True)
class RemoteReceiver:
    """``ReceiverEndpoint`` of a runtime instance in another process."""

    party: Party

    def _patience_s(self, deadline_s: float) -> float:
        return self.party.config.patience_s(deadline_s)

    def fence(self, attempt: AttemptId, record: CommitRecord) -> ReceiverReport:
        """See ``ReceiverEndpoint.fence``."""
        deadline = self._patience_s(self.party.config.fence_deadline_s)
        return self.party.patiently("fence", ReceiverReport, deadline, attempt=attempt, record=record)

    def restore(self, attempt: AttemptId, record: CommitRecord) -> ReceiverReport:
        """See ``ReceiverEndpoint.restore``."""
        deadline = self._patience_s(self.party.config.restore_deadline_s)
        return self.party.now("restore", ReceiverReport, deadline, attempt=attempt, record=record)

    def stage(self, attempt: AttemptId, record: CommitRecord, since: int) -> None:
        """See ``ReceiverEndpoint.stage``."""
        deadline = self._patience_s(self.party.config.fence_deadline_s)
        self.party.now("stage", type(None), deadline, attempt=attempt, record=record, since=since)

    def staged(self, attempt: AttemptId, manifest: str) -> StagedAck:
        """See ``ReceiverEndpoint.staged``."""
        deadline = self._patience_s(self.party.config.finish_deadline_s)
        return self.party.now("staged", StagedAck, deadline, attempt=attempt, manifest=manifest)

    def open_apply(self, attempt: AttemptId, record: CommitRecord, manifest: str | None = None) -> None:
        """See ``ReceiverEndpoint.open_apply``."""
        deadline = self._patience_s(self.party.config.fence_deadline_s)
        self.party.now("open_apply", type(None), deadline, attempt=attempt, record=record, manifest=manifest)

    def finish(self, attempt: AttemptId, manifest: str) -> ApplyAck:
        """See ``ReceiverEndpoint.finish``."""
        deadline = self._patience_s(self.party.config.finish_deadline_s)
        return self.party.now("finish", ApplyAck, deadline, attempt=attempt, manifest=manifest)

    def settle(self, record: CommitRecord) -> ReceiverReport:
        """See ``ReceiverEndpoint.settle``."""
        deadline = self._patience_s(self.party.config.fence_deadline_s)
        return self.party.now("settle", ReceiverReport, deadline, record=record)

    def stop_and_wait(self, attempt: AttemptId) -> None:
        """See ``ReceiverEndpoint.stop_and_wait``."""
        deadline = self._patience_s(self.party.config.fence_deadline_s)
        self.party.now("stop_and_wait", type(None), deadline, attempt=attempt)
