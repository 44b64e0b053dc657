"""Composition root: one configuration in, one running side of a refit out (DESIGN section 5).

A training loop holds one ``Refit`` on each rank; a serving process holds one receiver, and one
coordinator process drives both. All three meet in a ``Site``.
"""

from dcr.refit.control import ControlSpec, parse_control
from dcr.refit.coordinator import Post, compose_coordinator, coordinate
from dcr.refit.receiver import await_record, compose_instance, compose_receiver
from dcr.refit.site import COORDINATOR, Site, owner_name
from dcr.refit.trainer import Refit, SyncReport

__all__ = [
    "COORDINATOR",
    "ControlSpec",
    "Post",
    "Refit",
    "Site",
    "SyncReport",
    "await_record",
    "compose_coordinator",
    "compose_instance",
    "compose_receiver",
    "coordinate",
    "owner_name",
    "parse_control",
]
