import json
import subprocess
import sys
from pathlib import Path

import pytest

from dcr import observe
from dcr.errors import ConfigError
from dcr_recipes.faults import Kill, journal, parse_kill

CODE = """
import sys
from pathlib import Path
from dcr import observe
from dcr_recipes.faults import killer
with observe.listening(killer([sys.argv[1]], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))):
    for i in range(3):
        observe.point("receiver.item.before")
        observe.point("receiver.item.after")
        print(i, flush=True)
"""


def _run(entry: str, process: str, incarnation: int, marks: Path) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-c", CODE, entry, process, str(incarnation), str(marks)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60)


def test_a_process_dies_at_the_nth_occurrence_and_only_once_in_a_run(tmp_path: Path) -> None:
    first = _run("runtime-0:receiver.item.after:2", "runtime-0", 1, tmp_path / "faults")
    assert (first.returncode, first.stdout) == (-9, "0\n")
    again = _run("runtime-0:receiver.item.after:2", "runtime-0", 2, tmp_path / "faults")
    assert (again.returncode, again.stdout) == (0, "0\n1\n2\n")


@pytest.mark.parametrize(
    ("process", "incarnation", "code"), [("runtime-0", 2, -9), ("runtime-0", 1, 0), ("runtime-1", 2, 0)]
)
def test_only_the_named_process_and_incarnation_dies(
    tmp_path: Path, process: str, incarnation: int, code: int
) -> None:
    assert _run("runtime-0:receiver.item.after:1:2", process, incarnation, tmp_path / "f").returncode == code


def test_a_journal_has_every_point_of_every_incarnation(tmp_path: Path) -> None:
    for incarnation in (1, 2):
        with observe.listening(journal("runtime-0", incarnation, tmp_path / "faults")):
            observe.point("receiver.item.before", tensor="w")
            with observe.span("receiver.apply"):
                pass
    lines = (tmp_path / "faults" / "runtime-0.points").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"point": "receiver.item.before", "incarnation": incarnation, "tensor": "w"} for incarnation in (1, 2)
    ]


def test_entries() -> None:
    assert parse_kill("owner-1:owner.publish.before:3") == Kill("owner-1", "owner.publish.before", 3, None)
    assert parse_kill("a:b:3:2").incarnation == 2


@pytest.mark.parametrize(
    "entry", ["", "a", "a:b", "a:b:x", "a:b:0", "a::1", ":b:1", "a:b:1:0", "a:b:1:2:3", "a/:b:1"]
)
def test_a_malformed_entry_is_a_clear_error(entry: str) -> None:
    with pytest.raises(ConfigError, match=r"faults\.kill"):
        parse_kill(entry)
