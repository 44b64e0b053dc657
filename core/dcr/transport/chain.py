"""The committed manifests behind a record, and reading them from the archive (DESIGN P3, B5).

Every fault of a stored object becomes an IntegrityError that names the version and the object; a
store that fails for now (StoreError other than MissingObject) surfaces as it is: try again.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from dcr.errors import IntegrityError, MissingObject, PayloadError
from dcr.model import CommitRecord, Manifest, from_json
from dcr.transport.base import Archive


def chain(archive: Archive, record: CommitRecord) -> list[Manifest]:
    """Every manifest from the anchor to ``record.version``, oldest first.

    Raises:
        IntegrityError: one is missing or damaged, or does not continue its parent.
        StoreError: the store failed; nothing is lost, try again.
    """
    manifests = [_read(archive, record.version, record.manifest)]
    _check_head(record, manifests[0])
    while (parent := manifests[-1].parent) is not None:
        attempt, digest = parent
        child = manifests[-1]
        manifests.append(_read(archive, child.parent_version, digest))
        _check_link(child, manifests[-1], attempt == manifests[-1].attempt)
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


def _read(archive: Archive, version: int, digest: str) -> Manifest:
    with proven(version, f"manifest {digest}"):
        return from_json(Manifest, archive.get_object("manifest", digest))


def _check_head(record: CommitRecord, head: Manifest) -> None:
    require(
        record.version,
        "the record's manifest",
        run=(head.run, record.run),
        attempt=(head.attempt, record.attempt),
        version=(head.attempt.version, record.version),
        catalogue=(head.catalogue, record.catalogue),
    )


def _check_link(child: Manifest, parent: Manifest, attempt_agrees: bool) -> None:
    require(
        child.parent_version,
        "the parent manifest",
        run=(parent.run, child.run),
        version=(parent.attempt.version, child.parent_version),
        catalogue=(parent.catalogue, child.catalogue),
        agreement=(attempt_agrees, True),
    )
    require(
        child.attempt.version,
        "the manifest",
        parent_version=(child.parent_version, child.attempt.version - 1),
        order=(parent.attempt.number < child.attempt.number, True),
    )
