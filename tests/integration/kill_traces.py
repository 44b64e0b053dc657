"""What the journals of a run's processes prove about the order in which they did things."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from tests.integration.kill_runs import Finished, Point

from dcr.model import AttemptId
from dcr.transport.keys import parse_attempt


def opened_attempts(journal: Sequence[Point]) -> list[AttemptId]:
    """Attempts that a receiver opened, in order."""
    return [_attempt(line) for line in journal if line["point"] == "receiver.open_apply.after"]


def repaired_versions(done: Finished) -> set[int]:
    """Versions whose committed attempt followed an opened one; only for runs whose trainer lives on."""
    marked = [
        _attempt(line)
        for line in done.journal("coordinator")
        if line["point"] == "coordinator.mark_opened.after"
    ]
    return {earlier.version for earlier, later in pairwise(marked) if earlier.version == later.version}


def restored_between(journal: Sequence[Point], first: AttemptId, second: AttemptId) -> int | None:
    """Version that the receiver proved anew after it opened ``first`` and before it opened ``second``."""
    restored: int | None = None
    opened = False
    for line in journal:
        if line["point"] == "receiver.open_apply.after":
            if _attempt(line) == second:
                return restored
            opened = _attempt(line) == first
        elif opened and line["point"] == "receiver.restore.after":
            restored = line["version"]
    raise AssertionError(f"attempt {second} was never opened")


def encodings_of(journal: Sequence[Point], attempt: AttemptId) -> list[str]:
    """Encoding of each item that the receiver began to apply under ``attempt``, in order."""
    found: list[str] = []
    opened = False
    for line in journal:
        if line["point"] == "receiver.open_apply.after":
            opened = _attempt(line) == attempt
        elif opened and line["point"] == "receiver.item.before":
            found.append(line["encoding"])
    return found


def check_served_only_what_was_proven(journal: Sequence[Point]) -> None:
    """Each incarnation answers requests only of the version that it last restored, or applied and settled."""
    starts = sorted({line["incarnation"] for line in journal})
    assert starts[0] == 1
    for incarnation in starts:
        lines = [line for line in journal if line["incarnation"] == incarnation]
        _check_incarnation(lines)


def _check_incarnation(lines: Sequence[dict[str, Any]]) -> None:
    proven: set[int] = set()  # versions that storage may be settled on
    for line in lines:
        if line["point"] == "receiver.restore.before":
            proven = set()
        elif line["point"] == "receiver.restore.after":
            proven = {line["version"]}
        elif line["point"] == "receiver.open_apply.after":  # until then requests in flight are served
            proven = set()
        elif line["point"] == "receiver.finish.after":
            proven = {_attempt(line).version}
        elif line["point"] in ("receiver.settle.before", "runtime.generate.before"):
            assert proven == {line["version"]}, f"{line} is served, proven is {proven}"


def _attempt(line: Point) -> AttemptId:
    attempt = parse_attempt(line["attempt"])
    assert attempt is not None
    return attempt
