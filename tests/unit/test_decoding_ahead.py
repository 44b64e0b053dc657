"""``ahead``: order, two results at most, overlap, failures in their turn, nothing left behind."""

import threading
from collections.abc import Generator, Iterator

import pytest

from dcr.receiver.decoding import ahead

PATIENCE_S = 30.0


class Numbers:
    """Yields 0 .. ``count`` - 1, then raises ``end`` if there is one; knows whether it was closed."""

    def __init__(self, count: int, end: BaseException | None = None) -> None:
        self.closed = False
        self._count = count
        self._end = end

    def __call__(self) -> Generator[int, None, None]:
        try:
            yield from range(self._count)
            if self._end is not None:
                raise self._end
        finally:
            self.closed = True


def _threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name == "decode"}


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert not _threads()


def test_results_come_in_order_and_the_source_is_closed() -> None:
    numbers = Numbers(50)
    with ahead(numbers(), lambda number: 2 * number) as results:
        assert list(results) == list(range(0, 100, 2))
    assert numbers.closed


def test_a_source_without_anything_gives_nothing() -> None:
    with ahead(Numbers(0)(), str) as results:
        assert list(results) == []


def test_the_next_result_is_made_while_one_is_used_and_no_more() -> None:
    made = [threading.Event() for _ in range(4)]

    def work(number: int) -> int:
        made[number].set()
        return number

    with ahead(Numbers(4)(), work) as results:
        for number in results:
            if number < 3:
                assert made[number + 1].wait(PATIENCE_S)
            if number < 2:
                assert not made[number + 2].wait(0.05)


@pytest.mark.parametrize("failure", [OSError("gone"), KeyboardInterrupt()])
def test_a_failure_of_the_source_comes_after_what_came_before_it(failure: BaseException) -> None:
    seen = []
    with pytest.raises(type(failure)) as caught, ahead(Numbers(3, failure)(), str) as results:  # noqa: PT012
        for result in results:
            seen.append(result)  # noqa: PERF402 -- up to the failure
    assert caught.value is failure
    assert seen == ["0", "1", "2"]


def test_a_failure_of_the_work_ends_it_in_its_turn() -> None:
    numbers, seen = Numbers(9), []
    with pytest.raises(ZeroDivisionError), ahead(numbers(), lambda number: 6 // (2 - number)) as results:  # noqa: PT012
        for result in results:
            seen.append(result)  # noqa: PERF402 -- up to the failure
    assert seen == [3, 6]
    assert numbers.closed


def test_whoever_stops_early_closes_the_source() -> None:
    numbers = Numbers(9)
    with ahead(numbers(), str) as results:
        assert next(results) == "0"
    assert numbers.closed


def test_what_fails_in_the_block_is_not_hidden() -> None:
    with pytest.raises(LookupError), ahead(Numbers(9)(), str) as results:  # noqa: PT012
        next(results)
        raise LookupError
