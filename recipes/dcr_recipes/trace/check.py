"""Whether a trace can be what a correct run leaves: form, nesting, and the protocol's order.

Used by tests and by ``python -m dcr_recipes.trace.check RUN/trace.json``. Each finding is one line.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from dcr_recipes.trace.merge import ChromeEvent

Events: TypeAlias = Sequence[ChromeEvent]
_NEEDED = {"ph": str, "name": str, "pid": int, "tid": int, "ts": int | float, "dur": int | float}
_ROUNDING_US = 0.002

EXCLUSIVE: tuple[tuple[frozenset[str], frozenset[str]], ...] = (
    (  # weights in transition answer no request, and are written by one stage at a time
        frozenset({"runtime.generate"}),
        frozenset(
            {"receiver.apply", "receiver.check", "receiver.audit", "receiver.restore", "runtime.load_dense"}
        ),
    ),
    (
        frozenset({"receiver.apply"}),
        frozenset({"receiver.check", "receiver.audit", "receiver.restore", "receiver.settle"}),
    ),
    (  # a candidate is not written while it is read (P5)
        frozenset({"trainer.train"}),
        frozenset({"owner.compare", "owner.encode", "owner.send", "owner.fold_in", "trainer.refit"}),
    ),
    (
        frozenset({"coordinator.commit"}),
        frozenset(
            {"coordinator.construct", "coordinator.finish", "coordinator.fold_in", "coordinator.settle"}
        ),
    ),
)
"""Stages of one process that never overlap: none of the first set with any of the second."""


def check(trace: dict[str, Any]) -> list[str]:
    """Everything that is wrong with ``trace``; an empty list for a good one."""
    events = trace.get("traceEvents")
    if not isinstance(events, list) or not events:
        return ["traceEvents is missing or empty"]
    if malformed := [line for number, event in enumerate(events) for line in _malformed(number, event)]:
        return malformed
    stages = [event for event in events if event["ph"] == "X"]
    slack = float(trace.get("otherData", {}).get("slack_us", 0.0)) + _ROUNDING_US
    return [*_nesting(stages), *_exclusion(stages), *_order(stages, slack)]


def check_file(path: Path) -> list[str]:
    """As :func:`check`; text that is no JSON is a finding too."""
    try:
        trace = json.loads(path.read_text())
    except ValueError as err:
        return [f"{path} is no JSON: {err}"]
    return check(trace) if isinstance(trace, dict) else [f"{path} holds no JSON object"]


def _malformed(number: int, event: object) -> Iterator[str]:
    if not isinstance(event, dict):
        yield f"event {number} is no object"
        return
    for key, kind in _NEEDED.items():
        if not isinstance(event.get(key), kind):
            yield f"event {number} ({event.get('name')}): {key} is {event.get(key)!r}"
        elif key in ("ts", "dur") and event[key] < 0:
            yield f"event {number} ({event.get('name')}): {key} is negative"
    if event.get("ph") not in ("X", "M"):
        yield f"event {number} ({event.get('name')}): ph is {event.get('ph')!r}"


def _end(event: ChromeEvent) -> float:
    return float(event["ts"] + event["dur"])


def _says(event: ChromeEvent) -> str:
    return f"{event['name']} at {event['ts']:.1f} us (pid {event['pid']})"


def _nesting(stages: Events) -> Iterator[str]:
    """Intervals of one (process, track) are nested or disjoint."""
    tracks: dict[tuple[int, int], list[ChromeEvent]] = defaultdict(list)
    for event in stages:
        tracks[event["pid"], event["tid"]].append(event)
    for events in tracks.values():
        around: list[ChromeEvent] = []
        for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
            while around and _end(around[-1]) <= event["ts"] + _ROUNDING_US:
                around.pop()
            if around and _end(event) > _end(around[-1]) + _ROUNDING_US:
                yield f"{_says(event)} overlaps {_says(around[-1])} and is not inside it"
            around.append(event)


def _exclusion(stages: Events) -> Iterator[str]:
    for pid in sorted({event["pid"] for event in stages}):
        own = [event for event in stages if event["pid"] == pid]
        for first, second in EXCLUSIVE:
            yield from _overlaps(own, first, second)


def _overlaps(own: Events, first: frozenset[str], second: frozenset[str]) -> Iterator[str]:
    picked = sorted((e for e in own if e["name"] in first | second), key=lambda event: float(event["ts"]))
    last: dict[bool, ChromeEvent] = {}
    for event in picked:
        is_first = event["name"] in first
        other = last.get(not is_first)
        if other is not None and _end(other) > event["ts"] + _ROUNDING_US:
            yield f"{_says(event)} overlaps {_says(other)}"
        if is_first not in last or _end(event) > _end(last[is_first]):
            last[is_first] = event


def _order(stages: Events, slack: float) -> Iterator[str]:
    by_attempt: dict[str, list[ChromeEvent]] = defaultdict(list)
    for event in stages:
        if attempt := event.get("args", {}).get("attempt"):
            by_attempt[str(attempt)].append(event)
    for attempt, events in by_attempt.items():
        yield from _apply_after_open(attempt, events)
        commits = [event for event in events if event["name"] == "coordinator.commit"]
        for commit in commits[-1:]:
            yield from _around_commit(attempt, events, commit, slack)


def _apply_after_open(attempt: str, events: Events) -> Iterator[str]:
    opened = {e["pid"]: _end(e) for e in events if e["name"] == "receiver.open_apply"}
    for event in events:
        if event["name"] not in ("receiver.decode", "receiver.apply", "receiver.check", "receiver.audit"):
            continue
        if event["pid"] not in opened:
            yield f"{_says(event)}: attempt {attempt} was never opened there"
        elif event["ts"] + _ROUNDING_US < opened[event["pid"]]:
            yield f"{_says(event)} begins before its attempt {attempt} is open"


def _around_commit(attempt: str, events: Events, commit: ChromeEvent, slack: float) -> Iterator[str]:
    for event in events:
        if event["name"] in ("receiver.finish", "coordinator.finish") and _end(event) > commit["ts"] + slack:
            yield f"{_says(event)} ends after the commit of attempt {attempt} begins"
        if event["name"] in ("owner.fold_in", "coordinator.fold_in") and event["ts"] + slack < _end(commit):
            yield f"{_says(event)} begins before attempt {attempt} is committed"


def main() -> int:
    """Print the findings for the file that is named; 1 if there are any."""
    found = check_file(Path(sys.argv[1]))
    for line in found:
        print(line)
    print(f"{len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
