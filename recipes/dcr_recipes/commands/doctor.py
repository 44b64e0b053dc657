"""``dcr doctor``: how a runtime takes each tensor, and why not faster; what its own audit found."""

import argparse
import json
from typing import TYPE_CHECKING

from dcr.errors import ConfigError
from dcr_recipes.commands.arguments import add_json, add_run

if TYPE_CHECKING:
    from dcr_recipes.commands.diagnosed import Diagnosed

EXIT_ILL = 1


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "doctor",
        help="show how receivers take each tensor, why not faster, and what their audits found",
        description="Ask the live receivers of a run, rank by rank: how many tensors and bytes are scattered"
        " through the learned map, which go another way and why, what the map depends on, what is refused,"
        " and how far the background audit is. With --model, ask a loader instead that no run uses.",
        epilog="exit code: 0 all is well, 1 an instance is away, not serving, or refuses something, 2 no run",
    )
    add_run(parser)
    parser.add_argument(
        "--model", help="build this model's hf runtime and learn it here (see dcr grpo --help)"
    )
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="key=value", help="with --model: further keys"
    )
    add_json(parser)
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Print the diagnoses.

    Raises:
        ConfigError: there is no run, or no such model; RUN and --model together.
    """
    from dcr_recipes.commands.diagnosed import of_model, of_run

    if args.model and args.run:
        raise ConfigError("give a run folder or --model, not both")
    if args.set and not args.model:
        raise ConfigError("--set goes with --model; a run has its configuration")
    found = of_model(args.model, args.set) if args.model else of_run(args.run)
    if args.json:
        print(json.dumps(found.as_json(), indent=2))
    else:
        _show(found)
    return 0 if found.is_well else EXIT_ILL


def _show(found: "Diagnosed") -> None:
    from rich.console import Console

    from dcr_recipes.commands.diagnosis_table import show

    show(found, Console(highlight=False))
