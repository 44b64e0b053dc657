"""Which payloads a receiver takes, and what those do that fail (P7, P8, P16)."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.unit.receiver_sites import Site, opened

from dcr import observe
from dcr.errors import AttemptFailed
from dcr.model import (
    AttemptId,
    PayloadRef,
    ReceiverState,
)
from dcr.transport.keys import payload_key


@pytest.fixture
def site() -> Site:
    """Serving version 0."""
    made = Site()
    made.join()
    return made


@pytest.mark.parametrize(
    "claims",
    [
        {"run": "e" * 32},
        {"attempt": AttemptId(number=1, version=1)},
        {"parent": 7},
        {"catalogue": "d" * 32},
    ],
    ids=lambda claims: next(iter(claims)),
)
def test_foreign_payloads_are_dropped(site: Site, claims: dict[str, object]) -> None:
    attempt, refs = opened(site, 1, 2)
    site.put(attempt, site.items(1), sequence=90, claims=claims)
    site.agent.finish(attempt, site.manifest(attempt, refs))
    assert site.holds(1)


def test_a_duplicate_is_applied_once(site: Site) -> None:
    attempt, refs = opened(site, 1, 2)
    site.put(attempt, [site.items(1)[0]], sequence=0, key=91)  # the same payload under another key
    site.agent.finish(attempt, site.manifest(attempt, refs))
    assert site.holds(1)


def test_one_key_with_two_contents_fails(site: Site) -> None:
    attempt, refs = opened(site, 1, 2)
    site.put(attempt, site.items(1)[1:], sequence=0, key=91)
    with pytest.raises(AttemptFailed, match="two payloads with sequence 0"):
        site.agent.finish(attempt, site.manifest(attempt, refs))


@pytest.mark.parametrize(
    ("listed", "reason", "left"),
    [
        (lambda refs: [*refs, PayloadRef(3, 7, "0" * 32, 9)], r"missing: \[\(3, 7\)\]", ReceiverState.MIXED),
        (lambda refs: refs[1:], r"not listed: \[\(0, 0\)\]", ReceiverState.EMPTY),
        (
            lambda refs: [replace(refs[0], digest="f" * 32), *refs[1:]],
            r"other content: \[\(0, 0\)\]",
            ReceiverState.EMPTY,
        ),
    ],
    ids=["missing", "extra", "other"],
)
def test_the_set_must_be_exactly_the_manifests(
    site: Site,
    listed: Callable[[list[PayloadRef]], list[PayloadRef]],
    reason: str,
    left: ReceiverState,
) -> None:
    attempt, refs = opened(site, 1, 2)
    with pytest.raises(AttemptFailed, match=reason):
        site.agent.finish(attempt, site.manifest(attempt, listed(refs)))
    assert site.agent.report().state is left


@pytest.mark.parametrize(
    "changes",
    [
        {"run": "e" * 32},
        {"attempt": AttemptId(7, 1)},
        {"parent_version": 3},
        {"parent": None},
        {"catalogue": "c"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_manifest_of_something_else_is_refused(site: Site, changes: dict[str, object]) -> None:
    attempt, refs = opened(site, 1, 2)
    with pytest.raises(AttemptFailed, match="the manifest's"):
        site.agent.finish(attempt, site.manifest(attempt, refs, **changes))


def test_damaged_payloads_fail_the_attempt(site: Site) -> None:
    attempt, refs = opened(site, 1, 2)
    site.store.put(payload_key(site.catalogue.run, attempt, 0, 92), b"not a payload")
    for _ in range(3):
        site.agent.pump()
    with pytest.raises(AttemptFailed, match="stays damaged"):
        site.agent.finish(attempt, site.manifest(attempt, refs))


def test_a_write_that_fails_fails_the_attempt_until_the_next(site: Site) -> None:
    attempt, refs = opened(site, 1, 2)

    def fail(event: observe.Event) -> None:
        if event.name == "receiver.item.before":
            raise ZeroDivisionError

    with observe.listening(fail):
        site.agent.pump()
    for _ in range(2):
        with pytest.raises(AttemptFailed, match="ZeroDivisionError"):
            site.agent.finish(attempt, site.manifest(attempt, refs))
    assert site.agent.report().state is ReceiverState.MIXED


def test_an_item_cut_short_fails_the_attempt_even_if_nobody_says_so(site: Site) -> None:
    attempt, refs = opened(site, 1, 2)

    def crash(event: observe.Event) -> None:
        if event.name == "receiver.item.copy":
            raise KeyboardInterrupt

    with observe.listening(crash), pytest.raises(KeyboardInterrupt):
        site.agent.pump()
    with pytest.raises(AttemptFailed, match="begun and never finished"):
        site.agent.finish(attempt, site.manifest(attempt, refs))


def test_two_decoded_payloads_are_held_at_most(site: Site) -> None:
    """One is applied, the one behind it is decoded: memory does not follow what is visible (R8)."""
    attempt, refs = opened(site, 1, 2)
    assert len(refs) > 2
    decoded, applied, held = list[object](), list[object](), list[int]()

    def listen(event: observe.Event) -> None:
        if event.name in ("receiver.decode", "receiver.apply"):
            (decoded if event.name == "receiver.decode" else applied).append(event.fields["sequence"])
            held.append(len(decoded) - len(applied))

    with observe.listening(listen):
        assert site.agent.pump() == len(refs)
    assert decoded == applied == [ref.sequence for ref in refs]
    assert max(held) <= 2
    site.agent.finish(attempt, site.manifest(attempt, refs))
    assert site.holds(1)
