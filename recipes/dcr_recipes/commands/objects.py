"""The JSON objects of a run in words: which kind some bytes are, and their main fields."""

from collections.abc import Callable
from typing import Any

from dcr.errors import PayloadError
from dcr.model import (
    AuditTable,
    Catalogue,
    CommitRecord,
    ControlState,
    Manifest,
    OwnerClose,
    digest_hex,
    from_json,
)

Fields = dict[str, Any]


def object_report(data: bytes) -> Fields:
    """``kind``, ``digest`` and the main fields of a manifest, record, audit table, catalogue or such.

    Raises:
        PayloadError: it is none of them.
    """
    for kind, name, fields in _KINDS:
        try:
            value = from_json(kind, data)
        except PayloadError:
            continue
        return {"kind": name, "digest": digest_hex(data), **fields(value)}
    known = ", ".join(name for _, name, _ in _KINDS)
    raise PayloadError(f"JSON, but none of these: {known}")


def _manifest(value: Manifest) -> Fields:
    return {
        "run": value.run,
        "attempt": str(value.attempt),
        "version": value.attempt.version,
        "parent_version": value.parent_version,
        "parent_manifest": value.parent[1] if value.parent else None,
        "catalogue": value.catalogue,
        "overwrite_only": value.overwrite_only,
        "num_owners": len(value.owners),
        "num_payloads": len(value.payloads),
        "payload_bytes": sum(ref.num_bytes for ref in value.payloads),
        "num_changed": sum(close.num_changed for close in value.owners),
        "num_elements": sum(close.num_elements for close in value.owners),
        "payloads": _payloads(value.payloads),
    }


def _close(value: OwnerClose) -> Fields:
    return {
        "attempt": str(value.attempt),
        "owner": value.owner,
        "num_payloads": len(value.payloads),
        "payload_bytes": sum(ref.num_bytes for ref in value.payloads),
        "num_changed": value.num_changed,
        "num_elements": value.num_elements,
        "candidate": value.candidate,
        "payloads": _payloads(value.payloads),
    }


def _payloads(refs: tuple[Any, ...]) -> list[str]:
    return [f"{ref.owner}/{ref.sequence} {ref.digest} {ref.num_bytes} bytes" for ref in refs]


def _record(value: CommitRecord) -> Fields:
    return {
        "run": value.run,
        "version": value.version,
        "attempt": str(value.attempt),
        "step": value.step,
        "epoch": value.epoch,
        "writer": value.writer,
        "parent": None if value.parent is None else str(value.parent),
        "catalogue": value.catalogue,
        "manifest": value.manifest,
        "audit": value.audit,
        "wire_format": value.wire_format,
    }


def _state(value: ControlState) -> Fields:
    active = value.active
    return {
        "run": value.run,
        "revision": value.revision,
        "epoch": value.epoch,
        "last_attempt_number": value.number,
        "active_attempt": None if active is None else str(active.attempt),
        "opened": None if active is None else active.opened,
        "record": _record(value.record),
    }


def _catalogue(value: Catalogue) -> Fields:
    return {
        "run": value.run,
        "audit_key": value.audit_key,
        "num_tensors": len(value.tensors),
        "num_aliases": sum(len(spec.aliases) for spec in value.tensors),
        "num_elements": sum(spec.num_elements for spec in value.tensors),
        "num_bytes": value.num_bytes,
        "tensors": [_spec(spec) for spec in value.tensors],
    }


def _spec(spec: Any) -> str:
    tied = f", tied to {', '.join(spec.aliases)}" if spec.aliases else ""
    return f"{spec.name} {spec.dtype} {list(spec.shape)}{tied}"


def _audit(value: AuditTable) -> Fields:
    return {
        "num_tensors": len(value),
        "num_elements": sum(digest.count for digest in value.values()),
        "tensors": {name: list(digest) for name, digest in value.items()},
    }


_KINDS: tuple[tuple[Any, str, Callable[[Any], Fields]], ...] = (
    (Manifest, "manifest", _manifest),
    (CommitRecord, "commit record", _record),
    (ControlState, "control state", _state),
    (Catalogue, "catalogue", _catalogue),
    (OwnerClose, "closed list of an owner", _close),
    (AuditTable, "audit table", _audit),
)
