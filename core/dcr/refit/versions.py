"""Older versions of a run: the record that each had, from the chain behind the present one (DESIGN B5)."""

from dataclasses import replace

from dcr.audit import table_digest
from dcr.errors import ConfigError, IntegrityError
from dcr.model import Catalogue, CommitRecord, Manifest
from dcr.transport.base import Archive
from dcr.transport.chain import history
from dcr.transport.tables import joined_audit


def kept_versions(archive: Archive, record: CommitRecord) -> list[Manifest]:
    """Manifests of every version that can be rebuilt, oldest first; raises as ``history``."""
    return history(archive, record)


def record_at(archive: Archive, record: CommitRecord, catalogue: Catalogue, version: int) -> CommitRecord:
    """What ``replay`` needs to rebuild and prove ``version``; step, epoch, writer are the present record's.

    Raises:
        ConfigError: ``version`` is not kept.
        IntegrityError: the chain is broken, or the version's owners do not prove it whole.
        StoreError: the store failed; nothing is lost, try again.
    """
    if version == record.version:
        return record
    manifests = kept_versions(archive, record)
    oldest = manifests[0].attempt.version
    if not oldest <= version <= record.version:
        raise ConfigError(f"version {version} is not kept; kept are {oldest} to {record.version}")
    wanted, child = manifests[version - oldest], manifests[version - oldest + 1]
    if child.parent is None:
        raise IntegrityError(f"version {child.attempt.version} names no parent")
    return replace(
        record,
        version=version,
        attempt=wanted.attempt,
        parent=wanted.parent[0] if wanted.parent else None,
        manifest=child.parent[1],
        audit=table_digest(joined_audit(catalogue, wanted.owners)),
    )
