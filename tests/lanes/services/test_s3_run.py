"""Whole runs whose payloads travel through a real S3 server: proof, bytes, a killed server, exports."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from dcr.errors import ConfigError
from dcr.testing.s3_server import S3Server
from dcr.transport.chain import history
from dcr_recipes.commands.opened import open_run
from dcr_recipes.compose import compose
from dcr_recipes.launch.object_server import own_server
from dcr_recipes.layout import RunFolder

pytestmark = pytest.mark.processes
STEPS = 4
WORDS = ("model=tiny", f"steps={STEPS}", "transport=s3")


def dcr(*words: str) -> "subprocess.Popen[str]":
    argv = [sys.executable, "-m", "dcr_recipes.cli", *words]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)


def done(process: "subprocess.Popen[str]") -> str:
    said = process.communicate(timeout=600)[0]
    assert process.returncode == 0, said
    return said


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def server_pid(folder: Path) -> int:
    """The process whose working directory is the server's folder."""
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and (entry / "cwd").readlink() == folder / "s3":
                return int(entry.name)
        except OSError:
            continue
    raise AssertionError("no server")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "s3"
    done(dcr("grpo", *WORDS, f"run_dir={folder}"))
    return folder


def test_a_run_starts_its_own_server_and_gives_the_same_proof(finished: Path, tmp_path: Path) -> None:
    done(dcr("grpo", *WORDS[:2], f"run_dir={tmp_path / 'directory'}"))
    mine, other = (json.loads((at / "summary.json").read_text()) for at in (finished, tmp_path / "directory"))
    assert mine["differing_bits"] == other["differing_bits"] == 0
    for name in ("weights_digest", "token_digest", "rewards", "changed_fraction"):
        assert mine[name] == other[name], name  # payloads name their run, so their sizes may differ a little


def test_a_payload_is_uploaded_once_and_downloaded_by_every_node(finished: Path) -> None:
    summary = json.loads((finished / "summary.json").read_text())
    assert len(rows(finished)) == STEPS
    for row in rows(finished):
        assert row["refit/uploaded_bytes"] == row["refit/payload_bytes"] > 0
        assert row["refit/downloaded_bytes"] == 2 * row["refit/payload_bytes"]
    assert summary["uploaded_bytes"] == summary["payload_bytes"]
    assert summary["downloaded_bytes"] == 2 * summary["payload_bytes"]


def test_commands_start_the_server_of_a_finished_run(finished: Path, tmp_path: Path) -> None:
    assert "proven" in done(dcr("verify", str(finished)))
    told = json.loads(done(dcr("log", str(finished), "--json")))
    assert [row["version"] for row in told["versions"]] == list(range(STEPS + 1))
    for version in (STEPS - 1, STEPS):  # those whose dense candidates a run keeps
        found = exported(finished, version, tmp_path / str(version))
        dense = load_file(finished / "dense" / f"version-{version:08d}.safetensors")
        assert found.keys() == dense.keys()
        assert all(torch.equal(bits(found[name]), bits(dense[name])) for name in found)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / str(STEPS), local_files_only=True)
    assert model.dtype == torch.bfloat16
    loaded = dict(model.named_parameters())
    latest = load_file(finished / "dense" / f"version-{STEPS:08d}.safetensors")
    assert all(torch.equal(bits(loaded[name].data), bits(latest[name])) for name in latest)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int16)


def exported(folder: Path, version: int, out: Path) -> dict[str, torch.Tensor]:
    done(dcr("export", str(folder), "--version", str(version), "--out", str(out)))
    return load_file(out / "model.safetensors")


def test_failed_attempts_leave_nothing_in_the_bucket(finished: Path, tmp_path: Path) -> None:
    """A runtime dies in the midst of every second refit: its attempts fail, their payloads are collected."""
    folder = tmp_path / "kills"
    done(dcr("grpo", *WORDS, f"run_dir={folder}", "faults.kill_runtime_every=2"))
    told = json.loads((folder / "summary.json").read_text())
    assert told["weights_digest"] == json.loads((finished / "summary.json").read_text())["weights_digest"]
    opened = open_run(folder)
    committed = {str(manifest.attempt) for manifest in history(opened.site.archive, opened.state().record)}
    run = opened.site.run
    for kind in ("payload", "close"):
        assert {key.split("/")[2] for key in opened.site.store.list(f"{run}/{kind}/")} == committed
    assert any(row["refit/attempts"] > 1 for row in rows(folder)), "no attempt failed"


def test_a_server_killed_in_the_midst_of_a_run_comes_back_and_nothing_is_lost(
    finished: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "killed"
    running = dcr("grpo", *WORDS, f"run_dir={folder}")
    for wanted in (1, 3):
        end = time.monotonic() + 300
        while not (folder / "metrics.jsonl").exists() or len(rows(folder)) < wanted:
            assert running.poll() is None, running.communicate()[0]
            assert time.monotonic() < end
            time.sleep(0.05)
        os.kill(server_pid(folder), signal.SIGKILL)
    done(running)
    mine, other = (json.loads((at / "summary.json").read_text()) for at in (folder, finished))
    assert mine["differing_bits"] == 0
    for name in ("weights_digest", "token_digest", "rewards"):
        assert mine[name] == other[name], name


def test_no_second_server_is_started_on_the_same_data(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with own_server(folder), pytest.raises(ConfigError, match=r"runs on .* already"):
        S3Server(folder.s3)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["transport=s3", "transport.endpoint=http://h:1"], r"transport\.bucket: name a bucket"),
        (["transport=s3", "transport.bucket=b", "transport.endpoint=h:1"], r"transport\.endpoint: .*http://"),
        (["transport=s3", "transport.path=x"], r"transport\.path: transport=s3 has a bucket"),
        (["transport.bucket=b"], r"transport\.bucket: transport=directory has none"),
    ],
)
def test_settings_that_do_not_go_together_are_named(words: list[str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        compose(["model=tiny", *words])


def test_the_record_may_lie_in_the_bucket_too(finished: Path, tmp_path: Path) -> None:
    """Nothing but the bucket holds the run's state; two coordinators, of which one stands by."""
    folder = tmp_path / "commit"
    done(dcr("grpo", *WORDS, f"run_dir={folder}", "commit=s3", "commit.coordinators=2"))
    mine, other = (json.loads((at / "summary.json").read_text()) for at in (folder, finished))
    assert mine["weights_digest"] == other["weights_digest"]
    assert mine["differing_bits"] == 0
    assert not (folder / "control.sqlite").exists()
    told = json.loads(done(dcr("log", str(folder), "--json")))
    assert len(told["versions"]) == STEPS + 1


def test_a_record_in_a_bucket_needs_one() -> None:
    with pytest.raises(ConfigError, match=r"commit\.name: .*use transport=s3"):
        compose(["model=tiny", "commit=s3"])
