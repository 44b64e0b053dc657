"""Writers that compete for one control plane and resolve every answer that was lost (DESIGN P4)."""

import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TypeAlias

from dcr.commit.control_plane.base import ControlPlane
from dcr.commit.transitions import take_over
from dcr.errors import Conflict, OutcomeUnknown, StoreError
from dcr.model import ControlState, new_nonce

OpenPlane: TypeAlias = Callable[[], ControlPlane]


def claim(plane: ControlPlane, run: str) -> tuple[int, str]:
    """Win one compare-and-set: its revision, and ``ok`` or how an unknown outcome was resolved (P4)."""
    while True:
        try:
            state = plane.read(run)
        except StoreError:
            continue
        wanted = take_over(state, new_nonce())
        try:
            plane.compare_and_set(state, wanted)
        except (Conflict, StoreError):
            continue
        except OutcomeUnknown:
            if resolve(plane, wanted):
                return wanted.revision, "landed"
            continue
        return wanted.revision, "ok"


def resolve(plane: ControlPlane, wanted: ControlState) -> bool:
    """Whether ``wanted`` took effect, for certain: a write on top makes a late landing impossible."""
    while True:
        try:
            now = plane.read(wanted.run)
            if now.writer == wanted.writer:
                return True
            if now.revision >= wanted.revision:
                return False  # another writer's value took the place that ours needed
            plane.compare_and_set(now, take_over(now, f"fence {new_nonce()}"))
        except (Conflict, StoreError, OutcomeUnknown):
            time.sleep(0.02)


def claim_many(open_plane: OpenPlane, run: str, num_claims: int, to: Connection) -> None:
    """``claim`` so many times; each is sent as soon as it is known."""
    plane = open_plane()
    for _ in range(num_claims):
        to.send(claim(plane, run))
    to.close()
