"""The pictures of a run. matplotlib draws without a display."""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dcr_recipes.layout import RunFolder
from dcr_recipes.plots.rates import HeatMap, heat_map, kind_of, layer_of
from dcr_recipes.plots.timeline import read_trace, timeline
from dcr_recipes.summary import MetricsLog, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

_STAGES = (
    "compare",
    "project",
    "encode",
    "compress",
    "send",
    "decode",
    "apply",
    "check",
    "audit",
    "commit",
    "fold_in",
)
_DPI = 130
_ANNOTATED_CELLS = 120
_INCHES_PER_ROW = 0.2


def draw_all(folder: RunFolder) -> list[Path]:
    """Draw what the folder has figures for; returns the files. A run without steps has none."""
    rows = MetricsLog(folder.metrics).rows()
    if not rows:
        return []
    import matplotlib

    matplotlib.use("Agg")
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # says that it builds its cache
    folder.plots.mkdir(exist_ok=True)
    pictures: Mapping[str, Callable[[], Figure | None]] = {
        "change_rate.png": lambda: change_rate(MetricsLog(folder.change_rates).rows()),
        "payload_bytes.png": lambda: payload_bytes(rows),
        "reward.png": lambda: reward(rows),
        "refit_seconds.png": lambda: refit_seconds(rows),
        "last_refit.png": lambda: timeline(read_trace(folder), _figure),
    }
    return [path for name, draw in pictures.items() if (path := _save(draw(), folder.plots / name))]


def _save(figure: "Figure | None", path: Path) -> Path | None:
    if figure is None:
        path.unlink(missing_ok=True)  # of a run that was cut back
        return None
    figure.savefig(path, dpi=_DPI)
    return path


def _figure(width: float, height: float) -> "Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def change_rate(rows: Sequence[Row]) -> "Figure | None":
    """Heat maps of the share of stored values that changed: by layer and by kind of tensor."""
    if not rows:
        return None
    maps = heat_map(rows, layer_of), heat_map(rows, kind_of)
    num_rows = max(len(each.labels) for each in maps)
    figure = _figure(12.5, max(4.0, 1.6 + _INCHES_PER_ROW * num_rows))
    figure.suptitle("Stored values that changed in each refit")
    top = 100 * max(float(np.nanmax(each.rates)) for each in maps)
    left, right = figure.subplots(1, 2)
    image = _heat(left, maps[0], top, title="by layer")
    _heat(right, maps[1], top, title="by kind of tensor")
    figure.colorbar(image, ax=(left, right), label="changed values (%)", pad=0.01)
    return figure


def _heat(axes: "Axes", each: HeatMap, top: float, *, title: str) -> "AxesImage":
    percent = 100 * each.rates
    image = axes.imshow(
        percent, aspect="auto", cmap="viridis", vmin=0.0, vmax=top or 1.0, interpolation="none"
    )
    axes.set_yticks(range(len(each.labels)), each.labels, fontsize=8)
    stride = -(-len(each.steps) // 20)
    axes.set_xticks(range(0, len(each.steps), stride), [str(s) for s in each.steps[::stride]], fontsize=8)
    if percent.size <= _ANNOTATED_CELLS:
        for (row, column), value in np.ndenumerate(percent):
            colour = "black" if value > 0.6 * top else "white"
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=7)
    axes.set_title(title)
    axes.set_xlabel("optimizer step")
    return image


def payload_bytes(rows: Sequence[Row]) -> "Figure":
    """Bytes of each refit, on a logarithmic scale: a dense one, the payloads, and their entropy bound."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    from dcr_recipes.launch.figures import size

    figure = _figure(8.0, 4.6)
    axes = figure.subplots()
    lines = (
        ("dense refit", "refit/dense_bytes", "tab:gray", "--"),
        ("payload sent", "refit/payload_bytes", "tab:blue", "o-"),
        ("entropy bound (order 0)", "refit/entropy_bound_bytes", "tab:orange", "s:"),
    )
    for label, key, colour, style in lines:
        values = _column(rows, key)
        if np.isfinite(values).any() and np.nanmax(values) > 0:
            axes.plot(_steps(rows), values, style, color=colour, label=label, markersize=4)
    sent, dense = (float(np.nansum(_column(rows, f"refit/{kind}_bytes"))) for kind in ("payload", "dense"))
    ratio = f": {dense / sent:.1f} times less than dense" if sent else ""
    _finish(axes, f"Bytes per refit{ratio}", "bytes (log scale)")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: size(value)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.legend(loc="best")
    return figure


def reward(rows: Sequence[Row]) -> "Figure":
    """Mean reward with its spread inside the groups, and the rollout's distance from the trained policy."""
    figure = _figure(8.0, 6.0)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    steps, mean, spread = _steps(rows), _column(rows, "reward/mean"), _column(rows, "reward/std")
    above.plot(steps, mean, "o-", color="tab:green", label="mean", markersize=4)
    if np.isfinite(spread).any():
        above.fill_between(
            steps, mean - spread, mean + spread, color="tab:green", alpha=0.15,
            label="mean standard deviation within a group",
        )  # fmt: skip
    above.legend(loc="best")
    _finish(above, "Reward", "reward")
    above.set_xlabel("")
    below.plot(steps, _column(rows, "train/gen_kl_error"), "o-", color="tab:red", markersize=4)
    below.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))
    below.axhline(0.0, color="black", linewidth=0.6)
    _finish(below, "Rollout policy against training policy", "gen_kl_error\n(nats per token)")
    return figure


def refit_seconds(rows: Sequence[Row]) -> "Figure | None":
    """Seconds of each stage, stacked: for every stage those of its slowest process."""
    known = [stage for stage in _STAGES if np.nansum(_column(rows, f"refit/{stage}_s")) > 0]
    wall = _column(rows, "refit/seconds")
    if not known and not np.isfinite(wall).any():
        return None
    figure = _figure(9.0, 4.8)
    axes = figure.subplots()
    _stack(axes, rows, known)
    axes.plot(_steps(rows), wall, "k.-", label="wall time", linewidth=1)
    title = "Refit seconds by stage (slowest process of each; stages overlap, and calls lie in between)"
    _finish(axes, title, "seconds")
    axes.title.set_fontsize(10)
    axes.set_ylim(bottom=0)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _stack(axes: "Axes", rows: Sequence[Row], stages: Sequence[str]) -> None:
    from matplotlib import colormaps

    below = np.zeros(len(rows))
    for number, stage in enumerate(stages):
        values = np.nan_to_num(_column(rows, f"refit/{stage}_s"))
        color = colormaps["tab20"](number)
        axes.bar(_steps(rows), values, bottom=below, label=stage.replace("_", "-"), color=color)
        below += values


def _finish(axes: "Axes", title: str, unit: str) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_title(title)
    axes.set_xlabel("optimizer step")
    axes.set_ylabel(unit)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.grid(visible=True, alpha=0.3)


def _steps(rows: Sequence[Row]) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    return np.array([row["step"] for row in rows], dtype=np.float64)


def _column(rows: Sequence[Row], key: str) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Values [S] of a column, nan where a row has none."""
    return np.array([np.nan if row.get(key) is None else row[key] for row in rows], dtype=np.float64)
