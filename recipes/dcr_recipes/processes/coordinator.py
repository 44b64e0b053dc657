"""The coordinator of one run: nothing but access to the control plane and the scripts that commit."""

import logging

from dcr.commit.control_plane.sqlite import SqliteControlPlane
from dcr.errors import Conflict, Unreachable
from dcr.refit import compose_coordinator
from dcr.refit.coordinator import handlers, take_over
from dcr_recipes.processes.border import Context, enter
from dcr_recipes.processes.serving import announce, runtime_names, site, wait_for_the_end

logger = logging.getLogger(__name__)


def main(context: Context) -> None:
    """Serve the run; one that exists is taken over (P1: the driver holds the folder, so it is ours)."""
    config = context.config
    service = compose_coordinator(
        config.commit,
        site(context),
        SqliteControlPlane(context.folder.control),
        world=config.trainer.ranks,
        receivers=runtime_names(config),
    )
    announce(context, handlers(service))
    try:
        take_over(service)
    except (Conflict, Unreachable) as err:
        logger.warning("not taken over yet, the trainer will ask again: %s", err)
    wait_for_the_end()


if __name__ == "__main__":
    enter("coordinator", main)
