"""What is particular to the object transport: keys, and stopping while the store is at work."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import pytest

from dcr.errors import AttemptFailed, ConfigError, StoreError
from dcr.model import OwnerClose, from_json
from dcr.testing.transport_suite import NEXT, OTHER_RUN, RUN, TAU, closing, sample
from dcr.transport.memory import MemoryStore
from dcr.transport.object_transport import ObjectTransport


class HeldStore:
    """A MemoryStore whose operations named in ``holding`` wait to be let go, or fail."""

    def __init__(self) -> None:
        self._inside = MemoryStore()
        self.holding: set[str] = set()
        self.begun = threading.Semaphore(0)
        self.let_go = threading.Event()
        self.failure: StoreError | None = None
        self.num_gets = 0

    def _pass(self, operation: str) -> None:
        if operation in self.holding:
            self.begun.release()
            assert self.let_go.wait(60)
        if self.failure is not None:
            raise self.failure

    def put(self, key: str, data: bytes) -> None:
        self._pass("put")
        self._inside.put(key, data)

    def get(self, key: str) -> bytes:
        self.num_gets += 1
        self._pass("get")
        return self._inside.get(key)

    def list(self, prefix: str) -> list[str]:
        self._pass("list")
        return self._inside.list(prefix)

    def delete(self, key: str) -> None:
        self._inside.delete(key)


@pytest.fixture
def store() -> HeldStore:
    return HeldStore()


def still_running(future: Future[None]) -> bool:
    """Whether it does not end by itself; a stop that does not wait ends within this time."""
    with pytest.raises(TimeoutError):
        future.result(timeout=0.1)
    return True


def test_keys_are_those_of_the_architecture(store: HeldStore) -> None:
    end = ObjectTransport(store, RUN)
    ref, data = sample(3, 12)
    end.publish(TAU, ref, data)
    end.close(closing(3, [ref]))
    assert store.list("") == [f"{RUN}/close/1-1/3", f"{RUN}/payload/1-1/3/12"]
    assert from_json(OwnerClose, store.get(f"{RUN}/close/1-1/3")) == closing(3, [ref])


@pytest.mark.parametrize("run", ["", "a/b", "..", ".", "run/", "ü", " "])
def test_a_run_that_could_leave_its_keys_is_refused(store: HeldStore, run: str) -> None:
    with pytest.raises(ConfigError, match="run id"):
        ObjectTransport(store, run)


def test_foreign_keys_are_no_payloads(store: HeldStore) -> None:
    """Also 00/1, which would be a second name of (0, 1) and defeat deduplication."""
    for name in ("0/x", "x/0", "00/1", "0/01", "0/2/3", "1_0/0", "0/1.tmp", "7"):
        store.put(f"{RUN}/payload/1-1/{name}", b"?")
    assert list(ObjectTransport(store, RUN).fetch(TAU, ())) == []


def test_a_payload_collected_while_fetching_is_passed_over(store: HeldStore) -> None:
    end = ObjectTransport(store, RUN)
    for sequence in range(3):
        end.publish(TAU, *sample(0, sequence))
    stream = end.fetch(TAU, ())
    assert next(stream)[0].sequence == 0
    store.delete(f"{RUN}/payload/1-1/0/1")
    assert [ref.sequence for ref, _ in stream] == [2]


@pytest.mark.parametrize("operation", ["put", "get", "list"])
def test_stop_and_wait_waits_for_the_store(store: HeldStore, operation: str) -> None:
    end = ObjectTransport(store, RUN)
    end.publish(TAU, *sample(0, 0))
    store.holding = {operation}

    def work() -> None:
        if operation == "put":
            end.publish(TAU, *sample(0, 1))
        else:
            next(end.fetch(TAU, ()))

    with ThreadPoolExecutor(3) as pool:
        working = pool.submit(work)
        assert store.begun.acquire(timeout=60)
        stopping = pool.submit(end.stop_and_wait, TAU)
        assert still_running(stopping)
        pool.submit(end.stop_and_wait, NEXT).result(timeout=60)
        store.let_go.set()
        stopping.result(timeout=60)
        if operation == "put":
            working.result(timeout=60)
        else:
            with pytest.raises(AttemptFailed):
                working.result(timeout=60)


def test_stop_and_wait_waits_for_every_operation(store: HeldStore) -> None:
    end = ObjectTransport(store, RUN)
    store.holding = {"put"}
    with ThreadPoolExecutor(4) as pool:
        working = [pool.submit(end.publish, TAU, *sample(owner, 0)) for owner in range(2)]
        working.append(pool.submit(end.close, closing(5, [])))
        for _ in working:
            assert store.begun.acquire(timeout=60)
        stopping = pool.submit(end.stop_and_wait, TAU)
        assert still_running(stopping)
        store.let_go.set()
        stopping.result(timeout=60)
        assert len(store.list("")) == 3


def test_a_failed_operation_does_not_keep_an_attempt_busy(store: HeldStore) -> None:
    end = ObjectTransport(store, RUN)
    store.failure = StoreError("full")
    for act in (
        lambda: end.publish(TAU, *sample(0, 0)),
        lambda: end.close(closing(0, [])),
        lambda: list(end.fetch(TAU, ())),
    ):
        with pytest.raises(StoreError, match="full"):
            act()
    stopping = threading.Thread(target=end.stop_and_wait, args=(TAU,), daemon=True)
    stopping.start()
    stopping.join(timeout=10)
    assert not stopping.is_alive()


def test_a_close_that_failed_may_be_repeated_but_nothing_else(store: HeldStore) -> None:
    """It may have landed: publishing more would go unnoticed."""
    end = ObjectTransport(store, RUN)
    store.failure = StoreError("no answer")
    with pytest.raises(StoreError):
        end.close(closing(0, []))
    store.failure = None
    with pytest.raises(AttemptFailed, match="owner 0 has closed"):
        end.publish(TAU, *sample(0, 0))
    end.close(closing(0, []))


def test_stopping_one_run_does_not_wait_for_another(store: HeldStore) -> None:
    store.holding = {"put"}
    other = ObjectTransport(store, OTHER_RUN)
    with ThreadPoolExecutor(2) as pool:
        working = pool.submit(other.publish, TAU, *sample(0, 0, run=OTHER_RUN))
        assert store.begun.acquire(timeout=60)
        pool.submit(ObjectTransport(store, RUN).stop_and_wait, TAU).result(timeout=60)
        store.let_go.set()
        working.result(timeout=60)


def test_a_damaged_payload_has_no_digest(store: HeldStore) -> None:
    ref, data = sample(0, 0)
    end = ObjectTransport(store, RUN)
    end.publish(TAU, ref, bytes([*data[:-1], data[-1] ^ 1]))
    assert [found for found, _ in end.fetch(TAU, ())] == [replace(ref, digest="")]


def test_ahead_of_the_receiver_so_many_are_fetched_and_no_more(store: HeldStore) -> None:
    end = ObjectTransport(store, RUN, ahead=2)
    for sequence in range(6):
        end.publish(TAU, *sample(0, sequence))
    coming = end.fetch(TAU, ())
    assert next(coming)[0].sequence == 0
    store.holding.add("get")
    assert next(coming)[0].sequence == 1
    assert store.begun.acquire(timeout=60)
    assert store.num_gets == 4, "two were given, two are coming"
    store.holding.clear()
    store.let_go.set()
    assert [ref.sequence for ref, _ in coming] == [2, 3, 4, 5]


def test_what_is_published_meanwhile_is_fetched_in_the_same_turn(store: HeldStore) -> None:
    """The link does not rest until the receiver looks again."""
    end = ObjectTransport(store, RUN, ahead=2)
    end.publish(TAU, *sample(0, 0))
    end.publish(TAU, *sample(0, 2))
    got = []
    for ref, _ in end.fetch(TAU, {(0, 2)}):
        got.append(ref.sequence)
        if ref.sequence < 5:
            end.publish(TAU, *sample(0, 3 + ref.sequence))
    assert got == [0, 3, 6], "what is seen already is not given again, nor is anything twice"


def test_who_stops_reading_ahead_leaves_no_thread(store: HeldStore) -> None:
    end = ObjectTransport(store, RUN, ahead=2)
    for sequence in range(6):
        end.publish(TAU, *sample(0, sequence))
    before = set(threading.enumerate())
    coming = end.fetch(TAU, ())
    next(coming)
    end.stop_and_wait(TAU)
    with pytest.raises(AttemptFailed):
        next(coming)
    assert set(threading.enumerate()) <= before
    assert store.num_gets < 6
