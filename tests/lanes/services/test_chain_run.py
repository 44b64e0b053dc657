"""A whole run with anchors whose older versions are pruned: proofs, exports of what is kept, resuming."""

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.lanes.services.test_s3_run import bits, dcr, done, exported
from transformers import AutoModelForCausalLM

from dcr.transport.chain import history
from dcr_recipes.commands.opened import open_run
from dcr_recipes.launch.object_server import own_server
from dcr_recipes.layout import RunFolder

pytestmark = pytest.mark.processes
STEPS, EVERY, KEEP = 10, 3, 2
WORDS = ("model=tiny", f"chain.anchor_every={EVERY}", f"chain.keep_versions={KEEP}")


@pytest.fixture(scope="module", params=["directory", "s3"])
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Beside the run's folder, ``dense`` has what the trainer exported at each step, which a run removes."""
    root = tmp_path_factory.mktemp("runs")
    folder, kept = root / "run", root / "dense"
    kept.mkdir()
    running = dcr("grpo", *WORDS, f"transport={request.param}", f"steps={STEPS}", f"run_dir={folder}")
    while running.poll() is None:
        for path in folder.glob("dense/version-*.safetensors"):
            if not (kept / path.name).exists():
                os.link(path, kept / path.name)
        time.sleep(0.02)
    done(running)
    return folder


def served(folder: Path) -> "contextlib.AbstractContextManager[None]":
    """Have the run's own server, if it has one, run inside the block and no longer."""
    files = RunFolder(folder)
    return own_server(files) if files.s3.is_dir() else contextlib.nullcontext()


def versions(folder: Path) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = json.loads(done(dcr("log", str(folder), "--json")))["versions"]
    return told


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Summary of the same run without any of it."""
    folder = tmp_path_factory.mktemp("plain") / "run"
    done(dcr("grpo", "model=tiny", f"steps={STEPS}", f"run_dir={folder}"))
    told: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return told


def check_older_versions_go_and_everything_else_is_as_without(finished: Path, plain: dict[str, Any]) -> None:
    summary = json.loads((finished / "summary.json").read_text())
    assert (summary["final_version"], summary["differing_bits"]) == (STEPS, 0)
    assert summary["uploaded_bytes"] == summary["payload_bytes"]  # anchors are no part of a refit
    found = versions(finished)
    assert [row["version"] for row in found] == list(range(9, STEPS + 1))
    assert [bool(row["anchor_bytes"]) for row in found] == [True, False]
    done(dcr("verify", str(finished)))
    with served(finished):
        opened = open_run(finished)
        committed = {str(m.attempt) for m in history(opened.site.archive, opened.state().record)[1:]}
        run = opened.site.run
        assert {key.split("/")[2] for key in opened.site.store.list(f"{run}/payload/")} == committed
        assert opened.site.store.list(f"{run}/reader/") == []
    for name in ("weights_digest", "token_digest", "rewards", "changed_fraction"):
        assert summary[name] == plain[name], name


def check_every_kept_version_is_the_dense_export_of_its_step(finished: Path, tmp_path: Path) -> None:
    for row in versions(finished):
        version = row["version"]
        found = exported(finished, version, tmp_path / str(version))
        dense = load_file(finished.parent / "dense" / f"version-{version:08d}.safetensors")
        assert found.keys() == dense.keys()
        assert all(torch.equal(bits(found[name]), bits(dense[name])) for name in found)
        model = AutoModelForCausalLM.from_pretrained(tmp_path / str(version), local_files_only=True)
        loaded = dict(model.named_parameters())
        assert all(torch.equal(bits(loaded[name].data), bits(dense[name])) for name in dense)
    refused = dcr("export", str(finished), "--version", "8", "--out", str(tmp_path / "8"))
    assert "version 8 is not kept; kept are 9 to 10" in refused.communicate(timeout=120)[0]
    assert refused.returncode == 2


def check_a_trainer_that_lost_its_trackers_goes_on_from_the_anchor(finished: Path) -> None:
    """It continues the run. Version 0 is long gone, and so are the files of both ranks."""
    lost = list((finished / "trackers").rglob("trackers.*"))
    assert len(lost) == 4
    for path in lost:
        path.unlink()
    done(dcr("grpo", f"steps={STEPS + 3}", f"run_dir={finished}", "resume=true"))
    summary = json.loads((finished / "summary.json").read_text())
    assert (summary["final_version"], summary["differing_bits"]) == (STEPS + 3, 0)
    assert [row["version"] for row in versions(finished)] == [12, 13]


def test_a_pruned_run(finished: Path, plain: dict[str, Any], tmp_path: Path) -> None:
    """One test, whatever the order of tests: its last part goes on with the run."""
    check_older_versions_go_and_everything_else_is_as_without(finished, plain)
    check_every_kept_version_is_the_dense_export_of_its_step(finished, tmp_path)
    check_a_trainer_that_lost_its_trackers_goes_on_from_the_anchor(finished)
