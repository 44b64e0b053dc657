"""One opened attempt at one receiver: what arrived, what was applied, and whether it failed."""

import time
from collections.abc import Callable, Generator
from functools import partial
from typing import NamedTuple

from dcr import observe
from dcr.codec import Limits, Payload, decode_payload
from dcr.errors import AttemptFailed, PayloadError
from dcr.model import ApplyAck, AttemptId, CommitRecord, Manifest, PayloadRef
from dcr.receiver import rules
from dcr.receiver.decoding import ahead
from dcr.receiver.stager import StagedSource
from dcr.receiver.staging import Expectation, Staging
from dcr.receiver.writer import Writer
from dcr.transport.base import Transport

_MAX_DAMAGED = 3


class _Arrival(NamedTuple):
    """What came under ``ref``: ``payload``, or why it is none; ``num_bytes`` as they came."""

    ref: PayloadRef
    num_bytes: int
    payload: Payload | Exception


class Session:
    """Takes payloads of ``attempt`` onto ``record``'s version. The caller holds the receiver's lock.

    Once an item has failed or was cut short, the session has failed for good: nothing more is
    applied (P8). With ``source`` payloads come from there, staged before, else from the transport.
    """

    def __init__(  # noqa: PLR0913 -- what one attempt is about, all fixed for its life
        self,
        applier: Writer,
        attempt: AttemptId,
        record: CommitRecord,
        *,
        xor_allowed: bool,
        limits: Limits,
        cancelled: Callable[[], bool],
        source: StagedSource | None = None,
    ) -> None:
        self.attempt = attempt
        self.record = record
        self.xor_allowed = xor_allowed
        self.failure: Exception | None = None
        self.wrote = False
        self.num_items = self.num_skipped = self.num_values = 0
        self.apply_s = 0.0
        self._applier = applier
        self._limits = limits
        self._cancelled = cancelled
        self._source = source
        named = source.named if source is not None else {}
        self._staging = Staging(Expectation(record.run, attempt, record.version, record.catalogue, named))
        self._applied: dict[tuple[int, int], PayloadRef] = {}
        self._damaged: dict[tuple[int, int], int] = {}
        applier.begin(clean=xor_allowed)

    @property
    def num_payloads(self) -> int:
        """Payloads applied so far."""
        return len(self._applied)

    def pump(self, transport: Transport) -> int:
        """Fetch and apply what is visible now; returns how many payloads were applied.

        While one is applied the next is decoded, and the transport fetches those behind it.

        A failure while decoding or applying is kept in ``failure``, not raised. StoreError and
        other failures to fetch are raised: nothing is lost, try again.
        """
        before = self.num_payloads
        try:
            with ahead(self._fetched(transport), self._decode) as arrivals:
                for arrival in arrivals:
                    self._guarded(partial(self._receive, arrival))
                    self._guarded(self._drain)
                    if self.failure is not None or self._cancelled():
                        break
        except AttemptFailed:
            if not self._cancelled():  # else it was stopped meanwhile, which is no news
                raise
        return self.num_payloads - before

    def require_success(self) -> None:
        """Raise AttemptFailed, from what went wrong, if anything did."""
        if isinstance(self.failure, AttemptFailed):
            raise self.failure
        if self.failure is not None:
            raise AttemptFailed(
                f"attempt {self.attempt} failed here: {type(self.failure).__name__}: {self.failure}"
            ) from self.failure

    def mismatch(self, manifest: Manifest) -> str:
        """Why what was applied is not exactly what ``manifest`` lists; empty if it is."""
        return rules.mismatch(manifest, self._applied)

    def holds_unlisted(self, manifest: Manifest) -> bool:
        """Whether something was applied that ``manifest`` does not list."""
        return rules.holds_unlisted(manifest, self._applied)

    def acknowledge(self, receiver: str, manifest: str, check_s: float) -> ApplyAck:
        """The answer to ``finish``, once everything is checked."""
        return ApplyAck(
            receiver=receiver,
            attempt=self.attempt,
            manifest=manifest,
            num_payloads=self.num_payloads,
            num_items=self.num_items,
            num_skipped=self.num_skipped,
            num_values=self.num_values,
            apply_s=self.apply_s,
            check_s=check_s,
        )

    def _where(self, owner: int, sequence: int) -> dict[str, object]:
        return {"attempt": str(self.attempt), "owner": owner, "sequence": sequence}

    def _guarded(self, step: Callable[[], None]) -> None:
        if self.failure is not None:
            return
        self.failure = AttemptFailed(f"attempt {self.attempt}: an item was begun and never finished")
        try:
            step()
        except Exception as err:  # noqa: BLE001 -- the border: a loader may raise anything; finish reports it
            self.failure = err
        else:
            self.failure = None

    def _fetched(self, transport: Transport) -> Generator[tuple[PayloadRef, bytes], None, None]:
        source = self._source if self._source is not None else transport
        yield from source.fetch(self.attempt, set(self._staging.admitted))

    def _decode(self, fetched: tuple[PayloadRef, bytes]) -> _Arrival:
        """In a thread of its own; what it raises waits for the payload's turn."""
        ref, data = fetched
        try:
            with observe.span("receiver.decode", **self._where(ref.owner, ref.sequence)):
                return _Arrival(ref, len(data), decode_payload(data, limits=self._limits))
        except Exception as err:  # noqa: BLE001 -- the border: a failure of this payload, not of those before it
            return _Arrival(ref, len(data), err)

    def _receive(self, arrival: _Arrival) -> None:
        ref, num_bytes, payload = arrival
        if isinstance(payload, PayloadError):
            self._count_damage(ref, payload)
            return
        if isinstance(payload, Exception):
            raise payload
        with observe.span("receiver.stage", **self._where(ref.owner, ref.sequence)):
            self._staging.admit(payload, num_bytes)

    def _count_damage(self, ref: PayloadRef, err: PayloadError) -> None:
        """A damaged payload is fetched again by later pumps, a few times, then the attempt fails."""
        key = (ref.owner, ref.sequence)
        self._damaged[key] = self._damaged.get(key, 0) + 1
        if self._damaged[key] >= _MAX_DAMAGED:
            raise AttemptFailed(f"payload {key} stays damaged: {err}") from err

    def _drain(self) -> None:
        """Apply what was taken in: this payload and the one behind it are all that is decoded by then."""
        self._staging.seal()
        while group := self._staging.take():
            for payload in group:
                self._apply(payload)

    def _apply(self, payload: Payload) -> None:
        key = (payload.owner, payload.sequence)
        observe.point("receiver.payload.before", owner=key[0], sequence=key[1])
        self.wrote = self.wrote or any(item.num_entries for item in payload.items)
        started = time.perf_counter()
        with observe.span("receiver.apply", **self._where(*key), num_items=len(payload.items)):
            stats = self._applier.apply(payload, allow_xor=self.xor_allowed, cancelled=self._cancelled)
        self.apply_s += time.perf_counter() - started
        self.num_items += stats.num_items
        self.num_skipped += stats.num_skipped
        self.num_values += stats.num_values
        self._applied[key] = self._staging.admitted[key]
        observe.point("receiver.payload.after", owner=key[0], sequence=key[1])
