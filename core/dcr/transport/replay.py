"""Rebuild the committed bits of a version from anchor and chain (DESIGN P9, B5).

Used by owners whose trackers are torn or lost, by empty receivers, and by exports. The result is
proven tensor by tensor against the record's audit table before it is returned.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from dcr import observe
from dcr.audit import digest_tensor
from dcr.codec import Item, Limits, Payload, decode_payload
from dcr.errors import ConfigError, IntegrityError
from dcr.model import (
    AuditTable,
    Bits,
    Catalogue,
    CommitRecord,
    Encoding,
    Manifest,
    PayloadRef,
    TensorSpec,
    bits_dtype,
    from_json,
)
from dcr.transport.base import Archive
from dcr.transport.chain import chains, proven, require
from dcr.transport.values import combined

Tensors: TypeAlias = dict[str, Bits]
Look: TypeAlias = Callable[[], None]
"""Called before each payload; raises if nobody waits for the result any more."""
_log = logging.getLogger(__name__)


def _never() -> None:
    """Somebody always waits."""


def replay(archive: Archive, record: CommitRecord, catalogue: Catalogue, *, look: Look = _never) -> Tensors:
    """Flat unsigned canonical bits [num_elements] of every catalogue tensor, by primary name.

    It begins with the newest anchor; should that turn out to be damaged, with the one before. ``look`` is
    called before each payload and may raise, to end it.

    Raises:
        IntegrityError: an object is missing or damaged, the chain does not hold together, the
            anchor leaves an element unwritten, or a tensor's audit digest is not the record's.
        StoreError: the store failed; nothing is lost, try again.
    """
    names = [spec.name for spec in catalogue.tensors]
    return replay_tensors(archive, record, catalogue, names, look=look)


def replay_tensors(
    archive: Archive,
    record: CommitRecord,
    catalogue: Catalogue,
    names: Collection[str],
    *,
    look: Look = _never,
) -> Tensors:
    """As ``replay``, for the tensors with these primary names only; every payload is read all the same.

    Raises:
        ConfigError: a name is no primary name of the catalogue.
    """
    specs = {spec.name: spec for spec in catalogue.tensors}
    if unknown := sorted(set(names).difference(specs)):
        raise ConfigError(f"{unknown[0]!r} is no primary name of the catalogue; ask for primary names")
    require(record.version, "the record", catalogue=(record.catalogue, catalogue.digest()))
    with archive.reading(record.version) as keep:

        def before_payload() -> None:
            look()
            keep()

        found, failure = chains(archive, record), None
        while True:
            manifests = _next(found, record, failure)
            try:
                return _rebuild(archive, record, catalogue, names, manifests, before_payload)
            except IntegrityError as err:
                failure = failure or _without_frames(err)


def _without_frames(err: IntegrityError) -> IntegrityError:
    """``err`` without its frames, which hold all that was rebuilt, while as much is rebuilt once more."""
    one: BaseException | None = err
    while one is not None:
        one.__traceback__ = None
        one = one.__cause__ or one.__context__
    return err


def _next(
    found: Iterator[list[Manifest]], record: CommitRecord, failure: IntegrityError | None
) -> list[Manifest]:
    """The next chain of ``found``; what has failed with the first one is raised if there is no other."""
    try:
        manifests = next(found)
    except (IntegrityError, StopIteration) as err:
        raise failure or err from None
    if failure is not None:
        first = manifests[0].attempt.version
        _log.warning(
            "%s; version %d is rebuilt from the anchor of version %d", failure, record.version, first
        )
    return manifests


def _rebuild(
    archive: Archive,
    record: CommitRecord,
    catalogue: Catalogue,
    names: Collection[str],
    manifests: Sequence[Manifest],
    keep: Look,
) -> Tensors:
    specs = {spec.name: spec for spec in catalogue.tensors}
    target = _Target(
        specs=specs,
        aliases=frozenset(alias for spec in catalogue.tensors for alias in spec.aliases),
        bits={name: np.zeros(specs[name].num_elements, bits_dtype(specs[name].dtype)) for name in names},
        limits=Limits.of_catalogue(catalogue),
        keep=keep,
    )
    anchor, *later = manifests
    _apply_anchor(archive, anchor, target)
    for manifest in later:
        for item in _items(archive, manifest, target.limits, keep):
            _apply(manifest, item, target)
    with observe.span("replay.prove", version=record.version):
        _prove(archive, record, catalogue, target.bits)
    return target.bits


@dataclass(frozen=True, slots=True)
class _Target:
    """The tensors being rebuilt, and what the catalogue says about all of them.

    ``keep`` is called before each payload, see ``Archive.reading``: an anchor alone may take long to read.
    It may raise, to end the work.
    """

    specs: dict[str, TensorSpec]
    aliases: frozenset[str]
    bits: Tensors
    limits: Limits
    keep: Look


def checked_items(
    archive: Archive, manifest: Manifest, catalogue: Catalogue, keep: Look = _never
) -> Iterator[Item]:
    """Every item of ``manifest`` in declared order, one payload decoded at a time, checked against both.

    ``keep`` is called before each payload.

    Raises:
        IntegrityError: a payload is missing, damaged or another one, or an item fits no tensor.
        StoreError: the store failed; nothing is lost, try again.
    """
    specs = catalogue.by_name()
    version = manifest.attempt.version
    for item in _items(archive, manifest, Limits.of_catalogue(catalogue), keep):
        spec = specs.get(item.name)
        if spec is None:
            raise IntegrityError(
                f"version {version}: an item names {item.name}, which the catalogue does not"
            )
        what = f"an item of {item.name}"
        require(version, what, shape=(item.shape, spec.shape), dtype=(item.dtype, spec.dtype))
        if item.encoding is not Encoding.OVERWRITE and manifest.overwrite_only:
            raise IntegrityError(f"version {version}: {what} is {item.encoding} among overwrites only")
        yield item


def _items(archive: Archive, manifest: Manifest, limits: Limits, keep: Look) -> Iterator[Item]:
    """Every item of the manifest in declared order, one payload decoded at a time."""
    version = manifest.attempt.version
    for ref in manifest.payloads:
        keep()
        with observe.span("replay.payload", version=version, owner=ref.owner, sequence=ref.sequence):
            what = f"payload {ref.sequence} of owner {ref.owner}, attempt {manifest.attempt_of(ref)},"
            with proven(version, what):
                payload = decode_payload(archive.get_payload(manifest, ref), limits=limits)
            _check_payload(manifest, ref, payload, what)
        yield from payload.items


def _check_payload(manifest: Manifest, ref: PayloadRef, payload: Payload, what: str) -> None:
    require(
        manifest.attempt.version,
        what,
        digest=(payload.digest, ref.digest),
        run=(payload.run, manifest.run),
        attempt=(payload.attempt, manifest.attempt_of(ref)),
        owner=(payload.owner, ref.owner),
        sequence=(payload.sequence, ref.sequence),
        parent_version=(payload.parent, manifest.parent_version),
        catalogue=(payload.catalogue, manifest.catalogue),
    )


def _apply_anchor(archive: Archive, anchor: Manifest, target: _Target) -> None:
    """Write the anchor and check that it writes every element of every wanted tensor."""
    written = {name: np.zeros(bits.size, np.bool_) for name, bits in target.bits.items()}
    for item in _items(archive, anchor, target.limits, target.keep):
        if _apply(anchor, item, target):
            written[item.name][item.locations] = True
    for name, mask in written.items():
        if missing := mask.size - np.count_nonzero(mask):
            raise IntegrityError(
                f"version {anchor.attempt.version}: the anchor leaves {missing} of {mask.size} elements "
                f"of {name} unwritten"
            )


def _apply(manifest: Manifest, item: Item, target: _Target) -> bool:
    """Apply one item in place; false if its tensor is an alias (equal to its primary) or not wanted."""
    version = manifest.attempt.version
    if item.name in target.aliases:
        return False
    spec = target.specs.get(item.name)
    if spec is None:
        raise IntegrityError(f"version {version}: an item names {item.name}, which the catalogue does not")
    what = f"an item of {item.name}"
    require(version, what, shape=(item.shape, spec.shape), dtype=(item.dtype, spec.dtype))
    if item.encoding is not Encoding.OVERWRITE and manifest.overwrite_only:
        raise IntegrityError(f"version {version}: {what} is {item.encoding} in a manifest of overwrites only")
    bits = target.bits.get(item.name)
    if bits is None:
        return False
    if item.encoding is Encoding.OVERWRITE:
        bits[item.locations] = item.values
    else:
        bits[item.locations] = combined(item.encoding, bits[item.locations], item.values)
    return True


def _prove(archive: Archive, record: CommitRecord, catalogue: Catalogue, tensors: Tensors) -> None:
    """Check every rebuilt tensor, under each of its names, against the record's audit table."""
    what = f"audit table {record.audit}"
    with proven(record.version, what):
        table: AuditTable = from_json(AuditTable, archive.get_object("audit", record.audit))
    specs = catalogue.by_name()
    if difference := sorted(specs.keys() ^ table.keys()):
        raise IntegrityError(
            f"version {record.version}: {what} and the catalogue disagree on {difference[0]}"
        )
    for name, spec in specs.items():
        if spec.name in tensors:
            digest = digest_tensor(catalogue.audit_key, name, tensors[spec.name])
            require(record.version, f"the rebuilt tensor {name}", audit_digest=(digest, table[name]))
