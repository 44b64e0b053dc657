"""All processes' files as one Chrome trace (``RUN/trace.json``), which Perfetto and chrome://tracing open.

One process of the trace is one process of the run over all its lives; one thread is one of its stages, or
one of several lanes of a stage that ran in several threads at once.

One clock: all processes of one machine start (``Header.boot``) share a monotonic clock, so their times
are moved by one common offset to the wall clock, that of the earliest life. Where the system does not say
which start it is, each life has its own offset, and ``otherData.slack_us`` tells how far apart those may be.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from dcr_recipes.layout import RunFolder
from dcr_recipes.summary import write_atomically
from dcr_recipes.trace.files import Header, Life, Span, read_lives
from dcr_recipes.trace.stages import TRACK_ORDER, TRACKS

ChromeEvent: TypeAlias = dict[str, Any]
SLACK_US = 50_000.0
"""What separate wall clock readings of one machine may differ by if the clock was set in between."""

_MOST_LANES = 64
_ORDER = ("coordinator", "owner", "runtime", "oracle")


def write_trace(folder: RunFolder) -> Path:
    """Merge what the processes have written so far; also after a crash. Returns ``trace.json``."""
    text = json.dumps(merge(read_lives(folder.trace)), separators=(",", ":"))
    write_atomically(folder.trace_json, text)
    return folder.trace_json


def merge(lives: Sequence[Life]) -> dict[str, Any]:
    """One Chrome trace of ``lives``; times are microseconds since its first stage."""
    offsets = clock_offsets([life.header for life in lives])
    moved = [(life.header, span, offsets[life.header]) for life in lives for span in life.spans]
    origin = min((span.start_ns + offset for _, span, offset in moved), default=0)
    pids = {name: pid for pid, name in enumerate(_ordered({life.header.process for life in lives}), start=1)}
    threaded = [
        (_event(header, span, offset - origin, pid=pids[header.process]), span.thread)
        for header, span, offset in moved
    ]
    threaded.sort(key=lambda pair: (pair[0]["ts"], -pair[0]["dur"]))
    _give_lanes(threaded)
    stages = [event for event, _ in threaded]
    shared = len({life.header.boot or life.header for life in lives}) <= 1
    return {
        "displayTimeUnit": "ms",
        "otherData": {"origin_wall_ns": origin, "slack_us": 0.0 if shared else SLACK_US},
        "traceEvents": [*_labels(pids, stages), *stages],
    }


def clock_offsets(headers: Iterable[Header]) -> dict[Header, int]:
    """What to add to each life's clock for the wall clock, in nanoseconds."""
    first: dict[str, int] = {}
    offsets = {}
    for header in sorted(headers, key=lambda header: header.wall_ns):
        own = header.wall_ns - header.clock_ns
        offsets[header] = first.setdefault(header.boot, own) if header.boot else own
    return offsets


def _event(header: Header, span: Span, offset_ns: int, *, pid: int) -> ChromeEvent:
    track = TRACKS.get(span.name, span.name)
    return {
        "ph": "X",
        "name": span.name,
        "cat": track,
        "pid": pid,
        "tid": _MOST_LANES * _track_id(track),
        "ts": (span.start_ns + offset_ns) / 1000,
        "dur": (span.end_ns - span.start_ns) / 1000,
        "args": {**span.fields, "incarnation": header.incarnation},
    }


def _give_lanes(threaded: Iterable[tuple[ChromeEvent, int]]) -> None:
    """Move stages that overlap those of another thread to a lane of their own; in order of time.

    What overlaps a stage of its own thread stays with it: it is inside it, or it is a finding.
    """
    lanes: dict[tuple[int, int], list[tuple[int, float]]] = defaultdict(
        list
    )  # thread and end of the last one
    for event, thread in threaded:
        taken, start = lanes[event["pid"], event["tid"]], event["ts"]
        busy = [number for number, (other, end) in enumerate(taken) if other == thread and end > start]
        free = [number for number, (_, end) in enumerate(taken) if end <= start]
        lane = next(iter(busy + free), len(taken))
        if lane == len(taken):
            taken.append((thread, start))
        taken[lane] = thread, max(taken[lane][1], start + event["dur"])
        event["tid"] += min(lane, _MOST_LANES - 1)


def _labels(pids: dict[str, int], stages: Iterable[ChromeEvent]) -> list[ChromeEvent]:
    labels = []
    for name, pid in pids.items():
        labels.append(_label("process_name", pid, 0, name=name))
        labels.append(_label("process_sort_index", pid, 0, sort_index=pid))
    for pid, tid, track in sorted({(event["pid"], event["tid"], event["cat"]) for event in stages}):
        lane = tid % _MOST_LANES
        labels.append(_label("thread_name", pid, tid, name=f"{track} ({lane + 1})" if lane else track))
        labels.append(_label("thread_sort_index", pid, tid, sort_index=tid))
    return labels


def _label(what: str, pid: int, tid: int, **args: object) -> ChromeEvent:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "dur": 0, "args": args}


def _track_id(track: str) -> int:
    return TRACK_ORDER.index(track) + 1 if track in TRACK_ORDER else len(TRACK_ORDER) + 1


def _ordered(names: set[str]) -> list[str]:
    def place(name: str) -> tuple[int, int, str]:
        role, _, index = name.partition("-")
        known = _ORDER.index(role) if role in _ORDER else len(_ORDER)
        return known, int(index) if index.isdecimal() else 0, name

    return sorted(names, key=place)
