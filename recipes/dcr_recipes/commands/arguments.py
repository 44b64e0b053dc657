"""Arguments that several commands take, told in the same words everywhere."""

import argparse
from pathlib import Path


def add_run(parser: argparse.ArgumentParser) -> None:
    """``run``: a run folder, or None for the latest; see ``open_run``."""
    parser.add_argument("run", nargs="?", type=Path, metavar="RUN", help="run folder; default runs/latest")


def add_json(parser: argparse.ArgumentParser) -> None:
    """``json``: answer programs."""
    parser.add_argument("--json", action="store_true", help="one JSON object for programs")
