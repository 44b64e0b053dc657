"""Bytes of payloads that reached the object store and left it, counted where it is asked, by process."""

import contextlib
import json
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dcr.observe import Event
from dcr.transport.keys import PAYLOAD
from dcr_recipes.trace.stages import FLUSHED

UPLOADED, DOWNLOADED = "uploaded_bytes", "downloaded_bytes"
_COUNTED = {"store.put": UPLOADED, "store.get": DOWNLOADED}
_ROLES = {UPLOADED: "owner-", DOWNLOADED: "runtime-"}
"""Who moves payloads; others read them too, but only to tell people about them."""


class TrafficCounter:
    """A listener that adds up payload bytes of its process and writes them to ``path``. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._bytes: Counter[str] = Counter()

    def __call__(self, event: Event) -> None:
        """Count ``event``, or tell when it ends this process's part of a transition."""
        counted = _COUNTED.get(event.name)
        if counted is not None:
            _, _, rest = str(event.fields["key"]).partition("/")
            if rest.partition("/")[0] == PAYLOAD:
                with self._lock:
                    self._bytes[counted] += int(str(event.fields["num_bytes"]))
        elif event.name.removesuffix(".after") in FLUSHED:
            self._tell()

    def _tell(self) -> None:
        staged = self._path.with_suffix(".tmp")
        with self._lock, contextlib.suppress(OSError):  # a full disk ends the count, not the run
            staged.write_text(json.dumps(self._bytes))
            staged.replace(self._path)


@dataclass(slots=True)
class TrafficMeter:
    """Reads what all processes have told in ``folder``; what came before it was made does not count."""

    folder: Path
    _seen: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Begin with what is there."""
        self.take()

    def take(self) -> dict[str, int]:
        """Bytes since it was last asked, by owners up and by receivers down; call it between transitions."""
        now = _total(self.folder)
        grown = {name: now[name] - self._seen.get(name, 0) for name in (UPLOADED, DOWNLOADED)}
        self._seen = now
        return grown


def _total(folder: Path) -> Counter[str]:
    """Sums over every life of every process."""
    total: Counter[str] = Counter()
    for path in folder.glob("*.json"):
        with contextlib.suppress(OSError, ValueError):
            told = json.loads(path.read_text())
            total.update(
                {name: told.get(name, 0) for name, role in _ROLES.items() if path.name.startswith(role)}
            )
    return total
