"""The committed manifests behind a record, and reading them from the archive (DESIGN P3, B5).

Every fault of a stored object becomes an IntegrityError that names the version and the object; a
store that fails for now (StoreError other than MissingObject) surfaces as it is: try again.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from dcr.errors import IntegrityError, MissingObject, PayloadError
from dcr.model import AttemptId, CommitRecord, Manifest, from_json
from dcr.transport.base import Archive


def chain(archive: Archive, record: CommitRecord) -> list[Manifest]:
    """Every manifest from the anchor to ``record.version``, oldest first.

    Raises:
        IntegrityError: one is missing or damaged, or does not continue its parent.
        StoreError: the store failed; nothing is lost, try again.
    """
    child = _read(archive, record, record.version, record.manifest)
    require(record.version, "the record's manifest", attempt=(child.attempt, record.attempt))
    manifests = [child]
    while child.parent is not None:
        attempt, digest = child.parent
        parent = _read(archive, record, child.attempt.version - 1, digest)
        _check_link(child, parent, attempt)
        manifests.append(parent)
        child = parent
    if not manifests[-1].overwrite_only:
        raise IntegrityError(f"version {manifests[-1].attempt.version}: the anchor is not overwrite only")
    return manifests[::-1]


@contextmanager
def proven(version: int, what: str) -> Iterator[None]:
    """Turn a missing or damaged object into an IntegrityError that names ``version`` and ``what``."""
    try:
        yield
    except MissingObject as err:
        raise IntegrityError(f"version {version}: {what} is missing: {err}") from err
    except PayloadError as err:
        raise IntegrityError(f"version {version}: {what} is damaged: {err}") from err


def require(version: int, what: str, /, **pairs: tuple[object, object]) -> None:
    """Check that every (found, wanted) pair is equal.

    Raises:
        IntegrityError: one is not; the message names ``version``, ``what`` and the field.
    """
    for field, (found, wanted) in pairs.items():
        if found != wanted:
            raise IntegrityError(f"version {version}: {what} has {field} {found}, wanted {wanted}")


def _read(archive: Archive, record: CommitRecord, version: int, digest: str) -> Manifest:
    what = f"manifest {digest}"
    with proven(version, what):
        manifest = from_json(Manifest, archive.get_object("manifest", digest))
    require(
        version,
        what,
        version=(manifest.attempt.version, version),
        run=(manifest.run, record.run),
        catalogue=(manifest.catalogue, record.catalogue),
    )
    return manifest


def _check_link(child: Manifest, parent: Manifest, named: AttemptId) -> None:
    require(
        child.attempt.version,
        "the manifest",
        parent_version=(child.parent_version, parent.attempt.version),
        parent_attempt=(named, parent.attempt),
    )
    if parent.attempt.number >= child.attempt.number:
        raise IntegrityError(
            f"version {child.attempt.version}: attempt {child.attempt} does not follow {parent.attempt}"
        )
