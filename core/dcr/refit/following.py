"""Calls that follow a party to where it is announced, also while they wait for an answer."""

from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass
from typing import Any

from dcr.commit.remote import Caller
from dcr.errors import Unreachable
from dcr.refit.aside import begun
from dcr.transport.peers import Peers

LOOK_AGAIN_S = 0.25


@dataclass(frozen=True, slots=True)
class FollowingCaller:
    """``Caller`` that stops to wait for a party once it is announced at another place.

    A coordinator that is stopped neither answers nor closes its connections; its successor announces
    itself. What the first one was asked may still happen there: calls are idempotent and fenced (P6).
    """

    caller: Caller
    peers: Peers

    def __call__(
        self, name: str, method: str, result: type[Any], deadline_s: float, params: dict[str, object]
    ) -> Any:
        """See ``Caller``."""
        begun_at = self.peers.find(name)
        answer: Future[Any] = begun(
            lambda: self.caller(name, method, result, deadline_s, params), f"{method} of {name}"
        )
        while True:
            try:
                return answer.result(LOOK_AGAIN_S)
            except NotYet:
                if answer.done():
                    return answer.result()
            if self.peers.find(name) not in (None, begun_at):
                raise Unreachable(f"{name} is announced elsewhere since it was asked to {method}")
