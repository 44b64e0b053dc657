"""GRPO on two FSDP2 ranks: the same seed gives the same bits, and every step changes some."""

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.processes


def test_same_seed_same_bits_and_a_killed_run_continues_as_if_nothing_happened(tmp_path: Path) -> None:
    whole = _run(tmp_path / "whole", steps=4)
    lost = _run(tmp_path / "parts", steps=3)
    assert (tmp_path / "parts" / "committed").read_text() == "2"
    parts = _run(tmp_path / "parts", steps=4)
    assert whole["weights"] == parts["weights"]
    assert whole["tokens"] == parts["tokens"]
    assert whole["history"] == parts["history"]
    assert lost["changed"] == whole["changed"][:3]
    assert parts["changed"] == whole["changed"][2:]
    assert all(count > 0 for count in whole["changed"])
    assert all(0 <= line["gen_kl_error"] < 0.01 for line in whole["history"])
    kept = sorted(path.name for path in (tmp_path / "whole" / "checkpoints").iterdir())
    assert kept == ["version-00000003-step-00000003", "version-00000004-step-00000004"]


def _run(folder: Path, *, steps: int, lr: float = 1e-6) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-W", "error", "-m", "tests.integration.grpo_ranks"]
    ranks = [
        subprocess.Popen([*command, str(rank), str(port), str(folder), str(steps), str(lr)])
        for rank in range(2)
    ]
    assert [rank.wait(120) for rank in ranks] == [0, 0]
    answers: list[dict[str, Any]] = [
        json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)
    ]
    assert answers[0] == answers[1]
    return answers[0]
