"""``dcr rollback``: what it asks, shows and returns; the rollback itself is the service's."""

import json
from pathlib import Path

import pytest
from tests.unit.run_folders import StoredRun, stored_run

from dcr.commit.context import Rollback
from dcr.errors import AttemptFailed
from dcr.model import CommitRecord
from dcr.transport.peers import Peers
from dcr.transport.rpc import serve
from dcr_recipes.cli import main
from dcr_recipes.commands import rollback


@pytest.fixture
def made(tmp_path: Path) -> StoredRun:
    return stored_run(tmp_path / "run")


def _asked(made: StoredRun, answer: Rollback | Exception, *words: str) -> int:
    """The command in front of a coordinator that answers so."""

    def record() -> CommitRecord:
        return made.history.records[-1]

    def roll_back() -> Rollback:
        if isinstance(answer, Exception):
            raise answer
        return answer

    with serve({"record": record, "rollback": roll_back}) as server:
        Peers(made.folder.endpoints).publish("coordinator", server.url, "i")
        return main(["rollback", made.root, *words])


def test_all_serve_again(made: StoredRun, capsys: pytest.CaptureFixture[str]) -> None:
    done = Rollback(made.history.records[-1], ("runtime-0", "runtime-1"), {})
    assert _asked(made, done) == 0
    version = done.record.version
    assert capsys.readouterr().out.splitlines() == [
        f"runtime-0  serves version {version}",
        f"runtime-1  serves version {version}",
    ]
    assert _asked(made, done, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"version": version, "serving": ["runtime-0", "runtime-1"], "failed": {}}


def test_one_that_does_not_is_named_and_so_is_a_run_without_members(
    made: StoredRun, capsys: pytest.CaptureFixture[str]
) -> None:
    record = made.history.records[-1]
    assert _asked(made, Rollback(record, ("runtime-0",), {"runtime-1": "fence: Unreachable: [gone]"})) == 1
    assert "runtime-1  fence: Unreachable: [gone]" in capsys.readouterr().out
    assert _asked(made, Rollback(record, (), {})) == 1
    assert "none is a member" in capsys.readouterr().out


def test_a_refusal_is_one_line(made: StoredRun, capsys: pytest.CaptureFixture[str]) -> None:
    assert _asked(made, AttemptFailed("the archive is damaged")) == 1
    assert capsys.readouterr().err == "error: the archive is damaged\n"


def test_without_a_coordinator_it_says_what_to_do(
    made: StoredRun, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(rollback, "_FIND_S", 0.0)
    assert main(["rollback", made.root]) == 2
    assert "resume=true" in capsys.readouterr().err
    assert main(["rollback", str(tmp_path / "nothing")]) == 2
    assert "holds no run" in capsys.readouterr().err
