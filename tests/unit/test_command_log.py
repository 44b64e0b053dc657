"""``dcr log`` of a run folder."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.run_folders import StoredRun, stored_run

from dcr.model import AuditTable, OwnerClose, from_json
from dcr_recipes.cli import main
from dcr_recipes.commands.log import rows_of


@pytest.fixture
def made(tmp_path: Path) -> StoredRun:
    return stored_run(tmp_path / "run")


def test_versions_oldest_first(made: StoredRun, capsys: pytest.CaptureFixture[str]) -> None:
    made.folder.metrics.write_text('{"version": 1, "step": 11}\n{"version": 2, "step": 12}\n')
    assert main(["log", made.root, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    rows, record = found["versions"], made.history.records[-1]
    assert found["run"] == record.run
    assert found["active"] is None
    assert [row["version"] for row in rows] == [0, 1, 2]
    assert [row["step"] for row in rows] == [0, 11, record.step]
    assert [row["attempt"] for row in rows] == ["0-0", "1-3", "2-6"]
    assert [row["num_attempts"] for row in rows] == [None] * 3
    assert [row["parent"] for row in rows] == [None, "0-0", "1-3"]
    assert [row["overwrite_only"] for row in rows] == [True, False, False]
    assert rows[-1]["audit"] == record.audit
    for row in rows:
        stored = made.payloads(row["attempt"])
        assert row["num_payloads"] == len(stored)
        assert row["payload_bytes"] == sum(path.stat().st_size for path in stored)


def test_a_table_for_people(made: StoredRun, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", made.root]) == 0
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("v0", "v2", "2-6", "overwrite", "mixed", "of dense"))


def test_tries_are_those_of_the_metrics(made: StoredRun, capsys: pytest.CaptureFixture[str]) -> None:
    """This history leaves two attempt numbers out each time, and nothing failed."""
    assert main(["log", made.root]) == 0
    assert "tries" not in capsys.readouterr().out
    rows = [{"version": 1, "step": 11, "refit/attempts": 1}, {"version": 2, "step": 12}]
    made.folder.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["log", made.root]) == 0
    _, head, *shown = capsys.readouterr().out.splitlines()
    assert head.split()[:4] == ["version", "step", "attempt", "tries"]
    assert [line.split()[:4] for line in shown] == [
        ["v0", "0", "0-0", "-"],
        ["v1", "11", "1-3", "1"],
        ["v2", "2", "2-6", "-"],
    ]


def test_latency_and_bounds_of_versions_that_were_timed(
    made: StoredRun, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("latency_s", "construction_s", "transport_s", "finalization_s")
    timed = {"version": 2, "step": 12} | {f"bounds/{name}": 0.25 + i for i, name in enumerate(names)}
    made.folder.metrics.write_text('{"version": 1, "step": 11}\n' + json.dumps(timed) + "\n")
    assert main(["log", made.root]) == 0
    *_, before, last = capsys.readouterr().out.splitlines()
    assert last.split()[-7:-3] == ["250", "1250", "2250", "3250"]
    assert before.split()[-7:-3] == ["-"] * 4
    assert main(["log", made.root, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["versions"]
    assert [row["latency_s"] for row in rows] == [None, None, 0.25]


def test_the_latest_run_is_meant_without_a_name(
    made: StoredRun, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["log"]) == 2
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "latest").symlink_to(made.folder.root)
    capsys.readouterr()
    assert main(["log"]) == 0
    assert "v2" in capsys.readouterr().out


def test_an_older_versions_audit_follows_from_its_owners(made: StoredRun) -> None:
    """Their partial digests add up to the table whose digest the record had."""
    history = made.history
    table = from_json(AuditTable, history.archive.get_object("audit", history.records[1].audit))
    attempt = history.records[1].attempt
    told = replace(history.manifests[1], owners=(OwnerClose(attempt, 0, (), table, 1, 4, ""),))
    unproven = replace(history.manifests[0], owners=())
    manifests = [unproven, told, history.manifests[2]]
    rows = rows_of(history.records[-1], manifests, history.catalogue, {})
    assert (rows[1]["audit"], rows[1]["changed_fraction"]) == (history.records[1].audit, 0.25)
    assert (rows[0]["audit"], rows[0]["changed_fraction"]) == (None, None)


@pytest.mark.parametrize("command", ["log", "verify"])
def test_without_a_run_there_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert main([command, str(tmp_path)]) == 2
    assert capsys.readouterr().err.endswith("holds no run; name a run folder, for example runs/latest\n")


@pytest.mark.parametrize("command", ["log", "verify"])
def test_a_dense_run_has_no_record(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    made = stored_run(tmp_path / "run", 1)
    text = made.folder.config.read_text()
    made.folder.config.write_text(text.replace("refit: dcr", "refit: dense"))
    assert main([command, made.root]) == 2
    assert "only refit=dcr keeps a commit record" in capsys.readouterr().err


def test_a_run_that_has_committed_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = stored_run(tmp_path / "run", 1)
    made.folder.control.unlink()
    assert main(["log", made.root]) == 2
    assert "not committed a version yet" in capsys.readouterr().err
