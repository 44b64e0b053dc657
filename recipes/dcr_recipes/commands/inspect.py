"""``dcr inspect``: what a payload or another object of a run holds."""

import argparse
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from dcr.errors import PayloadError
from dcr_recipes.commands.arguments import add_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from dcr.codec.inspect import Coding, ItemInspection, PayloadInspection

EXIT_BAD_FILE = 2
_FILE_COLUMNS = 160
_WIDE_COLUMNS = 120
_DIGEST_NAME = re.compile("[0-9a-f]{32}")
Report: TypeAlias = dict[str, Any]
"""What is printed of one file, as JSON; ``kind`` says what it is."""


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "inspect",
        help="show what a payload, manifest, record, audit table or catalogue holds",
        description="Show what files of a run's store hold. Payloads: per tensor the number of changed"
        " values, how they are coded, bits per change, and the entropy bound. Sections are compressed as a"
        " whole; a tensor's part of them is what its bytes cost under the byte frequencies of the section.",
        epilog="example: dcr inspect runs/latest/store/*/payload/3-3/*/*",
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="file of RUN/store")
    add_json(parser)
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Print a report of every readable file; exit code 2 if one is not."""
    reports: list[Report] = []
    code = 0
    for path in args.files:
        try:
            reports.append({"file": str(path), **describe(path)})
        except (PayloadError, OSError) as err:
            reason = err.strerror if isinstance(err, OSError) else str(err)
            hint = "; name payload files below RUN/store" if isinstance(err, IsADirectoryError) else ""
            print(f"error: {path}: {reason}{hint}", file=sys.stderr)
            code = EXIT_BAD_FILE
    if args.json:
        print(json.dumps({"files": reports, "total": sum_up(reports)}, indent=2))
    else:
        _show(reports)
    return code


def describe(path: Path) -> Report:
    """Report of one file.

    Raises:
        PayloadError: it is neither a payload nor an object of a run, or it is damaged.
        OSError: it cannot be read.
    """
    data = path.read_bytes()
    if not data.lstrip().startswith(b"{"):
        from dcr.codec.inspect import inspect_payload

        return payload_report(inspect_payload(data))
    from dcr_recipes.commands.objects import object_report

    report = object_report(data)
    if _DIGEST_NAME.fullmatch(path.name) and path.name != report["digest"]:
        raise PayloadError(
            f"damaged: the bytes have the digest {report['digest']}, not the one they are named"
        )
    return report


def payload_report(found: "PayloadInspection") -> Report:
    """Head, one entry an item, and totals."""
    from dcr.codec.inspect import total

    name = found.head.identity
    num_changed = sum(item.num_entries for item in found.items)
    return {
        "kind": "payload",
        "digest": found.head.digest,
        "run": name.run,
        "attempt": str(name.attempt),
        "owner": name.owner,
        "sequence": name.sequence,
        "parent_version": name.parent,
        "catalogue": name.catalogue,
        "num_bytes": found.num_bytes,
        "head_bytes": found.frame_bytes,
        "item_table": _coding(found.table, num_changed),
        "num_changed": num_changed,
        "num_elements": sum(item.num_elements for item in found.items),
        "locations": _coding(total([item.locations for item in found.items]), num_changed),
        "values": _coding(total([item.values for item in found.items]), num_changed),
        "items": [_item(item) for item in found.items],
    }


def _item(item: "ItemInspection") -> Report:
    return {
        "tensor": item.name,
        "shape": list(item.shape),
        "dtype": item.dtype,
        "encoding": item.encoding,
        "num_elements": item.num_elements,
        "num_changed": item.num_entries,
        "changed_fraction": item.changed_fraction,
        "location_kind": item.location_kind,
        "locations": _coding(item.locations, item.num_entries),
        "values": _coding(item.values, item.num_entries),
    }


def sum_up(reports: list[Report]) -> Report:
    """Totals over all payloads among ``reports``; elements count once for every item that has them."""
    payloads = [report for report in reports if report["kind"] == "payload"]
    totals: Report = {key: sum(report[key] for report in payloads) for key in ("num_bytes", "num_changed")}
    for part in ("locations", "values"):
        figures = [report[part] for report in payloads]
        totals[part] = _figures(
            sum(figure["raw_bytes"] for figure in figures),
            sum(figure["stored_bytes"] for figure in figures),
            sum(figure["bound_bits"] for figure in figures),
            totals["num_changed"],
        )
    return {"num_payloads": len(payloads), **totals}


def _coding(coding: "Coding", num_changed: int) -> Report:
    return _figures(coding.raw_bytes, coding.stored_bytes, coding.bound_bits, num_changed)


def _figures(raw_bytes: int, stored_bytes: float, bound_bits: float, num_changed: int) -> Report:
    return {
        "raw_bytes": raw_bytes,
        "stored_bytes": round(stored_bytes, 3),
        "bound_bits": round(bound_bits, 3),
        "bits_per_change": round(8 * stored_bytes / num_changed, 3) if num_changed else None,
        "bound_bits_per_change": round(bound_bits / num_changed, 3) if num_changed else None,
    }


def _show(reports: list[Report]) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:  # a file has no width; tables are not to be folded there
        console.width = _FILE_COLUMNS
    for report in reports:
        console.print(f"[bold]{report['file']}[/bold]: {report['kind']}", soft_wrap=True)
        if report["kind"] == "payload":
            _show_payload(report, console)
        else:
            _show_fields(report, console)
    if sum(report["kind"] == "payload" for report in reports) > 1:
        totals = sum_up(reports)
        console.print(f"[bold]all {totals['num_payloads']} payloads[/bold]: {_in_words(totals)}")


def _show_payload(report: Report, console: "Console") -> None:
    head = ("run", "attempt", "owner", "sequence", "parent_version", "catalogue", "digest")
    console.print("  " + ", ".join(f"{key.replace('_', ' ')} {report[key]}" for key in head), soft_wrap=True)
    console.print(_table(report, wide=console.width >= _WIDE_COLUMNS))
    overhead = report["head_bytes"] + report["item_table"]["stored_bytes"]
    console.print(f"  {_in_words(report)}; head and item table {overhead:.0f} bytes")


def _in_words(report: Mapping[str, Any]) -> str:
    changed, where, what = report["num_changed"], report["locations"], report["values"]
    text = f"{report['num_bytes']} bytes, {changed} changes"
    if changed:
        bits = 8 * report["num_bytes"] / changed
        bound = where["bound_bits_per_change"] + what["bound_bits_per_change"]
        text += f", {bits:.2f} bits a change in all, entropy bound {bound:.2f}"
    return text


def _table(report: Report, *, wide: bool) -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("tensor", overflow="fold")
    for column in ("shape", "dtype", "encoding")[0 if wide else 3 :]:
        table.add_column(column, justify="right" if column == "shape" else "left", no_wrap=True)
    table.add_column("changed", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("locations", no_wrap=True)
    for column in ("bits (bound)", "value bits (bound)"):
        table.add_column(column, justify="right", no_wrap=True)
    for item in report["items"]:
        shape = "x".join(map(str, item["shape"])) or "scalar"
        table.add_row(
            item["tensor"],
            *((shape, item["dtype"], item["encoding"]) if wide else ()),
            str(item["num_changed"]),
            f"{100 * item['changed_fraction']:.3f}%",
            item["location_kind"],
            *_cells(item),
        )
    blanks = ("", "", "") if wide else ()
    table.add_row("total", *blanks, str(report["num_changed"]), "", "", *_cells(report), style="bold")
    return table


def _cells(report: Mapping[str, Any]) -> list[str]:
    if not report["num_changed"]:
        return ["-", "-"]
    parts = (report["locations"], report["values"])
    return [f"{part['bits_per_change']:.2f} ({part['bound_bits_per_change']:.2f})" for part in parts]


def _show_fields(report: Report, console: "Console") -> None:
    for key, value in report.items():
        if key in ("file", "kind"):
            continue
        text = json.dumps(value) if isinstance(value, dict | list) else str(value)
        console.print(f"  {key.replace('_', ' ')}: {text}", markup=False, soft_wrap=True)
