"""Chunks of tasks in, payloads out: conversion, encoding and sending overlap (paper Appendix C; DESIGN R8).

    chunks -> convert (workers) -> bucket, in order (caller) -> encode (workers) -> send, in order (sender)

The caller's thread only coordinates. Chunks are put into buckets in their own order, and where a bucket
ends follows from sizes alone, so the payloads are the same bytes whatever the threads do. A stage whose
successor is behind waits, back to the scanner. With one thread everything happens in the caller's, one
thing after the other.

Memory at any time: one bucket being filled, ``queue`` buckets being encoded or payloads being sent, and
``threads`` + 1 chunks being converted or waiting for their turn. They hold items only: 8 bytes and a value
for each changed element, or for every element of a shard that is sent whole; twice that for a moment while
a bucket is encoded, three times in the published coding. At small rates that is little. At any rate a bucket
also ends when its items have ``bucket_mib`` MiB in memory, so it never holds more than that and one chunk's
items, which are at most 1 + 8 / width times the chunk's source bytes.

The first error, in whatever thread, stops all others at their next task or payload, and is raised
unchanged once they have ended: no thread outlives the call.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from dcr.codec import Item
from dcr.config import CodecConfig
from dcr.source.construct import MIB, Chunk, source_bytes

_MOST_THREADS = 8
Converted = TypeVar("Converted")
Encoded = TypeVar("Encoded")
Sent = TypeVar("Sent")
CheckLive = Callable[[], None]
"""Raises as soon as the work must end."""


@dataclass(frozen=True, slots=True)
class Stages(Generic[Converted, Encoded, Sent]):
    """What each stage does. ``convert`` asks the check that it is given before each of its tasks.

    ``take`` sees the converted chunks in order, in the caller's thread, and gives the items to send.
    ``encode`` gets the sequence number of the payload. ``convert`` and ``encode`` are called in several
    threads at once, ``send`` in one.
    """

    convert: Callable[[Chunk, CheckLive], Converted]
    take: Callable[[Converted], Sequence[Item]]
    encode: Callable[[int, Sequence[Item]], Encoded]
    send: Callable[[Encoded], Sent]


def run_pipeline(
    chunks: Sequence[Chunk],
    stages: Stages[Converted, Encoded, Sent],
    codec: CodecConfig,
    check_live: CheckLive,
) -> list[Sent]:
    """Send everything; returns what ``send`` returned, in order.

    Raises:
        whatever a stage or ``check_live`` raised first, after all threads have ended.
    """
    threads = num_threads(codec)
    with _crew(threads) as crew:
        flow = _Flow(chunks, stages, codec, check_live, crew)
        try:
            return flow.run(ahead=threads + 1 if threads > 1 else 1)
        finally:
            flow.stop()


def num_threads(codec: CodecConfig) -> int:
    """Threads that convert and encode. Two even on one core: sending must not stop the scan."""
    # not every system tells which cores a process may use
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return codec.threads or max(2, min(_MOST_THREADS, cores))


class _Workers(Protocol):
    def submit(self, call: Callable[..., Any], /, *args: Any) -> Future[Any]: ...


class _Inline:
    """Does what it is given at once, in the caller's thread."""

    def submit(self, call: Callable[..., Any], /, *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(call(*args))
        except BaseException as err:  # noqa: BLE001 -- raised again by whoever asks for the result
            future.set_exception(err)
        return future


@dataclass(frozen=True, slots=True)
class _Crew:
    workers: _Workers
    sender: _Workers


@contextmanager
def _crew(threads: int) -> Iterator[_Crew]:
    """Threads that have ended when the block has."""
    if threads == 1:
        yield _Crew(_Inline(), _Inline())
        return
    with ThreadPoolExecutor(threads, "dcr-convert") as workers, ThreadPoolExecutor(1, "dcr-send") as sender:
        yield _Crew(workers, sender)


class _Flow(Generic[Converted, Encoded, Sent]):
    """One run. Futures of each stage wait in the order in which their results will be used."""

    def __init__(
        self,
        chunks: Sequence[Chunk],
        stages: Stages[Converted, Encoded, Sent],
        codec: CodecConfig,
        check_live: CheckLive,
        crew: _Crew,
    ) -> None:
        self._chunks = deque(chunks)
        self._stages = stages
        self._crew = crew
        self._check_live = check_live
        self._bucket_bytes = codec.bucket_mib * MIB
        self._queue = max(1, codec.queue)
        self._converting: deque[tuple[Chunk, Future[Converted]]] = deque()
        self._bucket: list[Item] = []
        self._filled_bytes = 0  # of source
        self._held_bytes = 0  # of items
        self._num_buckets = 0
        self._encoding: deque[Future[Encoded]] = deque()
        self._sending: deque[Future[Sent]] = deque()
        self._sent: list[Sent] = []
        self._failed: list[Future[Any]] = []
        self._stopping = False

    def run(self, ahead: int) -> list[Sent]:
        """Do whatever can be done, what is furthest along first, until all is sent.

        What is pending is noted before anything is looked at: what ends meanwhile ends the wait.
        """
        while True:
            if self._failed:
                self._failed[0].result()
            pending = self._pending()
            if (
                self._collect_sent()
                or self._send_next()
                or self._close_bucket()
                or self._fill_bucket()
                or self._convert_next(ahead)
            ):
                continue
            if not pending:
                return self._sent
            wait(pending, return_when=FIRST_COMPLETED)

    def stop(self) -> None:
        """Let nothing begin any more."""
        self._stopping = True
        for future in self._pending():
            future.cancel()

    def _live(self) -> None:
        if self._stopping:
            raise CancelledError
        self._check_live()

    def _start(self, workers: _Workers, call: Callable[..., Any], *args: Any) -> Future[Any]:
        def guarded(*args: Any) -> Any:
            self._live()
            return call(*args)

        future = workers.submit(guarded, *args)
        future.add_done_callback(self._note)
        return future

    def _note(self, future: Future[Any]) -> None:
        if not future.cancelled() and future.exception() is not None:
            self._failed.append(future)

    def _pending(self) -> list[Future[Any]]:
        """What is worth waiting for: work whose turn has not come waits for some of it.

        Also what failed a moment ago and was not yet noted: nobody must wait for anything else then.
        """
        queues = ((future for _, future in self._converting), self._encoding, self._sending)
        futures = (future for queue in queues for future in queue)
        return [future for future in futures if not future.done() or future.exception() is not None]

    # ---- steps, from the end of the pipeline to its beginning; each says whether it did anything ----

    def _collect_sent(self) -> bool:
        if not self._sending or not self._sending[0].done():
            return False
        self._sent.append(self._sending.popleft().result())
        return True

    def _send_next(self) -> bool:
        if not self._encoding or not self._encoding[0].done():
            return False
        encoded = self._encoding.popleft().result()
        self._sending.append(self._start(self._crew.sender, self._stages.send, encoded))
        return True

    def _close_bucket(self) -> bool:
        no_more = not self._chunks and not self._converting
        if not self._bucket or not (self._is_full() or no_more):
            return False
        if len(self._encoding) + len(self._sending) >= self._queue:
            return False
        items = tuple(self._bucket)
        self._bucket.clear()  # or its items would live on while the next bucket is filled
        self._filled_bytes = self._held_bytes = 0
        self._encoding.append(self._start(self._crew.workers, self._stages.encode, self._num_buckets, items))
        self._num_buckets += 1
        return True

    def _fill_bucket(self) -> bool:
        """A bucket counts the full source bytes of each chunk that emits records; chunks are never split."""
        if self._is_full() or not self._converting or not self._converting[0][1].done():
            return False
        chunk, future = self._converting.popleft()
        items = self._stages.take(future.result())
        self._bucket.extend(items)
        if items:
            self._filled_bytes += source_bytes(chunk)
            self._held_bytes += sum(item.positions.nbytes + item.values.nbytes for item in items)
        return True

    def _is_full(self) -> bool:
        return bool(self._bucket) and max(self._filled_bytes, self._held_bytes) >= self._bucket_bytes

    def _convert_next(self, ahead: int) -> bool:
        if not self._chunks or len(self._converting) >= ahead:
            return False
        chunk = self._chunks.popleft()
        future = self._start(self._crew.workers, self._stages.convert, chunk, self._live)
        self._converting.append((chunk, future))
        return True
