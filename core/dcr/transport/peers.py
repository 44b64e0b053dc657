"""How the processes of a run find one another: one small file each in a shared folder.

A restarted process publishes its new url and incarnation under its old name; whoever loses a
connection reads the file again.
"""

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dcr.errors import ConfigError, PayloadError, StoreError
from dcr.model import from_json, new_nonce, to_json
from dcr.transport.durable import sync_path, write_durably

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class Peer:
    """Where one process answers. ``incarnation`` changes with every restart."""

    name: str
    url: str
    incarnation: str


class Peers:
    """Register of processes under ``directory``, which is created at the first publish."""

    def __init__(self, directory: Path | str) -> None:
        self._directory = Path(directory)

    def publish(self, name: str, url: str, incarnation: str) -> None:
        """Announce this process durably; a reader sees the old entry or the new one, never a part.

        Raises:
            ConfigError: ``name`` is not letters, digits, ``-`` and ``_``.
            StoreError: the folder cannot be written.
        """
        path = self._path(name)
        temporary = path.with_name(f".{name}.{new_nonce()}.tmp")  # names never start with a dot
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            write_durably(temporary, to_json(Peer(name, url, incarnation)))
            temporary.replace(path)
            sync_path(self._directory)
        except OSError as err:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise StoreError(f"cannot announce {name!r} in {self._directory}: {err.strerror}") from err

    def find(self, name: str) -> Peer | None:
        """Return the latest announcement of ``name``, or None.

        Raises:
            PayloadError: the file does not hold one.
            StoreError: the folder cannot be read.
        """
        path = self._path(name)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as err:
            raise StoreError(f"cannot read {path}: {err.strerror}") from err
        peer = from_json(Peer, data)
        if peer.name != name:
            raise PayloadError(f"{path} announces {peer.name!r}")
        return peer

    def names(self) -> list[str]:
        """Every announced name, sorted."""
        names = (path.name.removesuffix(_SUFFIX) for path in self._directory.glob(f"*{_SUFFIX}"))
        return sorted(name for name in names if _NAME.fullmatch(name))

    def withdraw(self, name: str) -> None:
        """Remove the announcement; a missing one is no error."""
        self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise ConfigError(f"peer name {name!r} must be letters, digits, '-' and '_'")
        return self._directory / f"{name}{_SUFFIX}"
