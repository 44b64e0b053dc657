"""``dcr log``, ``verify`` and ``export`` of a run whose chain has an anchor and was pruned."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file
from tests.unit.run_folders import StoredRun, flip, stored_run

from dcr.model import stored_bits
from dcr.transport.retention import Pruner
from dcr_recipes.cli import main


@pytest.fixture
def made(tmp_path: Path) -> StoredRun:
    """Versions 0 to 5, of which 0 to 2 are pruned; version 3 has an anchor."""
    run = stored_run(tmp_path / "run", num_versions=6)
    run.history.anchor(3)
    one = Pruner(run.history.store, run.history.archive, run.history.catalogue)
    assert one.prune(run.history.records[-1], 3)
    return run


def test_the_log_begins_at_the_oldest_kept_version(
    made: StoredRun, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["log", made.root, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["versions"]
    assert [row["version"] for row in rows] == [3, 4, 5]
    assert [bool(row["anchor_bytes"]) for row in rows] == [True, False, False]
    assert rows[0]["step"] == 3  # metrics know nothing of it, the anchor does
    assert main(["log", made.root]) == 0
    assert "anchor" in capsys.readouterr().out


def test_kept_versions_are_exported_and_pruned_ones_named(
    made: StoredRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for version in (3, 4, 5):
        out = tmp_path / f"out-{version}"
        assert main(["export", made.root, "--version", str(version), "--out", str(out)]) == 0
        found = load_file(out / "model.safetensors")
        wanted = made.history.tensors[version]
        assert all(np.array_equal(stored_bits(found[name]), bits) for name, bits in wanted.items())
    capsys.readouterr()
    assert main(["export", made.root, "--version", "2", "--out", str(tmp_path / "out-2")]) == 2
    assert "version 2 is not kept; kept are 3 to 5" in capsys.readouterr().err


def test_a_model_that_is_gone_is_noticed_before_anything_is_written(
    made: StoredRun, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dcr_recipes.models.build.folder_of", lambda _: tmp_path / "gone")
    assert main(["export", made.root, "--out", str(tmp_path / "out")]) == 2
    assert "gone cannot be read" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("what", "told"), [("anchor/3-9/0/1", "3-9"), ("payload/5-15/1/0", "5-15")])
def test_damage_of_anchor_and_deltas_is_found(
    made: StoredRun, what: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["verify", made.root, "--json"])
    before = [one for one in json.loads(capsys.readouterr().out)["findings"] if one["what"] == "payloads"]
    assert [one["verdict"] for one in before] == ["proven"]
    flip(next(made.folder.store.glob(f"*/{what}")))
    main(["verify", made.root, "--json"])
    after = [one for one in json.loads(capsys.readouterr().out)["findings"] if one["what"] == "payloads"]
    assert [one["verdict"] for one in after] == ["failed"]
    assert told in after[0]["detail"]
