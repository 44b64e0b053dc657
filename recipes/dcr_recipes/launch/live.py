"""The picture that is kept up to date on a terminal while a run works."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dcr_recipes.launch.figures import duration, reward, size, stage_words
from dcr_recipes.summary import Row

_BAR_COLUMNS = 30


@dataclass(frozen=True, slots=True)
class ProcessState:
    """One process as its supervisor and its own last word tell. ``num_restarts`` counts new starts."""

    name: str
    phase: str
    is_alive: bool
    num_restarts: int


@dataclass(frozen=True, slots=True)
class Picture:
    """What is shown: the last row, if there is one, and how far the run is.

    ``step_s`` is the mean time of this driver's steps, None before the second; ``elapsed_s`` counts from
    its start.
    """

    num_done: int
    num_steps: int
    elapsed_s: float
    step_s: float | None
    row: Row | None
    processes: Sequence[ProcessState]


def render(picture: Picture) -> RenderableType:
    """Progress, figures of the last step, and the processes."""
    parts: list[RenderableType] = [_progress(picture)]
    if picture.row is not None:
        parts.append(_last_step(picture.row))
    if picture.processes:
        parts.append(_processes(picture.processes))
    return Group(*parts)


def _progress(picture: Picture) -> RenderableType:
    line = Table.grid(padding=(0, 1))
    left = "" if picture.step_s is None else duration(picture.step_s * (picture.num_steps - picture.num_done))
    line.add_row(
        Text(f"step {min(picture.num_done + 1, picture.num_steps)}/{picture.num_steps}", style="bold"),
        ProgressBar(total=max(picture.num_steps, 1), completed=picture.num_done, width=_BAR_COLUMNS),
        Text(f"{duration(picture.elapsed_s)} passed"),
        Text(f"about {left} left" if left else "time left: not known yet", style="dim"),
    )
    return line


def _last_step(row: Row) -> RenderableType:
    sent, dense = row["refit/payload_bytes"], row["refit/dense_bytes"]
    times = f" ({dense / sent:.1f} times less)" if sent else ""
    differing = row.get("verify/differing_bits")
    proof = "not verified" if differing is None else f"{differing} differing bits"
    lines = [
        f"version v{row['version']}, reward {reward(row['reward/mean'])}, {proof}",
        f"changed {100 * row['refit/changed_fraction']:.3f}%, sent {size(sent)} of {size(dense)}{times}",
    ]
    if row.get("refit/seconds") is not None:
        lines.append(f"refit {row['refit/seconds']:.2f} s: {stage_words([row])}")
    return Text("\n".join(lines))


def _processes(processes: Sequence[ProcessState]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for process in processes:
        restarts = f"restarted {process.num_restarts}x" if process.num_restarts else ""
        mark = Text("●", style="green") if process.is_alive else Text("○", style="red")
        phase = process.phase if process.is_alive else "ended"
        table.add_row(mark, process.name, Text(phase, style="dim"), Text(restarts, style="yellow"))
    return table
