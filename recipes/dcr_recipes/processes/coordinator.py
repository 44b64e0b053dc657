"""A coordinator of one run: nothing but access to the control plane and the scripts that commit."""

import signal
import threading

from dcr.refit import coordinate
from dcr_recipes.layout import coordinator_name
from dcr_recipes.processes.border import Context, enter
from dcr_recipes.processes.serving import post_of


def main(context: Context) -> None:
    """Coordinate, or stand by (P1: the driver holds the folder, so a run that exists is ours)."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda _signal, _frame: stop.set())
    post = post_of(context.folder, context.config)
    coordinate(candidate_name(context), post, stop, tell=lambda line: print(line, flush=True))


def candidate_name(context: Context) -> str:
    """A lone coordinator comes back as the same one and goes on at once; others queue up behind a standby."""
    alone = context.config.commit.coordinators == 1
    return context.name if alone else f"{context.name}.{context.incarnation}"


if __name__ == "__main__":
    enter(coordinator_name, main)
