"""What rank 0 does while the coordinator cannot be asked."""

import time
from typing import Any

import pytest
from tests.unit.small_runs import Clock

from dcr.commit.context import TransitionReport
from dcr.commit.remote import Party
from dcr.config import CommitConfig
from dcr.errors import OutcomeUnknown, StoreError, Unreachable
from dcr.model import Catalogue
from dcr.refit.asking import Asker

CONFIG = CommitConfig(fence_deadline_s=5.0)


class Coordinator:
    """A ``Caller`` that raises what it is told to, once each; then it answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.num_asked = 0

    def __call__(self, name: str, method: str, result: Any, deadline_s: float, params: dict[str, Any]) -> Any:
        del name, method, result, deadline_s, params
        self.num_asked += 1
        if self.errors:
            raise self.errors.pop(0)
        return "committed"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    monkeypatch.setattr(time, "sleep", clock.pass_)
    return clock


def ask(coordinator: Coordinator) -> TransitionReport:
    party = Party("coordinator", coordinator, CONFIG)
    asker = Asker(party, None, Catalogue("0" * 32, "00" * 16, ()), "i")  # type: ignore[arg-type]
    return asker.transition(1, 0, patience_s=600.0)


def test_it_is_asked_again_while_the_store_fails_for_a_moment(clock: Clock) -> None:
    failing = [StoreError("the folder cannot be read")] * 5
    coordinator = Coordinator(*failing, Unreachable("no answer"), *failing, OutcomeUnknown("lost"))
    assert ask(coordinator) == "committed"  # type: ignore[comparison-overlap]
    assert coordinator.num_asked == 13


def test_a_store_that_stays_away_ends_the_step_as_an_absent_party_does(clock: Clock) -> None:
    began = clock.now
    with pytest.raises(Unreachable, match="step 1: the coordinator cannot be asked: the disk is full"):
        ask(Coordinator(*[StoreError("the disk is full")] * 10_000))
    assert CONFIG.fence_deadline_s <= clock.now - began <= CONFIG.fence_deadline_s + 1
