"""The small file beside the trackers that says which version they hold (DESIGN P9).

Replaced atomically. A pending version is announced here before the first tracker byte of it is
written, so that after a crash every tracker can be proven to hold one version or the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dcr.errors import PayloadError
from dcr.indexmap import IndexMap
from dcr.model import AuditDigest, digest_hex, from_json, to_json
from dcr.source.task import AffineTask
from dcr.source.tracker_file import disk_errors
from dcr.transport.durable import replace_durably, sync_path


@dataclass(frozen=True, slots=True)
class Held:
    """A version and the digests of every task at it, by task key."""

    version: int
    digests: dict[str, tuple[AuditDigest, ...]]


@dataclass(frozen=True, slots=True)
class TrackerIndex:
    """``layout`` digests the tasks; ``pending`` is what a fold-in under way will hold."""

    layout: str
    held: Held
    pending: Held | None = None

    def expected(self, version: int) -> dict[str, tuple[AuditDigest, ...]]:
        """Digests of ``version``; empty if this index does not know them."""
        for held in (self.held, self.pending):
            if held is not None and held.version == version:
                return held.digests
        return {}


def layout_digest(tasks: Sequence[AffineTask], audit_key: str) -> str:
    """Names the tasks in file order and the digest key: another layout's trackers prove nothing."""
    rows = [
        [task.key, task.name, task.dtype, task.num_elements, list(task.aliases), *_places(task.map)]
        for task in tasks
    ]
    return digest_hex(to_json([audit_key, rows]))


def _places(where: IndexMap) -> tuple[int, list[list[object]]]:
    """Which canonical elements a shard holds, and in which order: equal digests prove nothing of others."""
    boxes = [
        [list(box.shape), box.src_offset, list(box.src_strides), box.dst_offset, list(box.dst_strides)]
        for box in where.boxes
    ]
    return where.dst_size, boxes


def write_index(path: Path, index: TrackerIndex) -> None:
    """Replace the index durably; the old one stays whole until then.

    Raises:
        StoreError: the disk is full; the old index is still there.
    """
    body = to_json(index)
    with disk_errors(path, "write"):
        replace_durably(path, digest_hex(body).encode() + b"\n" + body)


def read_index(path: Path, layout: str) -> TrackerIndex | None:
    """Return the index, or None if it is missing, damaged or of another layout.

    Raises:
        StoreError: the file is there and cannot be read.
    """
    index = read_any_index(path)
    return index if index is not None and index.layout == layout else None


def read_any_index(path: Path) -> TrackerIndex | None:
    """As ``read_index``, of whatever layout."""
    if not path.is_file():
        return None
    with disk_errors(path, "read"):
        digest, _, body = path.read_bytes().partition(b"\n")
    if digest_hex(body).encode() != digest:
        return None
    try:
        return from_json(TrackerIndex, body)
    except PayloadError:  # whole, but written by another release: nothing can be proven with it
        return None


def remove_index(path: Path) -> None:
    """Forget what the trackers hold, durably; no index is no error.

    Raises:
        StoreError: the directory cannot be written.
    """
    if path.is_file():
        with disk_errors(path, "remove"):
            path.unlink()
            sync_path(path.parent)
