"""The pipeline of payloads: buckets, order, bounded memory, errors, cancellation (DESIGN R8)."""

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from dcr import observe
from dcr.audit import EMPTY
from dcr.codec import Item
from dcr.config import CodecConfig
from dcr.errors import AttemptFailed
from dcr.indexmap import IndexMap
from dcr.model import AttemptId, Encoding, PayloadRef
from dcr.source import AffineTask, pipeline
from dcr.source.construct import MIB, Chunk, chunks
from dcr.source.pipeline import CheckLive, Stages, num_threads, run_pipeline
from dcr.source.publish import Converted, Lane, Work, publish_payloads
from dcr.transport.memory import MemoryStore
from dcr.transport.object_transport import ObjectTransport

THREADS = (1, 2, 3, 8)


def task(number: int, num_elements: int = 4) -> AffineTask:
    name = str(number)
    return AffineTask(name, name, "bfloat16", num_elements, IndexMap.identity(num_elements), (0,))


def item(name: str) -> Item:
    return Item(name, (4,), "bfloat16", Encoding.OVERWRITE, np.zeros(1, np.int64), np.zeros(1, np.uint16))


def per_task(number: int) -> list[Chunk]:
    return [(task(index),) for index in range(number)]


def codec(threads: int, **fields: Any) -> CodecConfig:
    return replace(CodecConfig(chunk_mib=0, bucket_mib=0, threads=threads), **fields)


def run_recording(
    found: Sequence[Chunk], config: CodecConfig, emits: Callable[[AffineTask], bool] = lambda _: True
) -> list[list[str]]:
    """Names of each payload, as they were sent."""
    sent: list[tuple[int, list[str]]] = []

    def convert(chunk: Chunk, live: CheckLive) -> list[Item]:
        live()
        time.sleep(0.001 * (int(chunk[0].name) % 3))  # the first need not end first
        return [item(one.name) for one in chunk if emits(one)]

    def send(payload: tuple[int, list[str]]) -> int:
        sent.append(payload)
        return payload[0]

    stages = Stages(
        convert=convert,
        take=lambda items: items,
        encode=lambda sequence, items: (sequence, [one.name for one in items]),
        send=send,
    )
    refs = run_pipeline(found, stages, config, lambda: None)
    assert refs == [sequence for sequence, _ in sent] == list(range(len(sent)))
    return [names for _, names in sent]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before, "(threads of earlier tests may end meanwhile)"


# ---- what is in which payload ----


