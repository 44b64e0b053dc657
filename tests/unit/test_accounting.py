"""Latency and bounds of a refit from hand-made stages (paper Figures 11 and C.5)."""

from dataclasses import replace

import pytest

from dcr_recipes.launch.figures import bounds_words, mean_bounds
from dcr_recipes.trace.accounting import Accounting, account
from dcr_recipes.trace.files import Header, Life, Span
from dcr_recipes.trace.intervals import Interval, busiest_ns, covered_ns

MS = 1_000_000


def life(process: str, *spans: Span, boot: str = "b", clock_ms: float = 0, wall_ms: float = 500) -> Life:
    return Life(Header(process, 1, 7, boot, int(clock_ms * MS), int(wall_ms * MS)), list(spans))


def span(name: str, start_ms: float, end_ms: float, thread: int = 1, **fields: object) -> Span:
    return Span(name, int(start_ms * MS), int(end_ms * MS), thread, fields)


def fold(start_ms: float, end_ms: float, version: int = 1) -> Span:
    return span("owner.fold_in", start_ms, end_ms, version=version)


def transition() -> list[Life]:
    """t0 = 10, t1 = 100. Owner 0 computes [10, 30] and [25, 45], owner 1 [12, 20]; checks take 8 and 5."""
    return [
        life("coordinator", span("coordinator.prepare", 1, 9), span("coordinator.commit", 82, 90)),
        life(
            "owner-0",
            span("owner.construct", 10, 60),
            span("owner.compare", 10, 30),
            span("owner.encode", 25, 45, thread=2),
            span("owner.send", 30, 50, thread=3),
            span("owner.send", 50, 58, thread=3),
            span("owner.compare", 91, 95),
            fold(90, 99),
        ),
        life(
            "owner-1",
            span("owner.construct", 11, 40),
            span("owner.compare", 12, 20),
            span("owner.send", 20, 60, thread=3),
            fold(90, 100),
        ),
        life(
            "runtime-0",
            span("receiver.fetch", 51, 55, thread=2),
            span("receiver.fetch", 53, 57, thread=3),
            span("receiver.apply", 57, 62),
            span("receiver.check", 70, 78),
            span("receiver.settle", 101, 120),
        ),
        life("runtime-1", span("receiver.apply", 63, 66), span("receiver.check", 68, 73)),
    ]


def only(lives: list[Life]) -> Accounting:
    (found,) = account(lives)
    return found


def ms(seconds: float) -> float:
    return round(1000 * seconds, 6)


def test_the_window_runs_from_the_first_construction_to_the_last_fold_in_without_the_check() -> None:
    found = only(transition())
    assert found.version == 1
    assert ms(found.check_s) == 8, "both check at once: the one that ends last counts"
    assert ms(found.latency_s) == 90 - 8, "prepare is before it, settling after it"


def test_bounds_are_the_longest_unions_of_one_owner_or_endpoint() -> None:
    found = only(transition())
    assert ms(found.construction_s) == 35, "[10, 45] of owner 0; the fold-in's comparison is none of it"
    assert ms(found.upload_s) == 40, "owner 1 sends longer at a stretch than owner 0 does in two"
    assert ms(found.download_s) == 6, "two overlapping fetches"
    assert found.transport_s == found.upload_s


def test_finalization_follows_the_last_application_of_any_receiver() -> None:
    found = only(transition())
    assert ms(found.finalization_s) == 100 - 66 - 8
    assert ms(found.rest_s) == 82 - 40 - 26


def test_an_interval_counts_as_far_as_it_lies_in_the_window() -> None:
    lives = transition()
    lives[1].spans[1] = span("owner.compare", 9, 30)  # began before the stage that holds it: it is t0
    assert ms(only(lives).latency_s) == 91 - 8
    assert covered_ns([Interval(0, 15), Interval(95, 200)], Interval(10, 100)) == 10


