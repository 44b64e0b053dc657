"""``dcr log``: the versions of a run."""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from dcr.errors import IntegrityError
from dcr_recipes.commands.arguments import add_json, add_run

if TYPE_CHECKING:
    from rich.table import Table

    from dcr.model import Catalogue, CommitRecord, ControlState, Manifest
    from dcr.transport.base import Anchor

Row: TypeAlias = dict[str, Any]
_FILE_COLUMNS = 180
_SHOWN_DIGITS = 12


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "log",
        help="list the versions of a run",
        description="List the committed versions of a run, oldest first, from its archive. 'tries', where"
        " metrics.jsonl has it, counts the attempts that a refit took; attempt numbers may leave some out."
        " 'anchor' is what a version's planes take where they are stored whole. Older versions' steps are"
        " those of metrics.jsonl.",
    )
    add_run(parser)
    add_json(parser)
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Print the log.

    Raises:
        ConfigError: there is no run.
        IntegrityError: the chain of manifests is broken.
    """
    from dcr.transport.chain import history
    from dcr_recipes.commands.log_bounds import add_bounds
    from dcr_recipes.commands.opened import open_run

    opened = open_run(args.run)
    state = opened.state()
    catalogue = opened.site.catalogue(state.record)
    manifests = history(opened.site.archive, state.record)
    rows = rows_of(state.record, manifests, catalogue, steps_of(opened.folder.metrics))
    add_anchors(rows, opened.site.archive.retained().anchors)
    add_attempts(rows, opened.folder.metrics)
    add_bounds(rows, opened.folder.metrics)
    if args.json:
        print(json.dumps({"run": state.run, "versions": rows, "active": _active(state)}, indent=2))
    else:
        _show(rows, state)
    return 0


def rows_of(
    record: "CommitRecord", manifests: "Sequence[Manifest]", catalogue: "Catalogue", steps: Mapping[int, int]
) -> list[Row]:
    """One row a version. ``steps`` maps versions to training steps, as far as they are known."""
    from dcr.commit.rules import join_audit

    rows = []
    for manifest in manifests:
        version, parent = manifest.attempt.version, manifest.parent
        last = version == record.version
        rows.append(
            {
                "version": version,
                "step": record.step if last else steps.get(version),
                "attempt": str(manifest.attempt),
                "num_payloads": len(manifest.payloads),
                "payload_bytes": sum(ref.num_bytes for ref in manifest.payloads),
                "dense_bytes": catalogue.num_bytes,
                "changed_fraction": _changed(manifest),
                "overwrite_only": manifest.overwrite_only,
                "parent": str(parent[0]) if parent else None,
                "parent_manifest": parent[1] if parent else None,
                "audit": record.audit if last else _audit(join_audit, catalogue, manifest),
            }
        )
    return rows


def add_anchors(rows: list[Row], anchors: "Sequence[Anchor]") -> None:
    """``anchor_bytes``: what the planes take that a version has beside its delta; None if it has none."""
    found = {str(anchor.attempt): anchor for anchor in anchors}
    for row in rows:
        anchor = found.get(row["attempt"])
        row["anchor_bytes"] = anchor.num_bytes if anchor else None
        if anchor is not None and row["step"] is None:
            row["step"] = anchor.step


def add_attempts(rows: list[Row], metrics: Path) -> None:
    """``num_attempts`` that each version's refit took; None if ``metrics`` does not say."""
    from dcr_recipes.summary import MetricsLog

    known = {row["version"]: row.get("refit/attempts") for row in MetricsLog(metrics).rows()}
    for row in rows:
        row["num_attempts"] = known.get(row["version"])


def steps_of(metrics: Path) -> dict[int, int]:
    """Training step of each version that ``metrics.jsonl`` knows; version 0 is before the first step."""
    from dcr_recipes.summary import MetricsLog

    return {0: 0} | {row["version"]: row["step"] for row in MetricsLog(metrics).rows()}


def _changed(manifest: "Manifest") -> float | None:
    num_elements = sum(close.num_elements for close in manifest.owners)
    return sum(close.num_changed for close in manifest.owners) / num_elements if num_elements else None


def _audit(join: Any, catalogue: "Catalogue", manifest: "Manifest") -> str | None:
    """Digest of the version's audit table, from its owners' parts; None if they do not cover the model."""
    from dcr.audit import table_digest

    try:
        return table_digest(join(catalogue, manifest.owners))
    except IntegrityError:
        return None


def _active(state: "ControlState") -> Row | None:
    active = state.active
    if active is None:
        return None
    return {"attempt": str(active.attempt), "step": active.candidate.step, "opened": active.opened}


def _show(rows: list[Row], state: "ControlState") -> None:
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _FILE_COLUMNS
    console.print(f"run {state.run}, epoch {state.epoch}")
    console.print(_table(rows))
    if state.active is not None:
        opened = "opened, overwrites only" if state.active.opened else "not opened"
        console.print(f"attempt {state.active.attempt} is under way ({opened})")


def _table(rows: list[Row]) -> "Table":
    from rich.table import Table

    from dcr_recipes.commands.log_bounds import HEADINGS, cells, shown
    from dcr_recipes.launch.figures import size

    timed, anchored = shown(rows), any(row["anchor_bytes"] for row in rows)
    tried = ["tries"] if any(row["num_attempts"] is not None for row in rows) else []
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("version", "step", "attempt", *tried, "payloads", "sent", "of dense", "changed"):
        table.add_column(column, justify="right", no_wrap=True)
    if anchored:
        table.add_column("anchor", justify="right", no_wrap=True)
    for name in timed:
        table.add_column(HEADINGS[name], justify="right", no_wrap=True)
    for column in ("encoding", "parent", "audit"):
        table.add_column(column, no_wrap=True)
    for row in rows:
        anchor = [size(row["anchor_bytes"]) if row["anchor_bytes"] else "-"] if anchored else []
        table.add_row(*_sent(row, tried), *anchor, *cells(row, timed), *_named(row))
    return table


def _sent(row: Row, tried: list[str]) -> list[str]:
    """Which version it is, and what it took."""
    from dcr_recipes.launch.figures import size

    return [
        f"v{row['version']}",
        _or_dash(row["step"]),
        row["attempt"],
        *(_or_dash(row["num_attempts"]) for _ in tried),
        str(row["num_payloads"]),
        size(row["payload_bytes"]),
        f"{100 * row['payload_bytes'] / max(row['dense_bytes'], 1):.2f}%",
        "-" if row["changed_fraction"] is None else f"{100 * row['changed_fraction']:.3f}%",
    ]


def _named(row: Row) -> list[str]:
    """How it was sent, and where it stands in the chain."""
    encoding = "overwrite" if row["overwrite_only"] else "mixed"
    return [encoding, _or_dash(row["parent"]), _or_dash(row["audit"])[:_SHOWN_DIGITS]]


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)
