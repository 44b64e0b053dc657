"""Decodes the payload behind the one that is being applied (paper section 6, DESIGN R8)."""

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")
_END = object()


@contextmanager
def ahead(source: Generator[T, None, None], work: Callable[[T], R]) -> Iterator[Iterator[R]]:
    """Results of ``work`` on what ``source`` yields, in order; the next one is made while one is used.

    Two results exist at most: the one in use and the one behind it. ``source`` and ``work`` run in a
    thread of their own; leaving the block closes the source and waits until that thread has ended. What
    either raises is raised from the iterator, after the results that came before.
    """
    worker = _Worker(source, work)
    worker.start()
    try:
        yield worker.results()
    finally:
        worker.stop()


class _Worker(Generic[T, R]):
    def __init__(self, source: Generator[T, None, None], work: Callable[[T], R]) -> None:
        self._source = source
        self._work = work
        self._made: SimpleQueue[R | object] = SimpleQueue()
        self._failure: BaseException | None = None
        self._room = threading.Semaphore(1)
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="decode", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped = True
        self._room.release()
        self._thread.join()

    def results(self) -> Iterator[R]:
        while (result := self._made.get()) is not _END:
            self._room.release()
            yield result  # type: ignore[misc]  # only _END is of another type
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            with closing(self._source) as source:
                for each in source:
                    self._room.acquire()
                    if self._stopped:
                        break
                    self._made.put(self._work(each))
        except BaseException as err:  # noqa: BLE001 -- raised again where the results are used
            self._failure = err
        finally:
            self._made.put(_END)