def test_each_transition_has_its_own_window() -> None:
    second = [
        life(
            "owner-0", span("owner.construct", 210, 230), span("owner.compare", 210, 220), fold(240, 250, 2)
        ),
        life("runtime-0", span("receiver.apply", 230, 235)),
    ]
    found = account([*transition(), *second])
    assert [each.version for each in found] == [1, 2]
    assert ms(found[1].latency_s) == 40
    assert ms(found[1].construction_s) == 10
    assert ms(found[1].finalization_s) == 15
    assert found[1].check_s == 0


def test_residual_conversion_belongs_to_the_window_and_to_construction() -> None:
    lives = transition()
    lives[1].spans.insert(0, span("owner.residual", 2, 6))
    found = only(lives)
    assert ms(found.latency_s) == 98 - 8
    assert ms(found.construction_s) == 39


def test_a_fold_in_without_a_construction_is_no_transition() -> None:
    assert account([life("owner-0", span("owner.compare", 3, 4), fold(2, 5))]) == []
    assert account([]) == []


@pytest.mark.parametrize("name", ["oracle", "oracle-1"])
def test_an_oracle_takes_no_part(name: str) -> None:
    assert only([*transition(), life(name, span("receiver.apply", 80, 95))]) == only(transition())


def test_machines_are_brought_to_one_clock_by_their_headers() -> None:
    """The owners' machine started 1 s earlier, so its clock shows 1 s more at the same instant."""
    moved = [
        replace(
            each,
            header=replace(each.header, boot="other", clock_ns=each.header.clock_ns + 1000 * MS),
            spans=[
                replace(s, start_ns=s.start_ns + 1000 * MS, end_ns=s.end_ns + 1000 * MS) for s in each.spans
            ],
        )
        if each.header.process.startswith("owner")
        else each
        for each in transition()
    ]
    assert only(moved) == only(transition())


@pytest.mark.parametrize(
    ("intervals", "wanted"),
    [
        ([], 0),
        ([(0, 5), (1, 2)], 5),
        ([(0, 2), (2, 4)], 4),
        ([(20, 30), (-9, -2)], 0),
        ([(8, 20), (-5, 1)], 3),
    ],
)
def test_a_union_counts_overlaps_once(intervals: list[tuple[int, int]], wanted: int) -> None:
    assert covered_ns([Interval(*each) for each in intervals], Interval(0, 10)) == wanted


def test_the_busiest_party_is_not_the_sum_of_all() -> None:
    by_party = {"a": [Interval(0, 3)], "b": [Interval(3, 5)]}
    assert busiest_ns(by_party, Interval(0, 10)) == 3
    assert busiest_ns({}, Interval(0, 10)) == 0


def test_a_run_prints_means_of_what_was_accounted_for() -> None:
    one = {f"bounds/{name}": value for name, value in only(transition()).columns().items()}
    two = {name: 3 * value for name, value in one.items()}
    means = mean_bounds([one, {"step": 2}, two])
    assert ms(means["bounds/latency_s"]) == 164
    assert bounds_words(means) == (
        "164 ms, check left out: construction 70, transport 80, finalization 52, rest 32 ms"
    )
    assert bounds_words({}) == ""
    assert mean_bounds([{"step": 1}]) == {}


def test_a_check_beside_another_receivers_transport_saves_nothing() -> None:
    """Receiver 0 has everything early and checks for long; receiver 1 is waited for, and checks 5 ms."""
    found = only(
        [
            life("owner-0", span("owner.construct", 0, 20), span("owner.compare", 0, 10), fold(110, 115)),
            life("runtime-0", span("receiver.apply", 20, 25), span("receiver.check", 25, 95)),
            life(
                "runtime-1",
                span("receiver.fetch", 20, 95),
                span("receiver.apply", 95, 100),
                span("receiver.check", 100, 105),
            ),
        ]
    )
    assert (ms(found.latency_s), ms(found.check_s), ms(found.finalization_s)) == (110, 5, 10)
