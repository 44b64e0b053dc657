"""``dcr plot``: the pictures and the trace of a run folder, drawn again."""

import argparse
from pathlib import Path

from dcr.errors import ConfigError


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "plot",
        help="draw the pictures of a run and merge its trace, also of one that ended early",
        description="Draw RUN/plots/*.png (change rates by layer, bytes per refit, reward, seconds by stage)"
        " and merge RUN/trace.json, which Perfetto opens. dcr grpo does both at the end of a run.",
        epilog="example: dcr plot runs/latest",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run")
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Draw and merge; prints the files."""
    from dcr_recipes.layout import RunFolder
    from dcr_recipes.plots import draw_all
    from dcr_recipes.trace.merge import write_trace

    folder = RunFolder(args.run)
    if not folder.config.exists():
        raise ConfigError(f"{args.run} is no run folder")
    traces = [write_trace(folder)] if folder.trace.is_dir() else []
    for path in (*traces, *draw_all(folder)):
        print(path)
    return 0
