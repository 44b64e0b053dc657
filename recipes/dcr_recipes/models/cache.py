"""Models that are made once and kept in the user's cache folder, proven by digest at every start.

A model appears under its name in one step, complete and durable; a lock keeps a second process from
making it at the same time. What a crash leaves behind is a ``.part`` folder, cleared by the next one.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from dcr.errors import IntegrityError
from dcr.transport.durable import sync_path

CACHE_FOLDER = "DCR_CACHE"
WEIGHTS = "model.safetensors"

Make: TypeAlias = Callable[[Path], None]
Tell: TypeAlias = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class CachedModel:
    """``name`` of its folder, the files it must have, and the SHA-256 of its weights, hexadecimal."""

    name: str
    sha256: str
    files: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """Where it is, or will be."""
        return models_folder() / self.name


def models_folder() -> Path:
    """``$DCR_CACHE/models``; by default ``dcr/models`` in the user's cache folder. Creates nothing."""
    if chosen := os.environ.get(CACHE_FOLDER):
        return Path(chosen).absolute() / "models"
    user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(user).absolute() / "dcr" / "models"


def ensure(model: CachedModel, make: Make, tell: Tell) -> Path:
    """Folder of ``model``, made by ``make`` (called with an empty folder) unless it is there and right.

    Raises:
        IntegrityError: what ``make`` made has other weights than the pinned ones.
    """
    models_folder().mkdir(parents=True, exist_ok=True)
    with _locked(model.folder.with_suffix(".lock"), tell):
        fault = _fault(model, model.folder)
        if fault is None:
            return model.folder
        if model.folder.exists():
            tell(f"{model.folder}: {fault}; making it again")
        _replace(model, make)
    return model.folder


def _replace(model: CachedModel, make: Make) -> None:
    part = model.folder.with_suffix(".part")
    _remove(part)
    part.mkdir()
    make(part)
    if fault := _fault(model, part):
        raise IntegrityError(
            f"{part}: {fault}. The installed libraries make another model than the pinned one: install the"
            " versions in requirements/core.txt and requirements/model.txt, or give the path of a checkpoint"
        )
    for path in part.iterdir():
        sync_path(path)
    sync_path(part)
    _remove(model.folder)
    part.rename(model.folder)
    sync_path(model.folder.parent)


def _fault(model: CachedModel, folder: Path) -> str | None:
    """What is wrong with ``folder``; None if it is the model."""
    for name in model.files:
        if not (folder / name).is_file():
            return f"has no {name}"
    with (folder / WEIGHTS).open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    return None if found == model.sha256 else f"{WEIGHTS} has SHA-256 {found}, expected {model.sha256}"


@contextlib.contextmanager
def _locked(path: Path, tell: Tell) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell("another process is preparing the model; waiting for it")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)  # which also unlocks; the file stays, so that all lock the same one


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
