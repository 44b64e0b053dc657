"""The committed manifests behind a record, and reading them from the archive (DESIGN P3, B5).

Every fault of a stored object becomes an IntegrityError that names the version and the object; a
store that fails for now (StoreError other than MissingObject) surfaces as it is: try again.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from dcr.errors import IntegrityError, MissingObject, PayloadError
from dcr.model import AttemptId, CommitRecord, Manifest, from_json
from dcr.transport.base import Anchor, Archive

_log = logging.getLogger(__name__)


def chain(archive: Archive, record: CommitRecord) -> list[Manifest]:
    """What ``record.version`` is rebuilt from, oldest first: the newest anchor that can be read, then deltas.

    Raises:
        IntegrityError: a manifest is missing or damaged, or does not continue its parent.
        StoreError: the store failed; nothing is lost, try again.
    """
    return next(chains(archive, record))


def chains(archive: Archive, record: CommitRecord) -> Iterator[list[Manifest]]:
    """As ``chain``, then, when asked for more, ever longer ones from the anchors before; the last is v0's.

    Raises:
        IntegrityError: nothing leads further back; at the first one as ``chain``.
        StoreError: the store failed; nothing is lost, try again.
    """
    anchors = {anchor.link: anchor for anchor in archive.retained().anchors}
    later: list[Manifest] = []
    for digest, manifest in _walk(archive, record):
        base = _usable(archive, manifest, anchors.get(digest))
        if base is not None:
            yield [base, *later[::-1]]
        later.append(manifest)
    if not later[-1].overwrite_only:
        raise IntegrityError(f"version {later[-1].attempt.version}: the anchor is not overwrite only")
    yield later[::-1]


def history(archive: Archive, record: CommitRecord) -> list[Manifest]:
    """The manifest that each kept version was committed with, oldest first.

    The first one is v0's anchor or, where older versions were pruned, that of a version with an anchor.

    Raises:
        IntegrityError, StoreError: as ``chain``.
    """
    return list(newest_first(archive, record))[::-1]


def newest_first(archive: Archive, record: CommitRecord) -> Iterator[Manifest]:
    """As ``history``, from the other end: each is read when it is asked for.

    Where pruning goes on meanwhile it ends with some version that is not kept any more.
    """
    oldest, version = archive.retained().floor, record.version + 1
    try:
        for _, manifest in _walk(archive, record):
            version = manifest.attempt.version
            yield manifest
            if version <= oldest:
                return
    except IntegrityError:
        if version > archive.retained().floor:
            raise


def older(archive: Archive, first: Manifest) -> Iterator[tuple[str, Manifest]]:
    """Digest and manifest of each version before ``first``'s, newest first, as far as pruning has left them.

    Raises:
        StoreError: as ``chain``.
    """
    parent = first.parent
    while parent is not None:
        try:
            manifest = from_json(Manifest, archive.get_object("manifest", parent[1]))
        except (MissingObject, PayloadError):
            return
        yield parent[1], manifest
        parent = manifest.parent


def links(archive: Archive, record: CommitRecord, since: int) -> list[Manifest]:
    """The manifests of the versions after ``since`` up to ``record``'s, oldest first.

    Raises:
        IntegrityError, StoreError: as ``chain``.
    """
    found: list[Manifest] = []
    for _, manifest in _walk(archive, record) if since < record.version else ():
        found.append(manifest)
        if manifest.attempt.version <= since + 1:
            break
    return found[::-1]


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


def _walk(archive: Archive, record: CommitRecord) -> Iterator[tuple[str, Manifest]]:
    """Digest and manifest of ``record``'s version, then of each before it, every link checked."""
    digest = record.manifest
    child = _read(archive, record, record.version, digest)
    require(record.version, "the record's manifest", attempt=(child.attempt, record.attempt))
    yield digest, child
    while child.parent is not None:
        attempt, digest = child.parent
        parent = _read(archive, record, child.attempt.version - 1, digest)
        _check_link(child, parent, attempt)
        yield digest, parent
        child = parent


def planes(archive: Archive, manifest: Manifest, anchor: Anchor) -> Manifest:
    """The list of ``anchor``, which lies beside ``manifest``.

    Raises:
        IntegrityError: it is missing, damaged or another one.
        StoreError: the store failed; nothing is lost, try again.
    """
    version, what = manifest.attempt.version, f"anchor manifest {anchor.manifest}"
    with proven(version, what):
        found = from_json(Manifest, archive.get_object("manifest", anchor.manifest))
    require(
        version,
        what,
        run=(found.run, manifest.run),
        attempt=(found.attempt, manifest.attempt),
        catalogue=(found.catalogue, manifest.catalogue),
        whole=(found.is_later_anchor and found.overwrite_only, True),
    )
    return found


def _usable(archive: Archive, manifest: Manifest, anchor: Anchor | None) -> Manifest | None:
    """As ``planes``; None if there is no such anchor, or none that can be used."""
    if anchor is None:
        return None
    try:
        return planes(archive, manifest, anchor)
    except IntegrityError as err:
        _log.warning("an anchor is left out, the one before it is used: %s", err)
        return None


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
