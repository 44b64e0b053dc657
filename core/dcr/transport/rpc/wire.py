"""What server and client agree upon: how large a message is, and how errors travel."""

from dataclasses import dataclass

import dcr.errors
from dcr.errors import (
    ConfigError,
    Conflict,
    MissingObject,
    PayloadError,
    RefitError,
    Unreachable,
)
from dcr.model import from_json, to_json

MAX_BODY_BYTES = 256 << 20
"""Largest message in either direction; tensors never travel this way."""

_STATUS: tuple[tuple[type[RefitError], int], ...] = (
    (ConfigError, 400),
    (PayloadError, 400),
    (MissingObject, 404),
    (Conflict, 409),
    (Unreachable, 504),
)
_ERRORS: dict[str, type[RefitError]] = {
    name: kind
    for name, kind in vars(dcr.errors).items()
    if isinstance(kind, type) and issubclass(kind, RefitError)
}


@dataclass(frozen=True, slots=True)
class _Error:
    type: str
    message: str


@dataclass(frozen=True, slots=True)
class _ErrorAnswer:
    error: _Error


def refusal(err: RefitError, *, status: int | None = None) -> tuple[int, bytes]:
    """Status and body; errors travel as their nearest class of ``dcr.errors``: a caller may know no other."""
    kind = next(kind.__name__ for kind in type(err).__mro__ if _ERRORS.get(kind.__name__) is kind)
    if status is None:
        status = next((number for known, number in _STATUS if isinstance(err, known)), 500)
    return status, to_json(_ErrorAnswer(_Error(kind, str(err))))


def error_of(body: bytes, where: str) -> RefitError:
    """The error that travelled in ``body``; a PayloadError, which says ``where``, if there is none in it."""
    try:
        error = from_json(_ErrorAnswer, body).error
    except PayloadError as err:
        return PayloadError(f"{where} and no error of ours: {err}")
    kind = _ERRORS.get(error.type)
    if kind is None:
        return PayloadError(f"{where} and the unknown error {error.type!r}: {error.message}")
    return kind(error.message)
