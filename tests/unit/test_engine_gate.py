"""The gates of engines: what an engine is told, and when."""

import threading

import pytest
from tests.unit.engine_controls import Recorded

from dcr.errors import AttemptFailed, IntegrityError, Unreachable
from dcr.receiver.workers.gate import EngineGate, OfflineGate


def test_caches_are_reset_before_the_version_is_set_and_requests_go_on() -> None:
    control = Recorded()
    gate = EngineGate(control)
    assert (gate.is_open, gate.version) == (False, -1)
    gate.close()
    gate.open(3, changed=True)
    assert control.told == ["pause", "reset", "version 3", "resume"]
    assert (gate.is_open, gate.version) == (True, 3)


def test_unchanged_weights_keep_caches() -> None:
    control = Recorded()
    gate = EngineGate(control)
    gate.close()
    gate.open(3, changed=False)
    assert control.told == ["pause", "version 3", "resume"]


def test_opening_again_is_no_event() -> None:
    control = Recorded()
    gate = EngineGate(control)
    gate.close()
    gate.open(1, changed=True)
    told = list(control.told)
    gate.open(1, changed=True)
    assert control.told == told


@pytest.mark.parametrize("opened", [False, True])
def test_weights_that_change_under_requests_are_an_error(opened: bool) -> None:
    gate = EngineGate(Recorded())
    if opened:
        gate.close()
        gate.open(1, changed=True)
    with pytest.raises(IntegrityError, match="while requests were computed"):
        gate.open(2, changed=True)


def test_a_dead_engine_leaves_the_gate_shut() -> None:
    control = Recorded()
    gate = EngineGate(control)
    gate.close()
    control.dead = True
    with pytest.raises(Unreachable):
        gate.open(1, changed=True)
    assert not gate.is_open


def opened(control: Recorded) -> EngineGate:
    gate = EngineGate(control)
    gate.close()
    gate.open(1, changed=True)
    control.told.clear()
    return gate


def test_a_pause_whose_answer_was_lost_is_lifted() -> None:
    control = Recorded()
    gate = opened(control)
    control.unheard = "pause"
    with pytest.raises(Unreachable):
        gate.close()
    assert not gate.is_open
    gate.open(1, changed=False)
    assert control.told == ["pause", "version 1", "resume"]
    assert gate.is_open


def test_an_opening_whose_answer_was_lost_is_begun_anew() -> None:
    """The engine may run by then, and a cache is only emptied while it stands still."""
    control = Recorded()
    gate = opened(control)
    gate.close()
    control.unheard = "resume"
    with pytest.raises(Unreachable):
        gate.open(2, changed=True)
    assert not gate.is_open
    control.told.clear()
    gate.open(2, changed=True)
    assert control.told == ["pause", "reset", "version 2", "resume"]
    assert gate.is_open


def test_offline_requests_wait_for_an_open_gate() -> None:
    control = Recorded()
    gate = OfflineGate(control, admit_deadline_s=0.01)
    with pytest.raises(Unreachable), gate.generating():
        pass
    gate.close()
    gate.open(0, changed=True)
    with gate.generating() as version:
        assert version == 0
    assert control.told == ["reset", "version 0"]


def test_an_offline_engine_keeps_its_version_while_it_is_asked() -> None:
    control = Recorded()
    gate = OfflineGate(control, drain_deadline_s=0.01)
    gate.close()
    gate.open(0, changed=True)
    control.told.clear()
    with gate.generating():
        with pytest.raises(AttemptFailed, match="still in flight"):
            gate.close()
        with pytest.raises(IntegrityError, match="while requests used 0"):
            gate.open(1, changed=True)
        assert control.told == [], "what is computed now is computed by version 0"
        gate.open(0, changed=False)
        assert control.told == []
    assert gate.is_open


def test_an_offline_engine_is_asked_by_nobody_else_while_it_generates() -> None:
    control = Recorded()
    gate = OfflineGate(control)
    gate.close()
    gate.open(0, changed=True)
    order: list[str] = []

    def audit() -> None:
        with control.alone():
            order.append("audit")

    with gate.generating():
        other = threading.Thread(target=audit)
        other.start()
        other.join(0.1)
        order.append("generated")
    other.join()
    assert order == ["generated", "audit"]
