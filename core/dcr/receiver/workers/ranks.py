"""The ranks of an engine as ``RankPort``s of its front (DESIGN P11, B7).

``InstanceWriter`` calls its ranks side by side, one thread each. An engine has one line to all workers,
so calls that meet here travel as one collective call, and each worker does its own.
"""

import json
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import dcr.errors
from dcr.codec import Payload
from dcr.errors import AttemptFailed, ConfigError, RefitError, Unreachable
from dcr.model import Bits, from_json, to_json
from dcr.receiver.rank import Cover, PartDigests, Partials, PartTable, RankPlacement
from dcr.receiver.workers import exchange
from dcr.receiver.workers.control import EngineControl
from dcr.receiver.workers.messages import (
    Answer,
    Apply,
    Begin,
    Call,
    Calls,
    Checked,
    Configure,
    Divide,
    File,
    Greeting,
    Nothing,
    Scan,
)
from dcr.receiver.workers.spool import Spool
from dcr.receiver.writer import ApplyStats, Cancelled, Slice, never

_MAX_WORLD = 64
"""Workers that are greeted; an instance with more would hold more than one model."""


class _Batch:
    """Calls that will travel together; ``full`` once every rank has one, ``done`` once answered."""

    def __init__(self) -> None:
        self.calls: dict[int, Call] = {}
        self.full = threading.Event()
        self.done = threading.Event()
        self.answers: dict[int, Answer] = {}
        self.failure: RefitError | None = None


class Workers:
    """The one line to an engine's workers. Thread-safe.

    ``gather_s``: how long a call waits for those of the other ranks before it travels without them.
    ``folder`` is readable by front and workers; restored versions pass through it.
    """

    def __init__(self, control: EngineControl, *, folder: Path | None = None, gather_s: float = 0.1) -> None:
        """Greet all workers.

        Raises:
            Unreachable: the engine does not answer.
            ConfigError: it answers with ranks that are no whole engine (data parallel replicas, say).
        """
        self._control = control
        self._folder = folder or Path(tempfile.gettempdir())
        self._gather_s = gather_s
        self._line = threading.Lock()
        self._lock = threading.Lock()
        self._batch = _Batch()
        self._files = threading.Lock()
        self._file: tuple[Mapping[str, Bits], Path] | None = None
        self._readers = 0
        self._tickets: dict[str, str] = {}
        self._num_calls = 0
        self.greetings = self._greet()
        self._tickets = {str(greeting.rank): greeting.ticket for greeting in self.greetings}

    @property
    def world(self) -> int:
        """Number of ranks."""
        return len(self.greetings)

    def ask(self, rank: int, method: str, params: object, kind: Any) -> Any:
        """One rank's answer, of type ``kind``. Raises what the worker raised, or Unreachable."""
        answer = self._exchange(rank, Call(method, to_json(params).decode()))
        if answer.error:
            raise _error(answer)
        return from_json(kind, answer.value)

    def tell(self, method: str, params: object) -> None:
        """One call on every rank. Raises what the first worker in rank order raised, or Unreachable."""
        call = Call(method, to_json(params).decode())
        answers = self._send({str(greeting.rank): call for greeting in self.greetings})
        for greeting in self.greetings:
            if greeting.rank not in answers:
                raise Unreachable(f"rank {greeting.rank} did not answer {method}")
            if answers[greeting.rank].error:
                raise _error(answers[greeting.rank])

    @contextmanager
    def shared(self, tensors: Mapping[str, Bits]) -> Iterator[Path]:
        """A file with ``tensors``, written once for all ranks that ask meanwhile. Raises StoreError."""
        with self._files:
            if self._file is None or self._file[0] is not tensors:
                self._file = (tensors, self._written(tensors))
                self._readers = 0
            path = self._file[1]
            self._readers += 1
        try:
            yield path
        finally:
            with self._files:
                self._readers -= 1
                if self._readers == 0:
                    path.unlink(missing_ok=True)
                    self._file = None

    def _written(self, tensors: Mapping[str, Bits]) -> Path:
        path = self._folder / f"dcr-restore-{uuid4().hex}"
        try:
            exchange.write(path, tensors)
        except BaseException:
            path.unlink(missing_ok=True)  # a full disk needs the room
            raise
        return path

    def _greet(self) -> tuple[Greeting, ...]:
        everybody = {str(rank): Call("hello") for rank in range(_MAX_WORLD)}
        answers = self._send(everybody)
        for answer in answers.values():
            if answer.error:
                raise _error(answer)
        found = sorted(
            (from_json(Greeting, answer.value) for answer in answers.values()), key=lambda g: g.rank
        )
        world = found[0].world if found else 1
        if [greeting.rank for greeting in found] != list(range(world)):
            raise ConfigError(
                f"ranks {[greeting.rank for greeting in found]} of {world} answered; one engine is one "
                "instance: give each data parallel replica a control of its own, and a folder for answers, "
                "where there is one, that this process and all workers see (their logs say what failed)"
            )
        return tuple(found)

    def _exchange(self, rank: int, call: Call) -> Answer:
        batch, first = self._joined(rank, call)
        if first:
            batch.full.wait(self._gather_s)
            with self._lock:
                self._batch = _Batch()
            self._travel(batch)
        batch.done.wait()
        if batch.failure is not None:
            raise batch.failure
        if rank not in batch.answers:
            raise Unreachable(f"rank {rank} did not answer {call.method}")
        return batch.answers[rank]

    def _joined(self, rank: int, call: Call) -> tuple[_Batch, bool]:
        """The batch that ``call`` travels with, one call a rank, and whether it is the first in it."""
        while True:
            with self._lock:
                batch = self._batch
                if rank not in batch.calls:
                    first = not batch.calls
                    batch.calls[rank] = call
                    if len(batch.calls) == self.world:
                        batch.full.set()
                    return batch, first
            batch.done.wait()

    def _travel(self, batch: _Batch) -> None:
        try:
            batch.answers = self._send({str(rank): call for rank, call in batch.calls.items()})
        except RefitError as err:
            batch.failure = err
        finally:
            batch.done.set()

    def _send(self, calls: Calls) -> dict[int, Answer]:
        with self._line:
            self._num_calls += 1
            numbered = {
                rank: replace(call, ticket=self._tickets.get(rank, ""), number=self._num_calls)
                for rank, call in calls.items()
            }
            answers = self._control.call_workers(to_json(numbered).decode())
        parsed = [from_json(Answer, json.dumps(answer)) for answer in answers]
        return {answer.rank: answer for answer in parsed if answer.asked}


