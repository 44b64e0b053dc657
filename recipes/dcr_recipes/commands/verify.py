"""``dcr verify``: is what a run serves and stores what its record says?"""

import argparse
import contextlib
import json
import sys
from typing import TYPE_CHECKING, Any

from dcr_recipes.commands.arguments import add_json, add_run
from dcr_recipes.commands.findings import Finding, Verdict, any_failed, failed, proven, unchecked

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dcr.model import CommitRecord
    from dcr_recipes.commands.archived import Advance
    from dcr_recipes.commands.opened import OpenedRun

EXIT_NOT_PROVEN = 1
_TRIES = 3
_NO_RECEIVER = "no receiver of this run is alive: no receiver was checked"


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "verify",
        help="prove that receivers and archive hold what the commit record says",
        description="Audit the live receivers of a run against its commit record, tensor by tensor, without"
        " moving a weight; then check manifests and payload digests, rebuild the version from the archive and"
        " compare it with the record's audit table. The trainer's baselines are checked when the run is not"
        " running.",
        epilog="exit code: 0 all is proven, 1 something is not as committed, 2 there is no such run",
    )
    add_run(parser)
    add_json(parser)
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Print the findings.

    Raises:
        ConfigError: there is no run.
    """
    from dcr_recipes.commands.opened import open_run

    opened = open_run(args.run)
    with _progress(shown=not args.json) as advance:
        receivers = check_receivers(opened)
        checked = receivers is not None
        record, stored = check_latest(opened, advance, trackers=not checked)
        findings = [
            proven("record", f"version {record.version}, attempt {record.attempt}, step {record.step}"),
            *(receivers or [unchecked("receivers", _NO_RECEIVER)]),
            *stored,
        ]
    if args.json:
        print(json.dumps(_as_json(record, findings, checked=checked), indent=2))
    else:
        _show(findings)
    return EXIT_NOT_PROVEN if any_failed(findings) else 0


def check_receivers(opened: "OpenedRun") -> list[Finding] | None:
    """Findings of every receiver of the run; None if none of them is alive.

    While one is alive the other members must be too: the run requires them. What is no member serves nothing.
    """
    from dcr_recipes.commands.receivers import Auditor
    from dcr_recipes.processes.serving import runtime_names

    with opened.caller() as caller:
        auditor = Auditor(opened.site, opened.plane, caller)
        members = opened.state().members
        answers = {name: auditor.check(name) for name in members}
    if not any(answers.values()):
        return None
    left_out = [name for name in runtime_names(opened.config) if name not in members]
    findings = [unchecked(name, "left out of the run: it serves nothing until it joins") for name in left_out]
    for name, answer in answers.items():
        findings += [failed(name, "does not answer, while others do")] if answer is None else answer
    return findings


def check_latest(
    opened: "OpenedRun", advance: "Advance", *, trackers: bool
) -> "tuple[CommitRecord, list[Finding]]":
    """The record, and findings of the archive behind it: a run that goes on may prune that meanwhile."""
    tries = 0
    while True:
        record, tries = opened.state().record, tries + 1
        findings = check_archive(opened, record, advance, trackers=trackers)
        if not any_failed(findings) or tries == _TRIES or opened.state().record == record:
            return record, findings


def check_archive(
    opened: "OpenedRun", record: "CommitRecord", advance: "Advance", *, trackers: bool
) -> list[Finding]:
    """Findings of the archive behind ``record``, and of the trackers if asked for."""
    from dcr.errors import MissingObject, PayloadError
    from dcr.model import AuditTable, from_json
    from dcr_recipes.commands.archived import ArchiveCheck
    from dcr_recipes.commands.trackers import check_trackers

    archive, found = opened.site.archive, []
    try:
        catalogue = opened.site.catalogue(record)
        table = from_json(AuditTable, archive.get_object("audit", record.audit))
    except (MissingObject, PayloadError) as err:
        return [failed("record", f"it names an object that is missing or damaged: {err}")]
    found = ArchiveCheck(archive, record, catalogue, advance).run()
    if not trackers:
        return [*found, unchecked("trackers", "the run is alive and writes them")]
    folders = [opened.folder.trackers / f"rank-{rank}" for rank in range(opened.config.trainer.ranks)]
    if not any(folder.is_dir() for folder in folders):
        return [*found, unchecked("trackers", "there are none here")]
    return [*found, *check_trackers(folders, catalogue, record.version, table)]


def _as_json(record: "CommitRecord", findings: list[Finding], *, checked: bool) -> dict[str, Any]:
    return {
        "run": record.run,
        "version": record.version,
        "proven": not any_failed(findings),
        "receivers_checked": checked,
        "findings": [finding.as_json() for finding in findings],
    }


def _show(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    styles = {Verdict.PROVEN: "green", Verdict.FAILED: "bold red", Verdict.UNCHECKED: "yellow"}
    width = max(len(finding.what) for finding in findings)
    for finding in findings:
        verdict = Text(f"{finding.verdict.value:<12}", style=styles[finding.verdict])
        console.print(verdict + Text(f"{finding.what:<{width}}  {finding.detail}"), soft_wrap=True)
    if any_failed(findings):
        console.print("NOT PROVEN", style="bold red")
        return
    nobody = any(finding.detail == _NO_RECEIVER for finding in findings)
    console.print("proven, but no receiver was checked" if nobody else "proven", style="bold green")


@contextlib.contextmanager
def _progress(*, shown: bool) -> "Iterator[Advance]":
    """A bar on the terminal's standard error; nothing where that is no terminal."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(
        console=Console(stderr=True), transient=True, disable=not shown or not sys.stderr.isatty()
    ) as bar:
        tasks: dict[str, Any] = {}

        def advance(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done)

        yield advance
