"""Stages on disk, brought to one clock, merged, and checked; every check is shown to fail."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from dcr import observe
from dcr_recipes.layout import RunFolder
from dcr_recipes.trace.check import check, check_file
from dcr_recipes.trace.files import Header, Life, Span, Tail, header_line, read_lives, span_line
from dcr_recipes.trace.merge import SLACK_US, merge, write_trace
from dcr_recipes.trace.seconds import StageClock, stage_seconds
from dcr_recipes.trace.stages import FLUSHED, PHASES, TRACK_ORDER, TRACKS
from dcr_recipes.trace.writer import read_phases, recording

MS = 1_000_000


def _life(process: str, *spans: Span, boot: str = "b", clock_ns: int = 0, wall_ns: int = 1_000 * MS) -> Life:
    return Life(Header(process, 1, 7, boot, clock_ns, wall_ns), list(spans))


def _span(name: str, start_ms: float, end_ms: float, **fields: object) -> Span:
    return Span(name, int(start_ms * MS), int(end_ms * MS), 1, fields)


def _good() -> list[Life]:
    """One transition as it should be: times in ms."""
    return [
        _life(
            "coordinator",
            _span("coordinator.construct", 10, 30, attempt="1-1"),
            _span("coordinator.finish", 31, 40, attempt="1-1"),
            _span("coordinator.commit", 41, 43, attempt="1-1"),
            _span("coordinator.fold_in", 44, 60, attempt="1-1"),
        ),
        _life(
            "owner-0",
            _span("trainer.train", 0, 9),
            _span("trainer.refit", 9.5, 70),
            _span("owner.compare", 10, 12, key="a"),
            _span("owner.compress", 14, 15),
            _span("owner.encode", 13, 16),
            _span("owner.compare", 46, 47, key="a"),
            _span("owner.fold_in", 45, 55, attempt="1-1"),
        ),
        _life(
            "runtime-0",
            _span("runtime.generate", 0, 8),
            _span("receiver.open_apply", 10, 11, attempt="1-1"),
            _span("receiver.decode", 18, 19, attempt="1-1"),
            _span("receiver.apply", 19, 29, attempt="1-1"),
            _span("receiver.check", 32, 38, attempt="1-1"),
            _span("receiver.finish", 31, 39, attempt="1-1"),
            _span("receiver.settle", 61, 62),
        ),
    ]


def test_a_good_trace_has_no_findings_and_names_every_process_and_track() -> None:
    trace = merge(_good())
    assert check(trace) == []
    labels = [event for event in trace["traceEvents"] if event["ph"] == "M"]
    assert {e["args"]["name"] for e in labels if e["name"] == "process_name"} == {
        "coordinator", "owner-0", "runtime-0",
    }  # fmt: skip
    assert {"comparison", "compression", "apply", "checks", "commit", "fold-in"} <= {
        e["args"]["name"] for e in labels if e["name"] == "thread_name"
    }
    first = min(e["ts"] for e in trace["traceEvents"] if e["ph"] == "X")
    assert first == 0


def test_a_stage_in_several_threads_has_as_many_lanes() -> None:
    lives = _good()
    beside = [replace(_span("owner.compare", *times, key="b"), thread=2) for times in ((11, 13), (14, 15))]
    third = replace(_span("owner.compare", 11.5, 12.5, key="c"), thread=3)
    lives[1] = replace(lives[1], spans=[*lives[1].spans, *beside, third])
    trace = merge(lives)
    assert check(trace) == []
    labels = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    found = [
        (e["ts"], labels[e["tid"]]) for e in trace["traceEvents"] if e["ph"] == "X" and "compare" in e["name"]
    ]
    start = min(ts for ts, _ in found)
    assert [(ts - start, name.removeprefix("comparison")) for ts, name in found] == [
        (0, ""), (1000, " (2)"), (1500, " (3)"), (4000, ""), (36000, "")
    ]  # fmt: skip


def _replace(process: int, name: str, start_ms: float, end_ms: float) -> Callable[[list[Life]], None]:
    def change(lives: list[Life]) -> None:
        spans = lives[process].spans
        (index, *_) = [i for i, span in enumerate(spans) if span.name == name]
        spans[index] = Span(name, int(start_ms * MS), int(end_ms * MS), 1, spans[index].fields)

    return change


@pytest.mark.parametrize(
    ("break_it", "finding"),
    [
        (_replace(1, "owner.compare", 45.5, 46.5), "overlaps owner.compare"),
        (
            _replace(2, "runtime.generate", 0, 20),
            "receiver.apply at 19000.0 us (pid 3) overlaps runtime.generate",
        ),
        (
            _replace(2, "receiver.check", 28, 38),
            "receiver.check at 28000.0 us (pid 3) overlaps receiver.apply",
        ),
        (_replace(1, "trainer.train", 0, 11), "overlaps trainer.train"),
        (
            _replace(2, "receiver.open_apply", 20, 21),
            "receiver.apply at 19000.0 us (pid 3) begins before its",
        ),
        (_replace(2, "receiver.finish", 31, 42), "ends after the commit of attempt 1-1 begins"),
        (_replace(0, "coordinator.finish", 31, 42), "coordinator.commit at 41000.0 us (pid 1) overlaps"),
        (_replace(1, "owner.fold_in", 42, 55), "begins before attempt 1-1 is committed"),
    ],
)
def test_each_seeded_fault_is_found(break_it: Callable[[list[Life]], None], finding: str) -> None:
    lives = _good()
    break_it(lives)
    found = check(merge(lives))
    assert any(finding in line for line in found), found


def test_an_apply_of_an_attempt_that_was_never_opened_is_found() -> None:
    lives = _good()
    del lives[2].spans[1]
    assert any("attempt 1-1 was never opened there" in line for line in check(merge(lives)))


@pytest.mark.parametrize(
    ("event", "finding"),
    [
        ({"dur": None}, "dur is None"),
        ({"ts": -1}, "ts is negative"),
        ({"ph": "Z"}, "ph is 'Z'"),
        ({"name": 3}, "name is 3"),
    ],
)
def test_malformed_events_are_found(event: dict[str, Any], finding: str) -> None:
    trace = merge(_good())
    trace["traceEvents"][-1] |= event
    assert any(finding in line for line in check(trace))


def test_files_that_are_no_trace_are_found(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    for text, finding in (("{", "is no JSON"), ("[]", "holds no JSON object"), ("{}", "missing or empty")):
        path.write_text(text)
        assert any(finding in line for line in check_file(path))


def test_clocks_of_one_boot_share_an_offset_and_others_have_their_own() -> None:
    # runtime-0's wall clock was set back 5 ms between its start and the coordinator's
    early = _life("coordinator", _span("coordinator.commit", 1, 2))
    late = _life("runtime-0", _span("receiver.settle", 3, 4), clock_ns=2 * MS, wall_ns=997 * MS)
    shared = merge([early, late])
    starts = {e["name"]: e["ts"] for e in shared["traceEvents"] if e["ph"] == "X"}
    assert starts["receiver.settle"] - starts["coordinator.commit"] == 2000
    assert shared["otherData"]["slack_us"] == 0
    apart = [
        _life(each.header.process, *each.spans, boot="", wall_ns=each.header.wall_ns)
        for each in (early, late)
    ]
    assert merge(apart)["otherData"]["slack_us"] == SLACK_US


def test_torn_and_foreign_lines_are_passed_over_and_a_second_life_is_appended(tmp_path: Path) -> None:
    path = tmp_path / "owner-0-1.jsonl"
    one, two = (Header("owner-0", 1, pid, "b", 0, 0) for pid in (1, 2))
    span = _span("owner.send", 1, 2)
    torn = span_line(span)[:-9]
    path.write_text(header_line(one) + span_line(span) + "[1, 2]\n{}\nnull\n" + torn)
    assert read_lives(tmp_path) == [Life(one, [span])]
    with path.open("a") as out:
        out.write(header_line(two) + span_line(span))
    assert [life.header.pid for life in read_lives(tmp_path)] == [1, 2]
    assert check(merge(read_lives(tmp_path))) == []


def test_a_tail_reads_each_stage_once_and_waits_for_whole_lines(tmp_path: Path) -> None:
    path, header, span = tmp_path / "a-1.jsonl", Header("a", 1, 1, "b", 0, 0), _span("owner.send", 1, 2)
    tail = Tail(tmp_path)
    assert tail.take() == []
    path.write_text(header_line(header) + span_line(span)[:-5])
    assert tail.take() == []
    path.write_text(header_line(header) + span_line(span))
    assert tail.take() == [Life(header, [span])]
    assert tail.take() == []


def test_what_a_process_marks_reaches_its_files(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with recording(folder, "runtime-0", 2, trace=True):
        assert read_phases(folder.phases) == {"runtime-0": "starting"}
        with observe.stage("receiver.open_apply", attempt="1-1"):
            pass
        assert read_phases(folder.phases) == {"runtime-0": "applying attempt 1-1"}
        with observe.span("receiver.apply", attempt="1-1"), observe.span("receiver.unheard_of"):
            observe.point("receiver.item.before")
        with pytest.raises(KeyError), observe.stage("receiver.check"):
            raise KeyError
        assert not list(folder.trace.iterdir())
        with observe.stage("receiver.settle", version=1):
            pass
        (life,) = read_lives(folder.trace)
    assert [span.name for span in life.spans] == ["receiver.open_apply", "receiver.apply", "receiver.settle"]
    assert all(span.start_ns <= span.end_ns for span in life.spans)
    assert (life.header.process, life.header.incarnation) == ("runtime-0", 2)
    assert check_file(write_trace(folder)) == []
    json.loads(folder.trace_json.read_text())
    observe.point("receiver.settle.before", version=2)
    assert read_phases(folder.phases) == {"runtime-0": "serving v1"}


def test_without_a_trace_only_the_phase_is_told(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with recording(folder, "oracle", 1, trace=False), observe.stage("process.build"):
        pass
    assert not list(folder.trace.iterdir())
    assert read_phases(folder.phases) == {"oracle": "loaded the model"}


def test_a_disk_that_takes_no_more_ends_the_trace_and_not_the_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = RunFolder(tmp_path)
    with recording(folder, "oracle", 1, trace=True):
        (folder.trace / "oracle-1.jsonl").mkdir()
        for _ in range(2):
            with observe.stage("runtime.load_dense", version=1):
                pass
    assert [record.message.split(":")[0] for record in caplog.records] == ["no further trace"]


def test_seconds_are_of_the_slowest_process_and_count_nothing_twice() -> None:
    lives = [
        *_good(),
        _life("owner-1", _span("owner.compare", 10, 15)),
        *(_life(name, _span("runtime.load_dense", 0, 9)) for name in ("oracle", "oracle-1")),
    ]
    found = stage_seconds(lives)
    assert found["compare"] == pytest.approx(0.005)
    assert found["encode"] == pytest.approx(0.002)
    assert found["compress"] == pytest.approx(0.001)
    assert found["fold_in"] == pytest.approx(0.010)
    assert found["apply"] == pytest.approx(0.010)
    assert found["load"] == found["restore"] == 0.0


def test_what_an_anchor_does_is_part_of_no_other_stage() -> None:
    lives = [
        _life(
            "owner-0",
            _span("owner.encode", 0, 4), _span("owner.send", 4, 5),
            _span("owner.anchor", 10, 30), _span("owner.encode", 11, 20), _span("owner.send", 20, 29),
            _span("owner.send", 31, 33),
        )
    ]  # fmt: skip
    found = stage_seconds(lives)
    assert found["anchor"] == pytest.approx(0.020)
    assert found["encode"] == pytest.approx(0.004)
    assert found["send"] == pytest.approx(0.003)


def test_a_stage_clock_counts_what_came_since_it_was_asked(tmp_path: Path) -> None:
    path = tmp_path / "owner-0-1.jsonl"
    path.write_text(header_line(Header("owner-0", 1, 1, "b", 0, 0)) + span_line(_span("owner.send", 0, 9)))
    clock = StageClock(tmp_path)
    with path.open("a") as out:
        out.write(span_line(_span("owner.send", 10, 12)))
    assert clock.take()["send"] == pytest.approx(0.002)
    assert clock.take()["send"] == 0.0


def test_stages_are_consistent() -> None:
    assert set(FLUSHED) <= set(TRACKS)
    assert sorted(TRACK_ORDER) == sorted(set(TRACKS.values()))
    assert {name.rpartition(".")[0] for name in PHASES} <= set(TRACKS)
    assert len(asdict(Header("a", 1, 1, "", 0, 0))) == 6
