"""Named points and timed spans: the one source of traces, metrics and injected faults.

Code marks where it is; whoever composes the process decides who listens (a trace writer, a
metrics sink, a fault injector). Without listeners a mark costs one truth test.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    """One mark. ``start_ns``/``end_ns`` are of the process's monotonic clock; equal for a point.

    ``cpu_ns`` is the processor time that the emitting thread spent in a span; 0 for a point.
    """

    name: str
    start_ns: int
    end_ns: int
    fields: dict[str, object]
    cpu_ns: int = 0


ANCHOR = "owner.anchor"
"""A rank writes the planes of a version that is committed: what it does then is part of no transition."""

Listener = Callable[[Event], None]
_listeners: list[Listener] = []
_silence = threading.local()


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Deliver every event of this process to ``listener`` inside the block, in the emitting thread.

    A listener may raise: the exception surfaces at the mark, which is how faults are injected.
    """
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def heard() -> bool:
    """Whether anyone listens: for marks in loops so short that even their fields cost."""
    return bool(_listeners)


def point(name: str, **fields: object) -> None:
    """Mark an instant, for example ``receiver.item.after``."""
    if _listeners:
        now = time.perf_counter_ns()
        _emit(Event(name, now, now, fields))


@contextmanager
def span(name: str, **fields: object) -> Iterator[None]:
    """Time a stage, for example ``owner.compare``; emitted once, when the block ends without error."""
    cpu = time.thread_time_ns() if _listeners else 0
    start = time.perf_counter_ns()
    yield
    if _listeners:
        end = time.perf_counter_ns()
        _emit(Event(name, start, end, fields, time.thread_time_ns() - cpu if cpu else 0))


def interval(name: str, start_ns: int, **fields: object) -> None:
    """A span that began at ``start_ns`` of ``perf_counter_ns``, perhaps in another thread, and ends now."""
    if _listeners:
        _emit(Event(name, start_ns, time.perf_counter_ns(), fields))


@contextmanager
def stage(name: str, **fields: object) -> Iterator[None]:
    """Mark ``name.before`` and, when the block ends without error, ``name.after``.

    For stages that someone watches from their start on, or in which a fault may be injected.
    """
    point(f"{name}.before", **fields)
    yield
    point(f"{name}.after", **fields)


@contextmanager
def unheard() -> Iterator[None]:
    """Deliver nothing of what this thread emits in the block: a rehearsal is not a refit."""
    _silence.depth = getattr(_silence, "depth", 0) + 1
    try:
        yield
    finally:
        _silence.depth -= 1


def _emit(event: Event) -> None:
    if getattr(_silence, "depth", 0):
        return
    for listener in tuple(_listeners):
        listener(event)
