"""Figures as people read them."""

from collections.abc import Sequence

from dcr_recipes.summary import Row
from dcr_recipes.trace.accounting import BOUNDS

_SECONDS = "_s"
_PREFIX = "refit/"


def size(num_bytes: float) -> str:
    """``num_bytes`` in the decimal unit that keeps it short."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} TB"


def duration(seconds: float) -> str:
    """Minutes and seconds, with hours if there are any."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def reward(value: float | None) -> str:
    """A mean reward, or a dash for one that is not finite."""
    return "-" if value is None else f"{value:.4f}"


def stage_means(rows: Sequence[Row]) -> dict[str, float]:
    """Mean seconds by stage over the rows that have them; stages that never ran are left out."""
    sums: dict[str, list[float]] = {}
    for row in rows:
        for key, value in row.items():
            if key.startswith(_PREFIX) and key.endswith(_SECONDS) and value is not None:
                sums.setdefault(key.removeprefix(_PREFIX).removesuffix(_SECONDS), []).append(value)
    means = {stage: sum(values) / len(values) for stage, values in sums.items()}
    return {stage: mean for stage, mean in means.items() if mean > 0}


def stage_words(rows: Sequence[Row]) -> str:
    """The mean milliseconds of each stage in one line."""
    means = stage_means(rows)
    named = (f"{stage.replace('_', '-')} {1000 * seconds:.0f}" for stage, seconds in means.items())
    return f"{', '.join(named)} ms" if means else "no stages recorded"


def bounds_words(row: Row) -> str:
    """Latency of one refit, or a mean of several, and what it is bounded by, in one line; "" if unknown."""
    if f"{BOUNDS}latency_s" not in row:
        return ""
    named = {name: row[f"{BOUNDS}{name}_s"] for name in ("construction", "transport", "finalization", "rest")}
    bounds = ", ".join(f"{name} {1000 * seconds:.0f}" for name, seconds in named.items())
    return f"{1000 * row[f'{BOUNDS}latency_s']:.0f} ms, check left out: {bounds} ms"


def mean_bounds(rows: Sequence[Row]) -> Row:
    """Means of the accounting's columns over the rows that have them; empty if none has."""
    having = [row for row in rows if f"{BOUNDS}latency_s" in row]
    names = [name for name in having[0] if name.startswith(BOUNDS)] if having else []
    return {name: sum(row[name] for row in having) / len(having) for name in names}
