"""``metrics.jsonl`` and ``summary.json`` of a run folder."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from dcr.errors import PayloadError
from dcr.transport.durable import replace_durably
from dcr_recipes.traffic import DOWNLOADED, UPLOADED

Row: TypeAlias = dict[str, Any]
"""One step: flat, JSON scalars only; None stands for a figure that is not finite."""

_JUDGED = {"train/loss": "loss", "reward/mean": "reward", "train/grad_norm": "gradient norm"}
"""Columns whose not being finite says that the training has diverged -> what people call them."""


@dataclass(frozen=True, slots=True)
class MetricsLog:
    """Rows of the steps 1 .. n, one JSON object a line. Written by trainer rank 0 only."""

    path: Path

    def rows(self) -> list[Row]:
        """Complete rows; one that a crash cut short is left out.

        Raises:
            PayloadError: a complete line is damaged; names file and line.
        """
        if not self.path.exists():
            return []
        lines = self.path.read_bytes().split(b"\n")[:-1]
        return [self._parsed(line, number) for number, line in enumerate(lines, 1)]

    def append(self, row: Row) -> None:
        """Add a row, durably; a figure that is not finite becomes null."""
        with self.path.open("a") as out:
            out.write(_as_line(row))
            out.flush()
            os.fsync(out.fileno())

    def cut(self, last_step: int) -> list[Row]:
        """Drop rows after ``last_step`` and a torn last line; returns what is left."""
        kept = [row for row in self.rows() if row["step"] <= last_step]
        write_atomically(self.path, "".join(map(_as_line, kept)))
        return kept

    def _parsed(self, line: bytes, number: int) -> Row:
        try:
            row = json.loads(line)
        except ValueError as err:  # not JSON, or not UTF-8
            raise PayloadError(f"{self.path}: line {number} is damaged: {err}") from err
        if not isinstance(row, dict):
            raise PayloadError(f"{self.path}: line {number} is damaged: no JSON object")
        return row


def diverged(row: Mapping[str, Any]) -> str:
    """What a person is told of a step whose loss, reward or gradient norm is not finite; "" if all are."""
    names = [name for column, name in _JUDGED.items() if column in row and _finite(row[column]) is None]
    if not names:
        return ""
    verb = "is" if len(names) == 1 else "are"
    return (
        f"training diverged: {' and '.join(names)} {verb} not finite at step {row['step']};"
        " the refit carries its bits all the same"
    )


def summarize(
    rows: Sequence[Mapping[str, Any]], *, final_version: int, weights_digest: str, token_digest: str
) -> Row:
    """Figures of the whole run. Bytes are sums over its refits, ``changed_fraction`` is the mean.

    ``uploaded_bytes`` and ``downloaded_bytes`` are payload bytes that owners stored and receivers fetched,
    as counted where the store is asked, if they were. ``pause_mean_s`` and ``pause_max_s`` are of the longest
    pause of an instance in each refit, where they are known. ``differing_bits`` is the sum over all refits
    and instances, None if none was verified.
    """
    verified = [row["verify/differing_bits"] for row in rows if "verify/differing_bits" in row]
    changed = [row["refit/changed_fraction"] for row in rows]
    traffic = {
        name: sum(row[f"refit/{name}"] for row in rows if f"refit/{name}" in row)
        for name in (UPLOADED, DOWNLOADED)
        if any(f"refit/{name}" in row for row in rows)
    }
    pauses = [row["refit/pause_s"] for row in rows if row.get("refit/pause_s") is not None]
    paused = {"pause_mean_s": sum(pauses) / len(pauses), "pause_max_s": max(pauses)} if pauses else {}
    return {
        "num_steps": len(rows),
        "final_version": final_version,
        "differing_bits": sum(verified) if verified or not rows else None,
        "payload_bytes": sum(row["refit/payload_bytes"] for row in rows),
        "dense_bytes": sum(row["refit/dense_bytes"] for row in rows),
        **traffic,
        **paused,
        "changed_fraction": sum(changed) / len(changed) if changed else 0.0,
        "weights_digest": weights_digest,
        "rewards": [row["reward/mean"] for row in rows],
        "token_digest": token_digest,
    }


def write_summary(path: Path, summary: Mapping[str, Any]) -> None:
    """Write ``summary.json`` in one step; a figure that is not finite becomes null."""
    write_atomically(path, json.dumps(_finite(summary), indent=2, allow_nan=False) + "\n")


def add_to_summary(path: Path, figures: Mapping[str, Any]) -> None:
    """Add what only the driver knows to an existing summary; a missing one is left missing."""
    if path.exists():
        write_summary(path, {**json.loads(path.read_text()), **figures})


def write_atomically(path: Path, text: str) -> None:
    """Replace ``path`` durably: a reader sees the old text or the new, a crash leaves one of them."""
    replace_durably(path, text.encode())


def _as_line(row: Mapping[str, Any]) -> str:
    return json.dumps(_finite(row), allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    """``value``, with None for every float in it that JSON has no word for: NaN and the infinities."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value
