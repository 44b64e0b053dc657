"""What every Transport must do; each implementation's test subclasses this.

A subclass defines the fixture ``open_end``: each call opens another end, bound to the run it is
given, of one and the same medium.
"""

import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from dcr.codec import encode_payload, payload_digest
from dcr.errors import AttemptFailed, Conflict
from dcr.model import AttemptId, OwnerClose, PayloadRef, RunId
from dcr.transport.base import Transport

RUN = "0" * 31 + "1"
OTHER_RUN = "0" * 31 + "2"
TAU = AttemptId(version=1, number=1)
NEXT = AttemptId(version=1, number=10)
OpenEnd = Callable[[RunId], Transport]


def sample(
    owner: int, sequence: int, *, attempt: AttemptId = TAU, run: RunId = RUN
) -> tuple[PayloadRef, bytes]:
    """A valid payload without items, and its reference."""
    data = encode_payload([], attempt=attempt, owner=owner, sequence=sequence, run=run)
    return PayloadRef(owner, sequence, payload_digest(data), len(data)), data


def closing(owner: int, refs: Sequence[PayloadRef], *, attempt: AttemptId = TAU) -> OwnerClose:
    """The closed list of ``owner`` with these payloads."""
    return OwnerClose(
        attempt=attempt,
        owner=owner,
        payloads=tuple(refs),
        audit={},
        num_changed=0,
        num_elements=0,
        candidate="",
    )


