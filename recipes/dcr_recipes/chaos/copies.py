"""Dense files of every version, kept for the replay after the trainer has removed its own."""

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path

from dcr_recipes.layout import RunFolder
from dcr_recipes.recorder import dense_path


@dataclass(slots=True)
class DenseCopies:
    """Links in ``folder`` to what the trainer exports to ``run``'s dense folder; costs no copying.

    A version's file is written before its commit, and once more by a trainer that restarts: the last one is
    kept. Both hold the same weights, unless a lost candidate was made anew with others.
    """

    run: RunFolder
    folder: Path
    _seen: dict[str, int] = field(default_factory=dict)

    def look(self) -> None:
        """Link what is new; to be called more often than the trainer makes versions."""
        self.folder.mkdir(exist_ok=True)
        for path in self.run.dense.glob("version-*.safetensors"):
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile: it was linked before
                inode = path.stat().st_ino
                if self._seen.get(path.name) != inode:
                    self._link(path)
                    self._seen[path.name] = inode

    def path(self, version: int) -> Path | None:
        """The file of ``version``, if there was time to link it."""
        path = self.folder / dense_path(self.run, version).name
        return path if path.exists() else None

    def remove(self) -> None:
        """Give the disk space back."""
        for path in self.folder.glob("*"):
            path.unlink()
        self.folder.rmdir()

    def _link(self, path: Path) -> None:
        staged = self.folder / f".{path.name}.tmp"
        staged.unlink(missing_ok=True)
        os.link(path, staged)
        staged.replace(self.folder / path.name)
