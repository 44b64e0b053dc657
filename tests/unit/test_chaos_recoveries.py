from dcr_recipes.chaos.recoveries import Recoveries, Sight, Struck
from dcr_recipes.chaos.schedule import Kind


def _sight(version: int, asked_at: float, *, pid: int = 2, is_open: bool = True) -> Sight:
    return Sight("runtime-0", pid, version, is_open, asked_at)


def test_a_killed_runtime_has_recovered_when_a_new_process_serves_the_newest_version() -> None:
    seen = Recoveries()
    seen.strike(Struck(1, Kind.KILL_RUNTIME, "runtime-0", 1, at=10.0, until=10.0))
    assert seen.see_instance(_sight(4, 9.9, pid=1), 4, 10.1) == [], "asked before it was killed"
    assert seen.see_instance(_sight(4, 10.0, pid=1), 4, 10.1) == [], "the one that was killed"
    assert seen.see_instance(_sight(4, 12.0, is_open=False), 4, 12.0) == []
    assert seen.see_instance(_sight(3, 12.0), 4, 12.0) == [], "an older version"
    (over,) = seen.see_instance(_sight(4, 13.0), 4, 13.5)
    assert (over.seconds, seen.open) == (3.5, {})


def test_a_stop_or_a_cut_is_not_over_before_its_end() -> None:
    seen = Recoveries()
    seen.strike(Struck(1, Kind.STOP_RUNTIME, "runtime-0", 2, at=1.0, until=3.0))
    seen.strike(Struck(2, Kind.CUT_RUNTIME, "runtime-1", 2, at=1.0, until=2.0))
    assert seen.see_instance(_sight(4, 2.9), 4, 3.0) == []
    assert [over.struck.number for over in seen.see_instance(_sight(4, 3.0), 4, 3.1)] == [1]
    assert set(seen.open) == {2}, "another instance's"


def test_other_faults_are_over_at_the_next_commit() -> None:
    seen = Recoveries()
    seen.strike(Struck(1, Kind.KILL_COORDINATOR, "coordinator-1", 7, at=5.0, until=5.0))
    assert seen.see_commit(9, asked_at=4.9, now=5.1) == []
    assert seen.see_commit(10, asked_at=5.1, now=5.2) == [], "may have been committed before the fault"
    assert seen.see_commit(10, asked_at=6.0, now=6.0) == []
    (over,) = seen.see_commit(11, asked_at=7.0, now=7.1)
    assert round(over.seconds, 6) == 2.1
    assert seen.see_instance(_sight(11, 8.0), 11, 8.0) == []
