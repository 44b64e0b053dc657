"""Keys of the object store: their grammar, and where each kind of object of a run lives (DESIGN P1).

Every key of a run starts with ``<run>/``, so two runs in one store never meet.
"""

import re

from dcr.errors import ConfigError
from dcr.model import AttemptId, RunId

_SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=+-]{0,199}", re.ASCII)
_ATTEMPT = re.compile(r"(0|[1-9][0-9]*)-(0|[1-9][0-9]*)", re.ASCII)
_MAX_KEY_BYTES = 1024
PAYLOAD = "payload"
CLOSE = "close"
ANCHOR = "anchor"
ANCHORED = "anchored"
FLOOR = "floor"
READER = "reader"
RESERVED = (PAYLOAD, CLOSE, ANCHOR, ANCHORED, FLOOR, READER)
"""First segments, below the run, of what is not kept under its own digest."""


def check_key(key: str) -> str:
    """Return ``key`` if every store can hold it.

    Segments are separated by ``/`` and made of ASCII letters, digits and ``_.=+-``; none is empty,
    starts with a dot or a sign, or exceeds 200 characters. So no key leaves the store's root, and
    names with a leading dot are free for the store's own use.

    Raises:
        ConfigError: it is no such key.
    """
    if len(key) > _MAX_KEY_BYTES or not all(_SEGMENT.fullmatch(part) for part in key.split("/")):
        raise ConfigError(
            f"object key {key[:200]!r} is not usable: write relative ASCII segments of letters, digits "
            "and _.=+- between single slashes, with no leading dot"
        )
    return key


def check_segment(segment: str, field: str) -> str:
    """Return ``segment`` if it is one segment of a key; ``field`` names it in the message.

    Raises:
        ConfigError: it is not.
    """
    if not _SEGMENT.fullmatch(segment):
        raise ConfigError(f"{field} {segment[:200]!r} is not one segment of letters, digits and _.=+-")
    return segment


def check_prefix(prefix: str) -> tuple[str, str]:
    """Split a listing prefix into its complete folder (``""`` or a key) and the start of a last segment.

    Raises:
        ConfigError: the folder is not a key.
    """
    folder, slash, start = prefix.rpartition("/")
    if slash:
        check_key(folder)
    return folder, start


def payload_key(run: RunId, attempt: AttemptId, owner: int, sequence: int) -> str:
    """Key of one payload: ``<run>/payload/<version>-<number>/<owner>/<sequence>``."""
    return f"{run}/{PAYLOAD}/{attempt}/{owner}/{sequence}"


def close_key(run: RunId, attempt: AttemptId, owner: int) -> str:
    """Key of an owner's closed list: ``<run>/close/<version>-<number>/<owner>``."""
    return f"{run}/{CLOSE}/{attempt}/{owner}"


def anchor_key(run: RunId, attempt: AttemptId, owner: int, sequence: int) -> str:
    """Key of one payload of a later anchor: ``<run>/anchor/<version>-<number>/<owner>/<sequence>``."""
    return f"{run}/{ANCHOR}/{attempt}/{owner}/{sequence}"


def anchor_close_key(run: RunId, attempt: AttemptId, owner: int) -> str:
    """Key of an owner's closed list of a later anchor: ``<run>/anchor/<version>-<number>/close/<owner>``."""
    return f"{run}/{ANCHOR}/{attempt}/{CLOSE}/{owner}"


def anchored_key(run: RunId, attempt: AttemptId) -> str:
    """Key under which a complete anchor is found: ``<run>/anchored/<version>-<number>``."""
    return f"{run}/{ANCHORED}/{attempt}"


def floor_key(run: RunId, version: int) -> str:
    """Key that says that versions before ``version`` are not kept: ``<run>/floor/<version>``."""
    return f"{run}/{FLOOR}/{version}"


def reader_key(run: RunId, nonce: str) -> str:
    """Key of a reader's lease: ``<run>/reader/<nonce>``."""
    return f"{run}/{READER}/{nonce}"


def parse_attempt(segment: str) -> AttemptId | None:
    """Read back ``str(attempt)``; None for anything that no attempt is written as."""
    match = _ATTEMPT.fullmatch(segment)
    return AttemptId(version=int(match[1]), number=int(match[2])) if match else None
