"""Which calls a rank still obeys: each one once, in its front's order, and only those of the latest front.

A server may go on with a request whose sender has given up, and what lies in between may deliver one twice
or after a later one. A difference that is applied twice, or when its check has passed, makes wrong weights;
so the rank itself decides (DESIGN P6).
"""

from uuid import uuid4

from dcr.errors import AttemptFailed
from dcr.receiver.workers.messages import Call


class Turns:
    """Of one rank, for as long as its process lives. One call at a time."""

    def __init__(self) -> None:
        self._tickets: list[str] = []
        self._number = 0

    def issue(self) -> str:
        """A ticket for a front. Its first call ends all earlier ones; that it was issued ends none."""
        ticket = uuid4().hex
        self._tickets.append(ticket)
        return ticket

    def admit(self, call: Call) -> None:
        """Take ``call`` for the latest one. One without a ticket is nobody's turn, and always obeyed.

        Raises:
            AttemptFailed: it was obeyed before, a later one was, or its front is no longer obeyed.
        """
        if not call.ticket:
            return
        if call.ticket not in self._tickets:
            raise AttemptFailed(
                f"{call.method}: this rank does not obey this front: another receiver has taken over, or the "
                "rank was started anew; start this receiver anew, and give each engine one receiver only"
            )
        if call.ticket != self._tickets[0]:
            del self._tickets[: self._tickets.index(call.ticket)]
            self._number = 0
        if call.number <= self._number:
            raise AttemptFailed(
                f"{call.method}: call {call.number} came late or twice, after call {self._number}; "
                "nothing was done"
            )
        self._number = call.number
