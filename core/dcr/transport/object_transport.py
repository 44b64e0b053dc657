"""Payloads through an object store: one upload each, every receiver fetches (paper section 7, DESIGN R18).

A payload is known by its key, so it is visible as soon as it is durable, before its owner has
closed. The reference that ``fetch`` gives with it is made from key and bytes; the manifest,
built from the owners' closed lists, is what a receiver must match before it answers ``finish`` (P6).
"""

import threading
from collections import Counter, deque
from collections.abc import Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from dcr import observe
from dcr.codec import payload_digest
from dcr.errors import AttemptFailed, MissingObject, PayloadError
from dcr.model import AttemptId, OwnerClose, PayloadRef, RunId, to_json
from dcr.transport.base import ObjectStore
from dcr.transport.keys import PAYLOAD, check_segment, close_key, payload_key


class ObjectTransport:
    """Transport over an ObjectStore, bound to one run. Thread-safe.

    An attempt counts as busy here while a store operation of it is under way. Once stopped it stays
    stopped: attempts are never reused (P3). While one payload is being applied, the next ``ahead`` are
    fetched, each in a thread of its own.
    """

    def __init__(self, store: ObjectStore, run: RunId, *, ahead: int = 0) -> None:
        self._store = store
        self._ahead = ahead
        self._run = check_segment(run, "run id")
        self._stopped: set[AttemptId] = set()
        self._closed: set[tuple[AttemptId, int]] = set()
        self._busy: Counter[AttemptId] = Counter()
        self._changed = threading.Condition()

    def publish(self, attempt: AttemptId, ref: PayloadRef, data: bytes) -> None:
        """Store one payload durably; the same bytes again are no error.

        Raises:
            AttemptFailed: ``attempt`` was stopped here, or ``ref.owner`` has closed its list here.
            Conflict: the store holds other bytes under this owner and sequence.
            StoreError: the store failed; publish again.
        """
        with self._working(attempt, publisher=ref.owner):
            self._store.put(payload_key(self._run, attempt, ref.owner, ref.sequence), data)

    def close(self, close: OwnerClose) -> None:
        """Store the owner's closed list; the same list again is no error.

        The owner publishes nothing more under this attempt from here on, even if storing fails:
        the list may have landed.

        Raises:
            AttemptFailed: the attempt was stopped here.
            Conflict: the owner has closed with another list.
            StoreError: the store failed; close again.
        """
        with self._working(close.attempt):
            with self._changed:
                self._closed.add((close.attempt, close.owner))
            self._store.put(close_key(self._run, close.attempt, close.owner), to_json(close))

    def fetch(
        self, attempt: AttemptId, seen: Collection[tuple[int, int]]
    ) -> Iterator[tuple[PayloadRef, bytes]]:
        """Yield what is visible of ``attempt`` now and not in ``seen``, by owner, then sequence.

        With ``ahead`` also what becomes visible while that is fetched and used, behind it.
        ``ref.digest`` is the payload's own digest, ``""`` if the bytes are no whole payload: the
        receiver must see those too, to fail the attempt.

        Raises:
            AttemptFailed: ``attempt`` was stopped here, also between two payloads.
        """
        wanted = sorted(self._visible(attempt).difference(seen))
        if self._ahead and wanted:
            yield from self._fetch_ahead(attempt, wanted, seen)
            return
        for owner, sequence in wanted:
            data = self._get(attempt, owner, sequence)
            if data is not None:
                self._check_live(attempt)
                yield PayloadRef(owner, sequence, _own_digest(data), len(data)), data

    def stop_and_wait(self, attempt: AttemptId) -> None:
        """Refuse ``attempt`` from now on; return when no store operation of it is under way here.

        Payloads that are durable stay visible in the store, to other ends and to collection.
        """
        with self._changed:
            self._stopped.add(attempt)
            self._changed.wait_for(lambda: not self._busy[attempt])

    def _fetch_ahead(
        self, attempt: AttemptId, wanted: list[tuple[int, int]], seen: Collection[tuple[int, int]]
    ) -> Iterator[tuple[PayloadRef, bytes]]:
        """As ``fetch``, and on to what becomes visible meanwhile, so that the link never rests.

        Never more than ``ahead`` payloads are held here besides the one that is given.
        """
        known, rest = {*seen, *wanted}, deque(wanted)
        queue: deque[tuple[int, int, Future[bytes | None]]] = deque()
        with ThreadPoolExecutor(self._ahead, thread_name_prefix="fetch") as pool:

            def fill() -> None:
                if not rest:
                    rest.extend(sorted(self._visible(attempt) - known))
                    known.update(rest)
                while rest and len(queue) < self._ahead:
                    owner, sequence = rest.popleft()
                    queue.append((owner, sequence, pool.submit(self._get, attempt, owner, sequence)))

            try:
                fill()
                while queue:
                    owner, sequence, coming = queue.popleft()
                    data = coming.result()
                    fill()
                    if data is not None:
                        self._check_live(attempt)
                        yield PayloadRef(owner, sequence, _own_digest(data), len(data)), data
                    if not queue:  # look once more: using it may have taken a while
                        fill()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def _get(self, attempt: AttemptId, owner: int, sequence: int) -> bytes | None:
        """The payload's bytes; None if it was collected since it was listed: a dead attempt."""
        try:
            where = {"attempt": str(attempt), "owner": owner, "sequence": sequence}
            with self._working(attempt), observe.span("receiver.fetch", **where):
                return self._store.get(payload_key(self._run, attempt, owner, sequence))
        except MissingObject:
            return None

    def _visible(self, attempt: AttemptId) -> set[tuple[int, int]]:
        prefix = f"{self._run}/{PAYLOAD}/{attempt}/"
        with self._working(attempt):
            keys = self._store.list(prefix)
        found = set()
        for key in keys:
            owner, _, sequence = key.removeprefix(prefix).partition("/")
            if owner.isdecimal() and sequence.isdecimal():
                found.add((int(owner), int(sequence)))
        return found

    def _check_live(self, attempt: AttemptId) -> None:
        with self._changed:
            if attempt in self._stopped:
                raise AttemptFailed(f"attempt {attempt} was stopped here; wait for the next one")

    @contextmanager
    def _working(self, attempt: AttemptId, publisher: int | None = None) -> Iterator[None]:
        with self._changed:
            self._check_live(attempt)
            if publisher is not None and (attempt, publisher) in self._closed:
                raise AttemptFailed(f"owner {publisher} has closed its list of attempt {attempt}")
            self._busy[attempt] += 1
        try:
            yield
        finally:
            with self._changed:
                self._busy[attempt] -= 1
                if not self._busy[attempt]:
                    del self._busy[attempt]  # attempts are many over the life of a process
                self._changed.notify_all()


def _own_digest(data: bytes) -> str:
    try:
        return payload_digest(data)
    except PayloadError:
        return ""
