"""The staging queue: what is taken in, once, and how much of it (paper Figure C.2, P16)."""

from dataclasses import replace

import pytest

from dcr.codec import Payload, decode_payload, encode_payload
from dcr.errors import AttemptFailed
from dcr.model import AttemptId, RunId
from dcr.receiver.staging import MAX_GROUP, MAX_GROUPS, Expectation, Staging

ATTEMPT = AttemptId(number=4, version=2)
RUN: RunId = "1" * 32
HERE = Expectation(run=RUN, attempt=ATTEMPT, parent=1, catalogue="2" * 32)


def payload(sequence: int, *, owner: int = 0, expected: Expectation = HERE) -> Payload:
    return decode_payload(
        encode_payload(
            [],
            attempt=expected.attempt,
            owner=owner,
            sequence=sequence,
            run=expected.run,
            parent=expected.parent,
            catalogue=expected.catalogue,
        )
    )


def test_groups_of_eight_in_order_of_admission() -> None:
    staging = Staging(HERE)
    for sequence in range(11):
        assert staging.admit(payload(sequence), 1)
    assert [one.sequence for one in staging.take()] == list(range(8))
    assert staging.take() == []  # the group under assembly is not handed out
    staging.seal()
    assert [one.sequence for one in staging.take()] == [8, 9, 10]


def test_the_bound_is_32_groups_and_one_under_assembly() -> None:
    staging = Staging(HERE)
    number = 0
    while not staging.full:
        staging.admit(payload(number), 1)
        number += 1
    assert number == MAX_GROUPS * MAX_GROUP + MAX_GROUP - 1
    staging.take()
    assert not staging.full


@pytest.mark.parametrize(
    "other",
    [
        replace(HERE, run="3" * 32),
        replace(HERE, attempt=AttemptId(number=3, version=2)),
        replace(HERE, parent=0),
        replace(HERE, catalogue="4" * 32),
    ],
    ids=["run", "attempt", "parent", "catalogue"],
)
def test_foreign_payloads_are_counted_and_dropped(other: Expectation) -> None:
    staging = Staging(HERE)
    assert not staging.admit(payload(0, expected=other), 1)
    assert staging.admit(payload(0), 1)  # its key was not taken
    assert (staging.num_foreign, staging.num_duplicate) == (1, 0)


def test_duplicates_are_dropped_also_after_they_were_handed_out() -> None:
    staging = Staging(HERE)
    staging.admit(payload(0), 1)
    staging.seal()
    staging.take()
    assert not staging.admit(payload(0), 1)
    assert staging.num_duplicate == 1
    assert staging.admit(payload(0, owner=1), 1)


def test_one_key_never_has_two_contents() -> None:
    staging = Staging(HERE)
    staging.admit(payload(0), 1)
    with pytest.raises(AttemptFailed, match="owner 0 sent two payloads with sequence 0"):
        staging.admit(replace(payload(0), digest="0" * 32), 1)
