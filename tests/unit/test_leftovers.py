"""Manifests of failed attempts go, and nothing else; what a term holds goes with its last user."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from dcr.errors import Unreachable
from dcr.model import AttemptId, Manifest, to_json
from dcr.refit.desk import Desk, Term
from dcr.testing.transport_suite import RUN
from dcr.transport.archive import StoreArchive
from dcr.transport.leftovers import Manifests
from dcr.transport.memory import MemoryStore


class CountingArchive(StoreArchive):
    """Counts reads."""

    num_reads = 0

    def get_object(self, kind: str, digest: str) -> bytes:  # type: ignore[explicit-override]
        self.num_reads += 1
        return super().get_object(kind, digest)


def manifest_of(number: int) -> Manifest:
    return Manifest(
        run=RUN, attempt=AttemptId(version=1, number=number), parent_version=0, parent=None,
        catalogue="c" * 32, overwrite_only=True, owners=(),
    )  # fmt: skip


def test_manifests_of_failed_attempts_go_and_others_are_read_once() -> None:
    store = MemoryStore()
    archive = CountingArchive(store, RUN)
    digests = {n: archive.put_object("manifest", to_json(manifest_of(n))) for n in (1, 2, 3, 4)}
    store.put(f"{RUN}/manifest/{'0' * 32}", b"damaged")
    manifests = Manifests(store, archive, RUN)
    removed = manifests.remove(lambda attempt: attempt.number in (2, 3))
    assert sorted(removed) == sorted(f"{RUN}/manifest/{digests[n]}" for n in (2, 3))
    assert archive.get_object("manifest", digests[4])
    before = archive.num_reads
    assert manifests.remove(lambda _: True) == []
    assert archive.num_reads == before


def term(closed: list[str], service: object) -> Term:
    return Term(RUN, cast("Any", service), cast("Any", None), lambda: closed.append("closed"))


class Service:
    """Does something in the midst of a request."""

    def __init__(self, during: Callable[[], None]) -> None:
        self._during = during

    def rollback(self) -> str:
        self._during()
        return "answered"


def test_a_term_is_closed_when_its_last_request_is_answered() -> None:
    closed: list[str] = []
    seen: list[tuple[str, ...]] = []
    desk = Desk("c")

    def end() -> None:
        desk.end(made)
        seen.append(tuple(closed))

    made = term(closed, Service(end))
    desk.begin(made)
    assert cast("str", desk.rollback()) == "answered"
    assert seen == [()], "not while a request uses it"
    assert closed == ["closed"]
    with pytest.raises(Unreachable):
        desk.rollback()


def test_a_term_without_requests_is_closed_at_its_end_and_another_one_is_not() -> None:
    closed: list[str] = []
    desk = Desk("c")
    first, second = term(closed, None), term([], None)
    desk.begin(first)
    with desk.using(first):
        pass
    assert closed == [], "it goes on"
    desk.end(first)
    assert closed == ["closed"]
    desk.begin(second)
    assert desk.term is second
