"""The coordinator's side: a service that owns nothing but access to the control plane."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

from dcr.commit.control_plane.base import ControlPlane
from dcr.commit.control_plane.claimed import ClaimedPlane
from dcr.commit.driver import Driver
from dcr.commit.remote import Departures, HttpCaller, remote_endpoints
from dcr.commit.service import CoordinatorService
from dcr.config import CommitConfig
from dcr.model import new_nonce
from dcr.refit.candidate import Candidate, Seat
from dcr.refit.control import ControlSpec
from dcr.refit.desk import Desk, Term
from dcr.refit.site import COORDINATOR, Site, roster
from dcr.transport.announce import identity
from dcr.transport.peers import Peer
from dcr.transport.rpc import serve

ROOM_TO_JOIN = 32
"""Receivers beyond the roster whose calls do not wait for one another; threads start when needed."""


def compose_coordinator(
    config: CommitConfig,
    site: Site,
    plane: ControlPlane,
    *,
    world: int,
    receivers: tuple[str, ...],
    stack: ExitStack | None = None,
) -> CoordinatorService:
    """The service of ``site``'s run for ``world`` trainer ranks and the named receivers.

    It does nothing by itself; ``coordinate`` makes a process of it that takes the run over. ``stack`` gets
    what gives its threads and connections back; without one they last as long as the process.
    """
    cast = roster(world, receivers)
    # Every party may be in two calls at once: one that is late and the one that replaced it.
    num_parties = len(cast.owners) + len(cast.receivers) + ROOM_TO_JOIN
    pool = ThreadPoolExecutor(max_workers=2 * num_parties)
    caller = HttpCaller(site.peers)
    departures = Departures()
    endpoints = remote_endpoints(cast, caller, config, departures)
    if stack is not None:
        stack.callback(caller.close)
        stack.callback(pool.shutdown, wait=False)
    driver = Driver(plane, site.archive, endpoints, site.run, pool=pool)
    return CoordinatorService(driver, config, cast, departures=departures)


@dataclass(frozen=True, slots=True)
class Post:
    """What every coordinator of one run is given. ``leader_lease_s``: see ``commit.leadership``."""

    config: CommitConfig
    site: Site
    control: ControlSpec
    world: int
    receivers: tuple[str, ...]
    leader_lease_s: float

    def new_term(self) -> Term:
        """A service that has done nothing yet."""
        plane, stack = ClaimedPlane(self.control.plane()), ExitStack()
        service = compose_coordinator(
            self.config, self.site, plane, world=self.world, receivers=self.receivers, stack=stack
        )
        return Term(self.site.run, service, plane, stack.close)


def coordinate(
    name: str,
    post: Post,
    stop: threading.Event,
    *,
    tell: Callable[[str], None],
    host: str = "127.0.0.1",
) -> None:
    """Be one of the run's coordinators until ``stop`` is set: active, or on standby while another one leads.

    ``name`` must be its own among all that may live at the same time: a process that comes back under
    its name within the lease is taken for the same one. ``tell`` hears of each change of role.

    Raises:
        ConfigError: the control plane cannot be used as given, or the run is of another model.
        StoreError: its file is no database.
        Exception: as ``Candidate.run``.
    """
    leadership = post.control.leadership(post.site.run, name, lease_s=post.leader_lease_s)
    desk, incarnation = Desk(name), new_nonce()
    with serve({**desk.handlers(), **identity(incarnation)}, host=host) as server:
        me = Peer(COORDINATOR, server.url, incarnation)
        seat = Seat(leadership, post.leader_lease_s, post.site.peers, me, post.new_term)
        Candidate(name, seat, desk, tell=tell).run(stop)
