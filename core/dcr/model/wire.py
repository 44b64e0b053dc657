"""One canonical JSON form for every control message, manifest and record.

Payloads are not JSON: ``dcr.codec`` is the only parser of tensor bytes.
"""

import hashlib
import json
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from dcr.errors import PayloadError

T = TypeVar("T")
_adapters: dict[Any, TypeAdapter[Any]] = {}


def _adapter(kind: Any) -> TypeAdapter[Any]:
    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]


def to_json(value: object) -> bytes:
    """Serialize a model dataclass canonically: sorted keys, no blanks, so equal values give equal bytes."""
    plain = _adapter(type(value)).dump_python(value, mode="json")
    return json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()


def from_json(kind: type[T], data: bytes | str) -> T:
    """Parse and type-check untrusted JSON into ``kind``.

    Raises:
        PayloadError: the text is not JSON, a field is missing, unknown to the type, or mistyped.
    """
    try:
        value: T = _adapter(kind).validate_json(data, strict=True, extra="forbid")
    except ValidationError as err:
        first = err.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "document"
        raise PayloadError(f"not a {getattr(kind, '__name__', kind)}: {where}: {first['msg']}") from err
    return value


def digest_hex(data: bytes) -> str:
    """BLAKE2b-128 of ``data`` as 32 hexadecimal digits; names every immutable object."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()
