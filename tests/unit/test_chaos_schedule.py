from collections import Counter
from itertools import islice

from dcr_recipes.chaos.schedule import ROLES, WEIGHTS, Kind, Pace, Planned, schedule


def _first(
    num: int, seed: int = 5, roles: tuple[str, ...] = ROLES, pace: Pace | None = None
) -> list[Planned]:
    return list(islice(schedule(seed, roles, pace or Pace()), num))


def test_the_seed_decides_every_fault_in_order() -> None:
    assert _first(50) == _first(100)[:50]
    assert _first(50) != _first(50, seed=6)
    assert [planned.number for planned in _first(3)] == [1, 2, 3]


def test_each_kind_comes_as_often_as_its_weight() -> None:
    drawn = Counter(planned.kind for planned in _first(2800))
    assert set(drawn) == set(Kind)
    for kind, weight in WEIGHTS.items():
        assert 0.7 < drawn[kind] / (100 * weight) < 1.3


def test_only_processes_that_the_run_has_are_struck() -> None:
    kinds = {planned.kind for planned in _first(200, roles=("runtime", "trainer"))}
    assert {kind.role for kind in kinds} == {"runtime", "trainer"}


def test_times_stay_within_the_pace() -> None:
    pace = Pace(mean_pause_s=2.0, longest_s=5.0, refit_s=0.3)
    drawn = _first(500, pace=pace)
    assert 1.8 < sum(planned.pause_s for planned in drawn) / 500 < 2.2
    assert all(0 < planned.lasts_s <= 5.0 and 0 <= planned.delay_s < 0.3 for planned in drawn)
    assert max(planned.lasts_s for planned in drawn) > 4.5
    assert {planned.in_refit for planned in drawn} == {True, False}
