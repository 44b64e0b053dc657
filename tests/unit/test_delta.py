from dataclasses import dataclass
from unittest.mock import Mock

import pytest

import dcr_recipes.delta
from dcr.errors import AttemptFailed, Conflict, IntegrityError, RefitError, Unreachable
from dcr.model import GENESIS, CommitRecord
from dcr.refit import Refit, SyncReport
from dcr_recipes.delta import DeltaRefitter, bring_to


@dataclass
class Runtime:
    process: int = 1
    version: int = 3
    is_open: bool = True
    away: bool = False
    refusals: tuple[RefitError, ...] = ()
    num_asked: int = 0

    def status(self) -> "Runtime":
        if self.away:
            raise Unreachable("connection refused")
        return self

    def admit(self) -> None:
        self.num_asked += 1
        if self.num_asked <= len(self.refusals):
            raise self.refusals[self.num_asked - 1]
        self.version, self.is_open = 3, True


@pytest.mark.parametrize("runtime", [Runtime(), Runtime(away=True)])
def test_one_that_serves_or_is_away_is_left_alone(runtime: Runtime) -> None:
    bring_to("runtime-0", runtime, 3, patience_s=60)
    assert runtime.num_asked == 0


@pytest.mark.parametrize(
    "runtime",
    [
        Runtime(is_open=False),
        Runtime(version=-1, is_open=False),
        Runtime(is_open=False, refusals=(Conflict("fenced since"), AttemptFailed("no"), Unreachable("gone"))),
    ],
)
def test_one_whose_gate_stayed_closed_is_admitted(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dcr_recipes.delta, "_PAUSE_S", 0)
    bring_to("runtime-0", runtime, 3, patience_s=60)
    assert (runtime.version, runtime.is_open) == (3, True)
    assert runtime.num_asked == len(runtime.refusals) + 1


def test_proof_that_fails_ends_the_run_and_patience_ends() -> None:
    with pytest.raises(IntegrityError):
        bring_to("runtime-0", Runtime(is_open=False, refusals=(IntegrityError("bits"),)), 3, patience_s=60)
    with pytest.raises(Unreachable, match="runtime-0 was not brought to version 3: busy"):
        bring_to("runtime-0", Runtime(is_open=False, refusals=(AttemptFailed("busy"),)), 3, patience_s=0)


def test_one_that_starts_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dcr_recipes.delta, "_PAUSE_S", 0)
    waits = iter([True, True, False])

    class Starting(Runtime):
        def status(self) -> Runtime:  # type: ignore[explicit-override]
            self.away = next(waits)
            return super().status()

    bring_to("runtime-0", Starting(), 3, patience_s=60, starts=True)
    assert next(waits, None) is None
    bring_to("runtime-0", Runtime(away=True), 3, patience_s=0, starts=True)


def test_only_members_are_brought_to_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    brought: list[str] = []
    monkeypatch.setattr(dcr_recipes.delta, "bring_to", lambda name, *_args, **_more: brought.append(name))
    instances = {"runtime-0": Runtime(), "runtime-1": Runtime()}
    refitter = DeltaRefitter(Mock(spec=Refit), False, instances, members=lambda: ("runtime-1",))
    refitter.serve(3)
    assert brought == ["runtime-1"]


def test_a_refit_names_the_instances_that_it_was_committed_without() -> None:
    def figures(version: int, required: tuple[str, ...]) -> tuple[str, ...]:
        record = CommitRecord("r", version, GENESIS, 1, "w", None, version, "c", "m", "a")
        refit = Mock(spec=Refit)
        refit.sync.return_value = SyncReport(record, 1, 2, 1, 3, 4, required)
        instances = {"runtime-0": Runtime(), "runtime-1": Runtime()}
        return DeltaRefitter(refit, False, instances).sync(version, version - 1).left_out

    assert figures(1, ("runtime-0", "runtime-1", "guest")) == ()
    assert figures(1, ("runtime-0",)) == ("runtime-1",)
    assert figures(0, ()) == (), "v0 is restored by all"
