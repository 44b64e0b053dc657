"""The coordinator's side: a service that owns nothing but access to the control plane."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from dcr.commit.control_plane.base import ControlPlane
from dcr.commit.driver import Driver
from dcr.commit.remote import HttpCaller, remote_endpoints
from dcr.commit.service import CoordinatorService
from dcr.config import CommitConfig
from dcr.errors import MissingObject
from dcr.refit.site import Site, roster


def compose_coordinator(
    config: CommitConfig, site: Site, plane: ControlPlane, *, world: int, receivers: tuple[str, ...]
) -> CoordinatorService:
    """A coordinator of ``site``'s run for ``world`` trainer ranks and the named receivers.

    A run that exists is taken over at once (its epoch rises, an unfinished commit is finished), so
    a restarted coordinator serves without being told; see ``CoordinatorService.open_run``.
    """
    cast = roster(world, receivers)
    # Every party may be in two calls at once: one that is late and the one that replaced it.
    pool = ThreadPoolExecutor(max_workers=2 * (len(cast.owners) + len(cast.receivers)))
    endpoints = remote_endpoints(cast, HttpCaller(site.peers), config)
    driver = Driver(plane, site.archive, endpoints, site.run, pool=pool)
    return CoordinatorService(driver, config, cast)


def handlers(service: CoordinatorService) -> dict[str, Callable[..., object]]:
    """Method name -> callable, for ``dcr.transport.rpc.serve``."""
    calls = (service.open_run, service.transition, service.admit, service.record)
    return {call.__name__: call for call in calls}


def take_over(service: CoordinatorService) -> bool:
    """Resume the run if it exists; returns whether it does."""
    try:
        service.record()
    except MissingObject:
        return False
    service.open_run(resume=True)
    return True