class TransportContract:
    """Order, visibility, idempotence, fencing and isolation of one medium."""

    def test_what_is_published_is_fetched_in_order(self, open_end: OpenEnd) -> None:
        """By owner, then sequence, as numbers; the owner need not have closed."""
        sent = {
            (owner, sequence): sample(owner, sequence) for owner in (0, 2, 10) for sequence in (0, 1, 2, 11)
        }
        sender = open_end(RUN)
        for key in sorted(sent, key=str, reverse=True):
            sender.publish(TAU, *sent[key])
        assert list(open_end(RUN).fetch(TAU, ())) == [sent[key] for key in sorted(sent)]

    def test_nothing_is_visible_before_it_is_published(self, open_end: OpenEnd) -> None:
        """An empty attempt is no error: a receiver may ask before any owner has begun."""
        sender, receiver = open_end(RUN), open_end(RUN)
        assert list(receiver.fetch(TAU, ())) == []
        sender.publish(TAU, *sample(0, 0))
        assert list(receiver.fetch(TAU, ())) == [sample(0, 0)]

    def test_what_was_seen_is_not_sent_again(self, open_end: OpenEnd) -> None:
        """Repeated fetches deliver each payload once."""
        sender, receiver = open_end(RUN), open_end(RUN)
        seen: set[tuple[int, int]] = set()
        for sequence in range(4):
            sender.publish(TAU, *sample(0, sequence))
            fresh = [(ref.owner, ref.sequence) for ref, _ in receiver.fetch(TAU, seen)]
            assert fresh == [(0, sequence)]
            seen.update(fresh)
        assert list(receiver.fetch(TAU, seen)) == []

    def test_publishing_again_changes_nothing(self, open_end: OpenEnd) -> None:
        """A lost answer is answered by publishing the same bytes again."""
        sender = open_end(RUN)
        for _ in range(3):
            sender.publish(TAU, *sample(0, 0))
        assert list(open_end(RUN).fetch(TAU, ())) == [sample(0, 0)]

    def test_one_key_never_carries_two_payloads(self, open_end: OpenEnd) -> None:
        """P16: receivers deduplicate by key, so other bytes under it must fail."""
        open_end(RUN).publish(TAU, *sample(0, 0))
        data = encode_payload([], attempt=TAU, owner=0, sequence=0, run=RUN, catalogue="f" * 32)
        other = PayloadRef(0, 0, payload_digest(data), len(data))
        with pytest.raises(Conflict):
            open_end(RUN).publish(TAU, other, data)
        assert list(open_end(RUN).fetch(TAU, ())) == [sample(0, 0)]

    @pytest.mark.parametrize("data", [b"", b"noise", sample(0, 0)[1][:-1]], ids=["empty", "noise", "cut"])
    def test_bytes_that_are_no_payload_are_delivered_as_such(self, open_end: OpenEnd, data: bytes) -> None:
        """The receiver has to see them to fail the attempt; the transport vouches for nothing."""
        open_end(RUN).publish(TAU, PayloadRef(0, 0, "", len(data)), data)
        assert list(open_end(RUN).fetch(TAU, ())) == [(PayloadRef(0, 0, "", len(data)), data)]

    def test_a_closed_owner_publishes_nothing_more(self, open_end: OpenEnd) -> None:
        """P7: only that owner and that attempt are closed; closing again is no error."""
        end = open_end(RUN)
        ref, data = sample(0, 0)
        end.publish(TAU, ref, data)
        end.close(closing(0, [ref]))
        end.close(closing(0, [ref]))
        with pytest.raises(AttemptFailed, match="owner 0"):
            end.publish(TAU, *sample(0, 1))
        end.publish(TAU, *sample(1, 0))
        end.publish(NEXT, *sample(0, 0, attempt=NEXT))
        assert [(ref.owner, ref.sequence) for ref, _ in open_end(RUN).fetch(TAU, ())] == [(0, 0), (1, 0)]

    def test_an_owner_closes_with_one_list(self, open_end: OpenEnd) -> None:
        """A second process of one owner cannot close with another list."""
        open_end(RUN).close(closing(0, []))
        with pytest.raises(Conflict):
            open_end(RUN).close(closing(0, [sample(0, 0)[0]]))

    def test_a_stopped_attempt_takes_and_gives_nothing(self, open_end: OpenEnd) -> None:
        """P6: stopping is for good, may be repeated, and leaves other attempts alone."""
        end = open_end(RUN)
        end.publish(TAU, *sample(0, 0))
        for _ in range(2):
            end.stop_and_wait(TAU)
            with pytest.raises(AttemptFailed, match="1-1"):
                end.publish(TAU, *sample(0, 1))
            with pytest.raises(AttemptFailed, match="1-1"):
                end.close(closing(0, []))
            with pytest.raises(AttemptFailed, match="1-1"):
                list(end.fetch(TAU, ()))
        end.publish(NEXT, *sample(0, 0, attempt=NEXT))
        end.close(closing(0, [], attempt=NEXT))
        assert list(end.fetch(NEXT, ())) == [sample(0, 0, attempt=NEXT)]

    def test_an_attempt_can_be_stopped_before_it_began(self, open_end: OpenEnd) -> None:
        """The order to stop may overtake the order to start."""
        end = open_end(RUN)
        end.stop_and_wait(TAU)
        with pytest.raises(AttemptFailed):
            end.publish(TAU, *sample(0, 0))
        assert list(open_end(RUN).fetch(TAU, ())) == []

    def test_stopping_ends_a_fetch_that_has_begun(self, open_end: OpenEnd) -> None:
        """Between two payloads, with the receiver in the middle of the first."""
        sender, receiver = open_end(RUN), open_end(RUN)
        sender.publish(TAU, *sample(0, 0))
        sender.publish(TAU, *sample(0, 1))
        stream = receiver.fetch(TAU, ())
        assert next(stream) == sample(0, 0)
        receiver.stop_and_wait(TAU)
        with pytest.raises(AttemptFailed):
            next(stream)

    def test_nothing_appears_after_stop_and_wait(self, open_end: OpenEnd) -> None:
        """While threads publish: what another end sees when it returns is all that it ever sees."""
        for turn in range(10):
            attempt = AttemptId(version=1, number=100 + turn)
            sender, receiver = open_end(RUN), open_end(RUN)
            with _publishing(sender, attempt) as progress:
                progress.wait()
                sender.stop_and_wait(attempt)
                at_stop = list(receiver.fetch(attempt, ()))
            assert at_stop
            assert list(receiver.fetch(attempt, ())) == at_stop

    def test_attempts_are_apart(self, open_end: OpenEnd) -> None:
        """1-1 is a prefix of 1-10 and must not find its payloads."""
        end = open_end(RUN)
        end.publish(NEXT, *sample(0, 0, attempt=NEXT))
        assert list(end.fetch(TAU, ())) == []
        end.publish(TAU, *sample(0, 0))
        assert list(end.fetch(TAU, ())) == [sample(0, 0)]

    def test_runs_are_apart(self, open_end: OpenEnd) -> None:
        """P1: same attempt, owner and sequence, other run: neither sees, stops nor closes the other."""
        mine, theirs = open_end(RUN), open_end(OTHER_RUN)
        mine.publish(TAU, *sample(0, 0))
        assert list(theirs.fetch(TAU, ())) == []
        mine.close(closing(0, [sample(0, 0)[0]]))
        mine.stop_and_wait(TAU)
        theirs.publish(TAU, *sample(0, 0, run=OTHER_RUN))
        theirs.close(closing(0, []))
        assert list(theirs.fetch(TAU, ())) == [sample(0, 0, run=OTHER_RUN)]
        assert list(open_end(RUN).fetch(TAU, ())) == [sample(0, 0)]


class _publishing:  # noqa: N801 -- used like a function, as a context
    """Four threads publish as four owners until they are refused; entering gives a mark of progress."""

    def __init__(self, sender: Transport, attempt: AttemptId) -> None:
        self._progress = threading.Event()
        self._threads = [
            threading.Thread(target=self._publish, args=(sender, attempt, owner)) for owner in range(4)
        ]

    def __enter__(self) -> threading.Event:
        for thread in self._threads:
            thread.start()
        return self._progress

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.join()

    def _publish(self, sender: Transport, attempt: AttemptId, owner: int) -> None:
        for sequence in _endless():
            try:
                sender.publish(attempt, *sample(owner, sequence, attempt=attempt))
            except AttemptFailed:
                return
            if sequence == 2:
                self._progress.set()


def _endless() -> Iterator[int]:
    yield from range(100_000)
