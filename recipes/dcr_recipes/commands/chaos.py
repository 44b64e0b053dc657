"""``dcr chaos``: a run under random faults of its processes, and a verdict."""

import argparse

from dcr_recipes.commands.numbers import count_or_none, none_or_more, positive


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "chaos",
        help="strike the processes of a tiny run at random and prove that nothing came of it",
        usage="dcr chaos [--seconds S] [--seed N] [options] [key=value ...]",
        description="Strike the processes of a tiny run at random and prove that nothing came of it: every"
        " refit is compared with a dense one, a sample of answers is replayed on dense copies, and no"
        " committed version may be lost. Ends with one line; chaos.json and chaos.jsonl in the run folder"
        " hold the rest. Exit code 0 only if nothing is wrong.",
    )
    parser.add_argument(
        "--seconds", type=none_or_more, default=600.0, metavar="S", help="how long it is struck (600)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the run and its faults (0)")
    parser.add_argument(
        "--pause", type=positive, default=3.0, metavar="S", help="mean between two faults (3)"
    )
    parser.add_argument(
        "--longest", type=positive, default=6.0, metavar="S", help="longest stop or absence (6)"
    )
    parser.add_argument(
        "--least",
        type=count_or_none,
        nargs=2,
        default=(0, 0),
        metavar=("TRANSITIONS", "KILLS"),
        help="go on until there were as many, for three times as long at most",
    )
    parser.add_argument(
        "--sample", type=count_or_none, default=400, metavar="N", help="answers replayed at most (400)"
    )
    parser.add_argument(
        "--etcd", type=count_or_none, default=3, metavar="N", help="nodes of etcd; 0: SQLite (3)"
    )
    parser.add_argument("words", nargs="*", metavar="key=value", help="further keys of dcr grpo")
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Make the run.

    Raises:
        ConfigError: nothing was started.
    """
    from rich.console import Console

    from dcr_recipes.chaos.options import Options
    from dcr_recipes.chaos.run import run as make
    from dcr_recipes.chaos.schedule import Pace

    return make(
        Options(
            seconds=args.seconds,
            seed=args.seed,
            words=args.words,
            pace=Pace(args.pause, args.longest),
            etcd_nodes=args.etcd,
            sample=args.sample,
            least_transitions=args.least[0],
            least_kills=args.least[1],
        ),
        Console(),
    )