@pytest.mark.parametrize("threads", THREADS)
def test_bucket_counts_the_full_source_bytes_of_chunks_that_emitted(threads: int) -> None:
    """Chunks of 1 MiB, buckets of 2: quiet chunks do not count, loud ones count whole."""
    tasks = [task(number, MIB // 4) for number in range(12)]  # half a MiB each: two a chunk
    loud = {"0", "4", "5", "8", "10"}
    config = codec(threads, chunk_mib=1, bucket_mib=2)
    packed = run_recording(tuple(chunks(tasks, MIB)), config, lambda one: one.name in loud)
    assert packed == [["0", "4", "5"], ["8", "10"]]


@pytest.mark.parametrize("threads", THREADS)
def test_bucket_ends_when_its_items_are_large_in_memory(threads: int) -> None:
    """Quiet in source bytes, yet 1.25 MiB of locations and values each."""
    large = [item(str(number)) for number in range(5)]
    for one in large:
        object.__setattr__(one, "positions", np.zeros(MIB // 8, np.int64))
        object.__setattr__(one, "values", np.zeros(MIB // 8, np.uint16))
    sent: list[int] = []

    def convert(chunk: Chunk, live: CheckLive) -> list[Item]:
        live()
        return [large[int(chunk[0].name)]]

    stages = Stages(
        convert=convert, take=lambda items: items, encode=lambda _, items: len(items), send=sent.append
    )
    run_pipeline(per_task(5), stages, codec(threads, bucket_mib=2), lambda: None)
    assert sent == [2, 2, 1]


@pytest.mark.parametrize("threads", THREADS)
def test_payloads_are_sent_in_order_whoever_is_first(threads: int) -> None:
    assert run_recording(per_task(20), codec(threads)) == [[str(number)] for number in range(20)]
    assert run_recording([], codec(threads)) == []
    assert run_recording(per_task(5), codec(threads), lambda _: False) == []


def test_one_thread_does_one_thing_after_the_other() -> None:
    order: list[str] = []

    def convert(chunk: Chunk, live: CheckLive) -> list[Item]:
        live()
        order.append(f"convert {chunk[0].name}")
        return [item(chunk[0].name)]

    def note(what: str, sequence: int) -> int:
        order.append(f"{what} {sequence}")
        return sequence

    stages = Stages(
        convert=convert,
        take=lambda items: items,
        encode=lambda sequence, _: note("encode", sequence),
        send=lambda sequence: note("send", sequence),
    )
    run_pipeline(per_task(3), stages, codec(1), lambda: None)
    assert order == [f"{what} {number}" for number in range(3) for what in ("convert", "encode", "send")]


def test_threads_are_counted_from_the_cores_unless_told() -> None:
    assert 2 <= num_threads(CodecConfig()) <= 8
    assert num_threads(CodecConfig(threads=1)) == 1
    assert num_threads(CodecConfig(threads=40)) == 40


class _Late(Future[Any]):
    """Has ended, but says so from the second look on: as if it ended just after the first."""

    looks = 0

    def done(self) -> bool:  # type: ignore[explicit-override]  # typing.override: 3.12
        self.looks += 1
        return self.looks > 1 and super().done()


class _LateWorkers:
    """Do what they are given at once."""

    def submit(self, call: Callable[..., Any], /, *args: Any) -> Future[Any]:
        future = _Late()
        future.set_result(call(*args))
        return future


@pytest.mark.parametrize("late", ["workers", "sender", "both"])
@pytest.mark.parametrize("num_tasks", [1, 2, 7])
def test_what_ends_between_two_looks_is_not_left_out(
    late: str, num_tasks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller sees the last piece of work running, and nothing running when it looks again."""

    @contextmanager
    def crew(_: int) -> Iterator[pipeline._Crew]:
        slow, quick = _LateWorkers(), pipeline._Inline()
        yield pipeline._Crew(quick if late == "sender" else slow, quick if late == "workers" else slow)

    monkeypatch.setattr(pipeline, "_crew", crew)
    names = [[str(number)] for number in range(num_tasks)]
    assert run_recording(per_task(num_tasks), codec(2)) == names


# ---- memory ----


class Counting:
    """A transport's end that can be held, and how many chunks and payloads were alive at most."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.started = 0
        self.alive: list[weakref.ref[np.ndarray]] = []
        self.most_alive = 0

    def convert(self, chunk: Chunk, live: CheckLive) -> list[Item]:
        live()
        self.started += 1
        made = item(chunk[0].name)
        self.alive = [ref for ref in self.alive if ref() is not None]
        self.alive.append(weakref.ref(made.values))
        self.most_alive = max(self.most_alive, len(self.alive))
        return [made]

    def send(self, sequence: int) -> int:
        assert self.gate.wait(30)
        return sequence


@pytest.mark.parametrize(("threads", "queue"), [(2, 1), (2, 2), (3, 4)])
def test_a_send_that_hangs_stops_the_scanner(threads: int, queue: int) -> None:
    count = Counting()
    stages = Stages(convert=count.convert, take=lambda items: items, encode=lambda n, _: n, send=count.send)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run_pipeline, per_task(50), stages, codec(threads, queue=queue), lambda: None)
        bound = queue + 1 + threads + 1  # payloads, the bucket being filled, chunks ahead
        deadline = time.monotonic() + 20
        while count.started < bound and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.05)
        assert count.started == bound
        count.gate.set()
        assert running.result() == list(range(50))
    assert count.started == 50


def test_items_live_no_longer_than_the_bound() -> None:
    count = Counting()
    count.gate.set()
    stages = Stages(convert=count.convert, take=lambda items: items, encode=lambda n, _: n, send=count.send)
    run_pipeline(per_task(40), stages, codec(2, queue=1), lambda: None)
    assert count.most_alive <= 1 + 1 + 3 + 1  # as above, and the one that is being made


def test_a_published_bucket_is_freed_before_the_next_is_filled() -> None:
    alive: list[weakref.ref[np.ndarray]] = []

    def convert(one: AffineTask) -> Converted:
        assert [ref() for ref in alive] == [None] * len(alive)
        found = item(one.name)
        alive.append(weakref.ref(found.values))
        return Converted([found], (EMPTY,), 1)

    work = Work(AttemptId(1, 1), 0, [task(number) for number in range(3)], convert, lambda: None)
    close = publish_payloads(work, lane(codec(1)))
    assert len(close.payloads) == len(alive) == 3


def lane(config: CodecConfig) -> Lane:
    return Lane(0, "ab" * 16, "cd" * 16, (), config, ObjectTransport(MemoryStore(), "ab" * 16))


# ---- errors ----


class Mark(BaseException):
    """As an injected crash: it passes every ``except Exception``."""


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("stage", ["convert", "take", "encode", "send"])
@pytest.mark.parametrize("kind", [Mark, ValueError, AttemptFailed])
def test_the_first_error_surfaces_unchanged_and_ends_everything(
    threads: int, stage: str, kind: type[BaseException]
) -> None:
    error, calls = kind("here"), dict.fromkeys(("convert", "take", "encode", "send"), 0)

    def reach(name: str, *args: list[Item]) -> list[Item]:
        calls[name] += 1
        if name == stage and calls[name] == 3:
            raise error
        return args[-1]

    def convert(chunk: Chunk, live: CheckLive) -> list[Item]:
        live()
        return reach("convert", [item(chunk[0].name)])

    stages: Stages[list[Item], Any, Any] = Stages(
        convert=convert,
        take=partial(reach, "take"),
        encode=lambda _, items: reach("encode", list(items)),
        send=partial(reach, "send"),
    )
    with pytest.raises(kind) as caught:
        run_pipeline(per_task(500), stages, codec(threads), lambda: None)
    assert caught.value is error
    assert calls["convert"] < 100, "the rest was not begun"


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("stage", ["owner.task.before", "owner.task.after", "owner.encode",
                                   "owner.publish.before", "owner.publish.after"])  # fmt: skip
def test_cancellation_ends_each_stage(threads: int, stage: str) -> None:
    cancelled = threading.Event()

    def check() -> None:
        if cancelled.is_set():
            raise AttemptFailed("stopped")

    def listen(event: observe.Event) -> None:
        if event.name == stage:
            cancelled.set()

    def convert(one: AffineTask) -> Converted:
        return Converted([item(one.name)], (EMPTY,), 1)

    work = Work(AttemptId(1, 1), 0, [task(number) for number in range(200)], convert, check)
    seen: list[str] = []
    with (
        observe.listening(lambda event: seen.append(event.name)),
        observe.listening(listen),
        pytest.raises(AttemptFailed, match="stopped"),
    ):
        publish_payloads(work, lane(codec(threads)))
    assert seen.count("owner.task.before") < 60
    assert seen.count("owner.publish.after") < 60


@pytest.mark.parametrize("late_s", [0, 0.05])
def test_an_error_does_not_wait_for_its_turn(late_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second chunk fails while the first is still being converted: the first then ends early.

    Also if the caller looks before the failure was noted.
    """
    add = Future.add_done_callback

    def late(future: Future[Any], call: Callable[[Future[Any]], object]) -> None:
        def noted(done: Future[Any]) -> None:
            time.sleep(late_s)
            call(done)

        add(future, noted)

    monkeypatch.setattr(Future, "add_done_callback", late)
    failed = threading.Event()
    slow_ended_by: list[str] = []

    def convert(chunk: Chunk, live: CheckLive) -> list[Item]:
        if chunk[0].name == "1":
            time.sleep(late_s)  # until the caller waits
            failed.set()
            raise ValueError("second")
        assert failed.wait(30)
        for _ in range(3_000):
            try:
                live()
            except BaseException as err:
                slow_ended_by.append(type(err).__name__)
                raise
            time.sleep(0.001)
        return []

    stages = Stages(convert=convert, take=lambda items: items, encode=lambda n, _: n, send=lambda n: n)
    with pytest.raises(ValueError, match="second"):
        run_pipeline(per_task(2), stages, codec(2), lambda: None)
    assert slow_ended_by == ["CancelledError"]


def test_sending_overlaps_conversion() -> None:
    """A send that waits for a later chunk would hang in a pipeline that does one thing at a time."""
    fourth = threading.Event()

    def convert(chunk: Chunk, live: CheckLive) -> list[Item]:
        live()
        if chunk[0].name == "3":
            fourth.set()
        return [item(chunk[0].name)]

    def send(sequence: int) -> PayloadRef:
        assert fourth.wait(30)
        return PayloadRef(0, sequence, "", 0)

    stages = Stages(convert=convert, take=lambda items: items, encode=lambda n, _: n, send=send)
    assert len(run_pipeline(per_task(6), stages, codec(2), lambda: None)) == 6
