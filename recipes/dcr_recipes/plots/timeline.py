"""The last refit of a trace as a picture: a row for each process and stage, time from left to right."""

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from dcr_recipes.layout import RunFolder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dcr_recipes.trace.merge import ChromeEvent

_LEFT_OUT = ("trainer.", "process.", "runtime.generate")
_INCHES_PER_ROW = 0.22
_LEAST_SHARE = 1 / 800
"""Shorter stages are drawn this wide, or they would not be seen."""


FigureOfSize: TypeAlias = Callable[[float, float], "Figure"]


def read_trace(folder: RunFolder) -> dict[str, Any]:
    """The run's merged trace, or one without events if it was not recorded."""
    if not folder.trace_json.exists():
        return {"traceEvents": []}
    trace: dict[str, Any] = json.loads(folder.trace_json.read_text())
    return trace


def last_refit(trace: dict[str, Any]) -> "list[ChromeEvent]":
    """Stages that began in the last refit, by process and track; times are ms since it began.

    A refit lasts from the first trainer rank that asks for it to the last that has it.
    """
    stages = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    refits = [event for event in stages if event["name"] == "trainer.refit"]
    if not refits:
        return []
    newest = max(event["args"]["version"] for event in refits)
    calls = [event for event in refits if event["args"]["version"] == newest]
    start, end = min(e["ts"] for e in calls), max(e["ts"] + e["dur"] for e in calls)
    return [
        {**event, "ts": (event["ts"] - start) / 1000, "dur": event["dur"] / 1000}
        for event in stages
        if not event["name"].startswith(_LEFT_OUT) and start <= event["ts"] < end
    ]


def timeline(trace: dict[str, Any], figure_of_size: FigureOfSize) -> "Figure | None":
    """Draw the last refit; None if there is none. ``figure_of_size`` makes a figure of inches."""
    stages = last_refit(trace)
    if not stages:
        return None
    names = {e["pid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"}
    rows = sorted({(event["pid"], event["tid"], event["cat"]) for event in stages})
    figure = figure_of_size(10.0, max(3.0, 1.2 + _INCHES_PER_ROW * len(rows)))
    axes = figure.subplots()
    least = _LEAST_SHARE * max(event["ts"] + event["dur"] for event in stages)
    for number, (pid, tid, _) in enumerate(rows):
        bars = [(e["ts"], max(e["dur"], least)) for e in stages if (e["pid"], e["tid"]) == (pid, tid)]
        axes.broken_barh(bars, (number - 0.4, 0.8), facecolors=f"C{pid % 10}")
    axes.set_yticks(range(len(rows)), [f"{names[pid]}  {track}" for pid, _, track in rows], fontsize=7)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel("milliseconds since the refit began")
    axes.set_title(f"The last refit, attempt {_attempt(stages)}: every process and stage")
    axes.grid(visible=True, axis="x", alpha=0.3)
    return figure


def _attempt(stages: "Sequence[ChromeEvent]") -> str:
    commits = [event for event in stages if event["name"] == "coordinator.commit"]
    return str(commits[-1]["args"]["attempt"]) if commits else "unknown"
