"""Runs of the tiny recipe whose processes are killed, and what they leave behind, for ``test_kills``."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dcr.codec import Item, Limits, decode_payload
from dcr.model import Catalogue, CommitRecord, Manifest, from_json
from dcr.transport.archive import StoreArchive
from dcr.transport.chain import history
from dcr_recipes.compose import load
from dcr_recipes.faults import parse_kill
from dcr_recipes.launch.starting import SWITCH
from dcr_recipes.layout import RunFolder
from dcr_recipes.processes.serving import control_of, site_of
from dcr_recipes.summary import MetricsLog

Point = dict[str, Any]
"""One line of a process's journal: ``point``, ``incarnation`` and the point's own fields."""


def start(folder: Path, *words: str, warm: bool = True) -> "subprocess.Popen[str]":
    """Begin a run in ``folder``; its output can be read from the returned driver.

    ``warm``: whether its processes are forked from a warm one, or started from nothing.
    """
    argv = [sys.executable, "-m", "dcr_recipes.cli", "grpo", "model=tiny", f"run_dir={folder}", *words]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            env=os.environ | {SWITCH: str(int(warm))})  # fmt: skip


def processes_of(folder: Path) -> list[int]:
    """Ids of the processes that work in ``folder`` now; one that is dead but not yet reaped is none."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal() and
            _works_in(entry, str(folder))]  # fmt: skip


def _works_in(entry: Path, folder: str) -> bool:
    with contextlib.suppress(OSError):  # it ended meanwhile
        words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        return folder in words or f"run_dir={folder}" in words  # empty for a zombie
    return False


@dataclass(frozen=True)
class Finished:
    """A run that has ended with success. ``kills`` are the entries that it was given."""

    folder: RunFolder
    kills: tuple[str, ...]
    shown: str

    @property
    def summary(self) -> dict[str, Any]:
        """``summary.json``."""
        read: dict[str, Any] = json.loads(self.folder.summary.read_text())
        return read

    @property
    def rows(self) -> list[dict[str, Any]]:
        """``metrics.jsonl``."""
        return MetricsLog(self.folder.metrics).rows()

    @property
    def outcome(self) -> tuple[object, ...]:
        """What a kill may not change."""
        names = ("num_steps", "rewards", "token_digest", "weights_digest", "differing_bits")
        return tuple(self.summary[name] for name in names)

    @property
    def unfired(self) -> set[str]:
        """Kills that never happened."""
        return {entry for entry in self.kills if not (self.folder.faults / parse_kill(entry).mark).exists()}

    def journal(self, process: str) -> list[Point]:
        """Points that the process passed over all its incarnations, in order."""
        lines = (self.folder.faults / f"{process}.points").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def record(self) -> CommitRecord:
        """What is committed."""
        plane = control_of(self.folder, load(self.folder.config)).plane()
        return plane.read(self.folder.run_id.read_text()).record

    def manifests(self) -> list[Manifest]:
        """Committed manifests, oldest first, the anchor left out."""
        return history(self._archive, self.record())[1:]

    def items(self, manifest: Manifest) -> Iterator[Item]:
        """Every item that led to the manifest's version."""
        digest = manifest.catalogue
        limits = Limits.of_catalogue(from_json(Catalogue, self._archive.get_object("catalogue", digest)))
        for ref in manifest.payloads:
            yield from decode_payload(self._archive.get_payload(manifest, ref), limits=limits).items

    @property
    def _archive(self) -> StoreArchive:
        return site_of(self.folder, load(self.folder.config)).archive


def finish(driver: "subprocess.Popen[str]", folder: Path, kills: tuple[str, ...] = ()) -> Finished:
    """Wait for a run to end with success."""
    shown, _ = driver.communicate(timeout=400)
    assert driver.returncode == 0, shown
    return Finished(RunFolder(folder), kills, shown)


def run(folder: Path, *words: str, kills: tuple[str, ...] = (), warm: bool = True) -> Finished:
    """A whole run, with the processes of ``kills`` killed in it; ``warm``: see ``start``."""
    entries = f"faults.kill=[{','.join(kills)}]"
    driver = start(folder, entries, f"faults.max_restarts={len(kills)}", *words, warm=warm)
    try:
        return finish(driver, folder, kills)
    finally:
        driver.kill()
