"""``dcr rollback``: serve the committed version again after a transition was abandoned (DESIGN P12)."""

import argparse
import json
from typing import TYPE_CHECKING

from dcr_recipes.commands.arguments import add_json, add_run
from dcr_recipes.commands.findings import Finding, failed, proven

if TYPE_CHECKING:
    from dcr.commit.context import Rollback
    from dcr_recipes.commands.opened import OpenedRun

EXIT_NOT_SERVED = 1
_FIND_S = 10.0


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "rollback",
        help="have every live runtime serve the committed version again",
        description="After a transition that was abandoned, runtimes that hold part of it keep their gates"
        " shut. This stops whatever is left of it, loads the committed version from the archive wherever"
        " another one is held, proves it bit by bit, and opens the gates. The training is not touched: its"
        " next step is published as usual.",
        epilog="exit code: 0 all serve it, 1 some do not, 2 there is no such run, or none that is alive",
    )
    add_run(parser)
    add_json(parser)
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Roll back and print what each runtime serves.

    Raises:
        ConfigError: there is no run, or none of its coordinators is alive.
    """
    from dcr_recipes.commands.opened import open_run

    opened = open_run(args.run)
    done = ask(opened)
    found = findings(done)
    if args.json:
        told = {"version": done.record.version, "serving": done.serving, "failed": done.failed}
        print(json.dumps(told, indent=2))
    else:
        _show(found)
    return EXIT_NOT_SERVED if done.failed or not done.serving else 0


def ask(opened: "OpenedRun") -> "Rollback":
    """Have the run's coordinator do it.

    Raises:
        ConfigError: no coordinator of the run answers.
    """
    from dcr.commit.context import Rollback
    from dcr.errors import ConfigError, Unreachable
    from dcr.model import CommitRecord

    commit = opened.config.commit
    try:
        with opened.caller() as caller:
            coordinator = opened.site.coordinator(commit, caller)
            coordinator.patiently("record", CommitRecord, _FIND_S)
            longest_s = commit.restore_deadline_s + 2 * commit.fence_deadline_s
            return coordinator.now("rollback", Rollback, longest_s)
    except Unreachable as err:
        raise ConfigError(
            f"no coordinator of {opened.folder.root} answers ({err}): without one nothing is served; continue"
            " the run with resume=true, which restores its runtimes"
        ) from None


def findings(done: "Rollback") -> list[Finding]:
    """What each runtime serves now."""
    serves = f"serves version {done.record.version}"
    found = [proven(name, serves) for name in done.serving]
    found += [failed(name, why, version=done.record.version) for name, why in done.failed.items()]
    return found or [failed("runtimes", "none is a member of the run; they join when they start")]


def _show(found: list[Finding]) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    width = max(len(finding.what) for finding in found)
    for finding in found:
        console.print(f"{finding.what:<{width}}  {finding.detail}", soft_wrap=True, markup=False)
