"""Claiming a run folder: new or resumed, never two drivers in one."""

import contextlib
import fcntl
import itertools
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from dcr.errors import ConfigError
from dcr_recipes.compose import compose, load, recompose, require_text, resumed, save
from dcr_recipes.config import RunConfig
from dcr_recipes.layout import LATEST, RunFolder
from dcr_recipes.summary import write_atomically

_LOCK_PATIENCE_S = 15.0
"""Processes of a driver that was just killed need a moment to die; they hold the lock until then."""


def choose(words: Sequence[str]) -> tuple[RunFolder, RunConfig]:
    """Decide which folder ``words`` mean and with which configuration; creates nothing.

    Raises:
        ConfigError: the words are wrong, a new run names a folder in use, or a resumed one none.
    """
    again = resumed(words)
    if again is None:
        asked = compose(words)
        root = Path(asked.run_dir) if asked.run_dir else _fresh(asked.recipe.name)
        with _usable("run_dir", root):
            _require_unused(root)
        return RunFolder(root.absolute()), asked
    root = Path(again) if again else LATEST
    folder = RunFolder(root.resolve())
    with _usable("run_dir", root):
        if not folder.config.exists():
            raise ConfigError(f"resume: {root} holds no run; drop resume=true or correct run_dir")
    return folder, recompose(load(folder.config), words)


def _require_unused(root: Path) -> None:
    require_text("run_dir", str(root.absolute()))
    if RunFolder(root).config.exists():
        raise ConfigError(
            f"run_dir: {root} exists; pass resume=true to continue it or choose another run_dir"
        )
    if root.is_symlink() or (root.exists() and (not root.is_dir() or any(root.iterdir()))):
        raise ConfigError(f"run_dir: {root} exists and is no run folder; choose another run_dir")


@contextlib.contextmanager
def _usable(key: str, path: Path) -> Iterator[None]:
    """Turn an operating system's refusal into a ConfigError that names the key."""
    try:
        yield
    except OSError as err:
        raise ConfigError(
            f"{key}: cannot use {path}: {err}; make it writable or choose another folder"
        ) from err


def _fresh(recipe: str) -> Path:
    stem = f"runs/{recipe}-{time.strftime('%Y%m%d-%H%M%S')}"
    names = itertools.chain([stem], (f"{stem}-{i}" for i in itertools.count(2)))
    return next(path for path in map(Path, names) if not path.exists())


@contextlib.contextmanager
def claim(folder: RunFolder, config: RunConfig) -> Iterator[int]:
    """Hold the folder's exclusive lock inside the block; yields its descriptor, to be inherited by children.

    A lock that children share ends only with the last of them, so a new driver can never overlap
    with what is left of a killed one.

    Raises:
        ConfigError: another driver holds the folder, or it cannot be written.
    """
    for key, path in (("transport.path", config.transport.path), ("staging.path", config.staging.path)):
        if path:
            with _usable(key, Path(path)):
                Path(path).mkdir(parents=True, exist_ok=True)
    with _usable("run_dir", folder.root):
        folder.root.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder.lock, os.O_RDWR | os.O_CREAT)
    try:
        with _usable("run_dir", folder.root):
            _lock(descriptor, folder, patience_s=_LOCK_PATIENCE_S if config.resume else 0.0)
            _prepare(folder, config)
        yield descriptor
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: RunFolder, *, patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise ConfigError(
                    f"run_dir: {folder.root} is in use by another run; wait for it or choose another run_dir"
                ) from None
            time.sleep(0.05)
        else:
            return


def _prepare(folder: RunFolder, config: RunConfig) -> None:
    if folder.config.exists() and not config.resume:  # lost a race after choose()
        raise ConfigError(f"run_dir: {folder.root} exists; pass resume=true to continue it")
    for stale in (
        folder.endpoints,
        folder.rendezvous,
        folder.phases,
        folder.exchange,
        folder.served,
    ):  # of processes that are gone
        shutil.rmtree(stale, ignore_errors=True)
    for path in (
        folder.rendezvous,
        folder.endpoints,
        folder.logs,
        folder.store,
        folder.checkpoints,
        folder.dense,
        folder.verify,
        folder.phases,
        folder.exchange,
    ):
        path.mkdir(exist_ok=True)
    if config.resume and not _has_text(folder.run_id):
        raise ConfigError(
            f"run_dir: {folder.run_id} is missing or empty, and without it nothing of the run is found: put "
            "it back from a copy, or choose another run_dir"
        )
    if not folder.run_id.exists():
        write_atomically(folder.run_id, secrets.token_hex(16))
    config.run_dir = str(folder.root)
    save(config, folder.config)
    link_latest(folder)


def _has_text(path: Path) -> bool:
    return path.exists() and bool(path.read_text().strip())


def link_latest(folder: RunFolder) -> None:
    """Point ``runs/latest`` at a folder that lies in ``runs``; other folders are left alone."""
    link = folder.root.parent / "latest"
    if folder.root.parent != Path("runs").resolve():
        return
    staged = link.with_name(f".latest-{os.getpid()}")
    staged.symlink_to(folder.root.name)
    staged.replace(link)
