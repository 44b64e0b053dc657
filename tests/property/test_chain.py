"""What makes a chain of manifests: every link is checked before any payload is read."""

from dataclasses import replace

import pytest
from tests.property.committed_history import amended, four_versions

from dcr.errors import IntegrityError
from dcr.model import AttemptId, Manifest, from_json, to_json
from dcr.testing.history import History
from dcr.transport.chain import chain


@pytest.fixture
def history() -> History:
    return four_versions()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("run", "0" * 32),
        ("attempt", AttemptId(version=3, number=8)),
        ("attempt", AttemptId(version=4, number=9)),
        ("catalogue", "0" * 32),
        ("parent_version", 1),
        ("parent_version", 3),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(history: History, field: str, value: object) -> None:
    """Already by its place in the chain, before any payload is read."""
    record = amended(history, **{field: value})
    with pytest.raises(IntegrityError, match=r"version \d"):
        chain(history.archive, record)


@pytest.mark.parametrize("version", [0, 1, 3])
def test_a_parent_of_another_version_is_refused(history: History, version: int) -> None:
    """Also if the manifest's own parent version says the same: no version may be skipped."""
    parent = (history.records[version].attempt, history.records[version].manifest)
    for parent_version in (2, version):
        record = amended(history, parent=parent, parent_version=parent_version)
        with pytest.raises(IntegrityError, match=r"has version|has parent_version"):
            chain(history.archive, record)


def test_a_parent_must_be_the_attempt_that_was_named(history: History) -> None:
    parent = (AttemptId(version=2, number=5), history.records[2].manifest)
    with pytest.raises(IntegrityError, match="has parent_attempt"):
        chain(history.archive, amended(history, parent=parent))


def test_attempts_must_rise_along_the_chain(history: History) -> None:
    attempt = AttemptId(version=3, number=history.records[2].attempt.number)
    record = replace(amended(history, attempt=attempt), attempt=attempt)
    with pytest.raises(IntegrityError, match="3-6 does not follow 2-6"):
        chain(history.archive, record)


@pytest.mark.parametrize("field", ["run", "catalogue"])
def test_an_older_manifest_of_elsewhere_is_refused(history: History, field: str) -> None:
    other = replace(history.manifests[2], **{field: "0" * 32})  # type: ignore[arg-type]
    digest = history.archive.put_object("manifest", to_json(other))
    with pytest.raises(IntegrityError, match=f"version 2: manifest {digest} has {field}"):
        chain(history.archive, amended(history, parent=(other.attempt, digest)))


def test_a_later_version_is_not_taken_for_an_anchor(history: History) -> None:
    with pytest.raises(IntegrityError, match="version 3: the anchor is not overwrite only"):
        chain(history.archive, amended(history, parent=None))


def test_manifests_survive_their_wire_form(history: History) -> None:
    for manifest in history.manifests:
        assert from_json(Manifest, to_json(manifest)) == manifest
