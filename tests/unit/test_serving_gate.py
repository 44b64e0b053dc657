"""The request gate under threads: no request ever spans two versions."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from dcr.errors import AttemptFailed, IntegrityError, Unreachable
from dcr.receiver.gate import ServingGate


def test_starts_closed_and_tells_late_requests_so() -> None:
    gate = ServingGate(admit_deadline_s=0.01)
    with pytest.raises(Unreachable, match="gate closed"), gate.enter():
        pytest.fail("admitted")
    assert (gate.version, gate.is_open) == (-1, False)


def test_a_waiting_request_is_admitted_with_the_new_version() -> None:
    gate = ServingGate(admit_deadline_s=30)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(_version_of, gate)
        gate.open(7, changed=True)
        assert answer.result() == 7


def test_close_waits_for_requests_in_flight() -> None:
    gate = ServingGate()
    gate.open(0, changed=False)
    with ThreadPoolExecutor(1) as pool:
        with gate.enter() as version:
            closing = pool.submit(gate.close)
            while gate.is_open:
                pass
            assert version == 0
            assert not closing.done()
        closing.result()
    gate.close()


def test_close_gives_up_at_its_deadline_and_stays_closed() -> None:
    gate = ServingGate(drain_deadline_s=0.01)
    gate.open(0, changed=False)
    with gate.enter():
        with pytest.raises(AttemptFailed, match="1 requests"):
            gate.close()
        with pytest.raises(IntegrityError, match="while requests used 0"):
            gate.open(1, changed=True)
    assert not gate.is_open


def test_caches_are_cleared_before_changed_weights_serve_and_only_then() -> None:
    gate = ServingGate()
    seen: list[bool] = []
    gate.on_change(lambda: seen.append(gate.is_open))
    gate.open(0, changed=True)
    gate.open(0, changed=True)
    gate.close()
    gate.open(1, changed=False)
    assert seen == [False]
    assert gate.version == 1


def test_weights_that_changed_behind_an_open_gate_are_an_error() -> None:
    gate = ServingGate()
    gate.open(0, changed=False)
    with pytest.raises(IntegrityError):
        gate.open(1, changed=True)


def test_a_request_that_fails_leaves_the_gate() -> None:
    gate = ServingGate()
    gate.open(0, changed=False)
    with pytest.raises(ValueError, match="request"), gate.enter():
        raise ValueError("request")
    gate.close()


def test_no_request_spans_two_versions() -> None:
    gate = ServingGate()
    weights = [0, 0]
    gate.open(0, changed=False)
    stop = threading.Event()

    def request() -> int:
        count = 0
        while not stop.is_set():
            with gate.enter() as version:
                first = weights[0]
                assert first == weights[1] == version
                count += 1
        return count

    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(request) for _ in range(4)]
        for version in range(1, 200):
            gate.close()
            weights[0] = version
            weights[1] = version
            gate.open(version, changed=True)
        stop.set()
        assert sum(future.result() for future in running) > 0


def _version_of(gate: ServingGate) -> int:
    with gate.enter() as version:
        return version


class _Inner:
    """An engine's gate; notes whether the one before it admitted anybody meanwhile."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, bool]] = []
        self.outer: ServingGate | None = None

    def close(self) -> None:
        assert self.outer is not None
        self.calls.append(("close", self.outer.is_open))

    def open(self, version: int, *, changed: bool) -> None:
        assert self.outer is not None
        self.calls.append((f"open {version} {changed}", self.outer.is_open))


def test_an_engines_gate_closes_after_and_opens_before_the_one_in_front() -> None:
    inner = _Inner()
    gate = inner.outer = ServingGate(inner)
    gate.close()
    gate.open(3, changed=True)
    gate.open(3, changed=True)
    with gate.enter() as version:
        assert version == 3
    gate.close()
    gate.open(4, changed=False)
    assert inner.calls == [
        ("close", False), ("open 3 True", False), ("close", False), ("open 4 False", False),
    ]  # fmt: skip


def test_an_engine_that_does_not_open_leaves_the_gate_closed() -> None:
    class Dead(_Inner):
        def open(self, version: int, *, changed: bool) -> None:  # type: ignore[explicit-override]
            raise Unreachable("the engine died")

    gate = ServingGate(Dead())
    with pytest.raises(Unreachable, match="died"):
        gate.open(1, changed=True)
    assert not gate.is_open