class RemoteRank:
    """Implements ``RankPort`` for worker ``rank``. A payload is cancelled as a whole, not within."""

    def __init__(self, workers: Workers, rank: int, spool: Spool | None = None) -> None:
        self._workers = workers
        self._number = rank
        self._spool = spool

    def prewarm(self) -> RankPlacement:
        """See ``RankPort``."""
        placement: RankPlacement = self._ask("prewarm", Nothing(), RankPlacement)
        return placement

    def divide(self, parts: Mapping[str, tuple[Cover, ...]]) -> None:
        """See ``RankPort``."""
        self._ask("divide", Divide(dict(parts)), type(None))

    def rebuilt(self) -> str:
        """See ``RankPort``."""
        reason: str = self._ask("rebuilt", Nothing(), str)
        return reason

    def begin(self, *, clean: bool) -> None:
        """See ``RankPort``."""
        self._ask("begin", Begin(clean), type(None))

    def apply(self, payload: Payload, *, allow_xor: bool = True, cancelled: Cancelled = never) -> ApplyStats:
        """See ``RankPort``; the worker takes the payload's bytes from the store, or from the spool."""
        if cancelled():
            raise AttemptFailed(
                f"payload {payload.owner}/{payload.sequence}: the attempt was stopped before it"
            )
        wanted = Apply(payload.attempt, payload.owner, payload.sequence, payload.digest, allow_xor)
        with nullcontext() if self._spool is None else self._spool.lend(payload):
            stats: ApplyStats = self._ask("apply", wanted, ApplyStats)
        return stats

    def synchronize(self) -> None:
        """See ``RankPort``."""
        self._ask("synchronize", Nothing(), type(None))

    def check(self) -> Partials:
        """See ``RankPort``."""
        return dict(self._ask("check", Nothing(), Checked).partials)

    def restore(self, tensors: Mapping[str, Bits], *, cancelled: Cancelled = never) -> None:
        """See ``RankPort``."""
        if cancelled():
            raise AttemptFailed("the restore was stopped before it began")
        with self._workers.shared(tensors) as path:
            self._ask("restore", File(str(path)), type(None))

    def audit(self) -> PartTable:
        """See ``RankPort``."""
        table: PartTable = self._ask("audit", Nothing(), PartTable)
        return table

    def scan(self, slices: Sequence[Slice]) -> list[PartDigests]:
        """See ``RankPort``."""
        found: list[PartDigests] = self._ask("scan", Scan(tuple(slices)), list[PartDigests])
        return found

    def digests(self) -> dict[str, str]:
        """BLAKE2b-128 of every resident tensor's bytes, by resident name; not part of the protocol."""
        found: dict[str, str] = self._ask("digests", Nothing(), dict[str, str])
        return found

    def load_dense(self, path: Path) -> None:
        """A stock dense refit from a safetensors file; the run is then no longer known here."""
        self._ask("load_dense", File(str(path)), type(None))

    def _ask(self, method: str, params: object, kind: Any) -> Any:
        return self._workers.ask(self._number, method, params, kind)


def remote_ranks(workers: Workers, setup: Configure, spool: Spool | None = None) -> list[RemoteRank]:
    """Let every worker join the run of ``setup``; its ranks in order. Raises what a worker raised.

    ``spool``: ``setup`` is of it, as workers cannot reach the run's store.
    """
    workers.tell("configure", setup)
    return [RemoteRank(workers, greeting.rank, spool) for greeting in workers.greetings]


def _error(answer: Answer) -> RefitError:
    kind = getattr(dcr.errors, answer.error, None)
    if isinstance(kind, type) and issubclass(kind, RefitError):
        return kind(answer.message)
    return AttemptFailed(answer.message)
