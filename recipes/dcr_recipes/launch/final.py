"""The table at the end of a run."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from dcr_recipes.launch.figures import bounds_words, mean_bounds, size, stage_words
from dcr_recipes.layout import RunFolder
from dcr_recipes.summary import Row
from dcr_recipes.traffic import DOWNLOADED, UPLOADED


def headline(done: dict[str, Any]) -> str:
    """The result in one sentence."""
    differing = done["differing_bits"]
    proof = "not verified" if differing is None else f"{differing} differing bits"
    return f"{done['num_steps']} steps, version {done['final_version']}, {proof}"


def final_table(done: dict[str, Any], rows: Sequence[Row], folder: RunFolder, *, num_restarts: int) -> Table:
    """Totals of a complete run and where its files are. ``done`` is its summary, ``rows`` its metrics."""
    table = Table(box=box.ASCII, show_header=False, padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("proof", _proof(rows))
    for name, value in _lines(done, rows, folder):
        table.add_row(name, value)
    table.add_row("restarts", str(num_restarts))
    return table


def _proof(rows: Sequence[Row]) -> str:
    """What was compared, from the rows: a resumed run may have been told otherwise in between."""
    shares = [row["verify/share"] for row in rows if "verify/share" in row]
    if not shares:
        return "no bits were compared (verify=off)"
    part = "all tensors" if min(shares) >= 1 else f"at least {min(shares):.0%} of the tensors"
    without = sum("refit/left_out" in row for row in rows)
    whose = (
        f"every instance that took part ({without} refits were without some)" if without else "every instance"
    )
    return f"{part} of {whose} compared with a dense refit, after {len(shares)} of {len(rows)} refits"


def _lines(done: dict[str, Any], rows: Sequence[Row], folder: RunFolder) -> Iterator[tuple[str, str]]:
    sent, dense = done["payload_bytes"], done["dense_bytes"]
    share = f" ({100 * sent / dense:.2f}%, {dense / sent:.1f} times less)" if 0 < sent < dense else ""
    yield "sent", f"{size(sent)} where dense refits send {size(dense)}{share}"
    if (up := done.get(UPLOADED)) is not None:
        yield "store", f"{size(up)} stored once, {size(done[DOWNLOADED])} fetched by all instances"
    yield "changed", f"{100 * done['changed_fraction']:.3f}% of the stored values per refit"
    bounds = [row["refit/entropy_bound_bytes"] for row in rows if row.get("refit/entropy_bound_bytes")]
    if bounds and sent:
        yield "entropy bound", f"{size(sum(bounds))}; sent is {sent / sum(bounds):.2f} times that"
    seconds = [row["refit/seconds"] for row in rows if row.get("refit/seconds") is not None]
    if seconds:
        yield "refit, mean", f"{sum(seconds) / len(seconds):.2f} s: {stage_words(rows)}"
    if bounds_mean := mean_bounds(rows):
        yield "latency, mean", bounds_words(bounds_mean)
    yield "run folder", str(folder.root)
    yield "files", ", ".join(_files(folder))


def _files(folder: RunFolder) -> Iterator[str]:
    known = (folder.metrics, folder.summary, folder.change_rates, folder.trace_json)
    for path in (*known, *sorted(folder.plots.glob("*.png"))):
        if path.exists():
            yield _shown(path, folder)


def _shown(path: Path, folder: RunFolder) -> str:
    name = str(path.relative_to(folder.root))
    return f"{name} (opens in Perfetto)" if path == folder.trace_json else name
