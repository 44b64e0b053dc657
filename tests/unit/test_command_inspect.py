"""``dcr inspect`` on every kind of object of a run, and on what is none."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dcr.model import Encoding, to_json
from dcr.testing.history import History, random_tensors, small_catalogue
from dcr.transport.directory import DirectoryStore
from dcr_recipes.cli import main


@pytest.fixture
def history(tmp_path: Path) -> History:
    history = History(DirectoryStore(tmp_path), small_catalogue())
    rng = np.random.default_rng(1)
    for _ in range(2):
        history.commit(random_tensors(history.catalogue, rng), encoding=Encoding.XOR)
    history.archive.put_object("catalogue", to_json(history.catalogue))
    return history


def _files(folder: Path, pattern: str) -> list[str]:
    found = sorted(str(path) for path in folder.glob(f"*/{pattern}"))
    assert found
    return found


def _json(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(["inspect", "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def test_payloads(history: History, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = _files(tmp_path, "payload/1-3/*/*")
    found = _json(capsys, *files)
    first = found["files"][0]
    assert [report["file"] for report in found["files"]] == files
    assert (first["kind"], first["attempt"], first["owner"], first["parent_version"]) == (
        "payload", "1-3", 0, 0,
    )  # fmt: skip
    assert first["catalogue"] == history.catalogue.digest()
    assert (first["items"][0]["tensor"], first["items"][0]["shape"]) == ("embed", [5, 3])
    assert found["total"]["num_payloads"] == len(files)
    assert found["total"]["num_bytes"] == sum(Path(file).stat().st_size for file in files)


def test_a_table_names_every_tensor(
    history: History, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", *_files(tmp_path, "payload/0-0/*/*")]) == 0
    shown = capsys.readouterr().out
    assert all(spec.name in shown for spec in history.catalogue.tensors)
    assert "entropy bound" in shown


@pytest.mark.parametrize(
    ("pattern", "kind"),
    [
        ("manifest/*", "manifest"),
        ("audit/*", "audit table"),
        ("catalogue/*", "catalogue"),
        ("close/1-3/0", "closed list of an owner"),
    ],
)
def test_objects(
    history: History, tmp_path: Path, capsys: pytest.CaptureFixture[str], pattern: str, kind: str
) -> None:
    file = _files(tmp_path, pattern)[0]
    assert _json(capsys, file)["files"][0]["kind"] == kind
    assert main(["inspect", file]) == 0
    assert kind in capsys.readouterr().out


def test_a_record(history: History, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(to_json(history.records[1]))
    report = _json(capsys, str(path))["files"][0]
    assert (report["kind"], report["version"], report["attempt"]) == ("commit record", 1, "1-3")


@pytest.mark.parametrize("pattern", ["payload/1-3/0/0", "manifest/*", "audit/*"])
def test_one_flipped_bit_is_one_line_and_code_2(
    history: History, tmp_path: Path, capsys: pytest.CaptureFixture[str], pattern: str
) -> None:
    path = Path(_files(tmp_path, pattern)[0])
    data = bytearray(path.read_bytes())
    data[-8] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    assert main(["inspect", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"error: {path}: ")
    assert captured.err.count("\n") == 1


def test_other_files_are_named_and_the_rest_is_shown(
    history: History, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_text("hello")
    (tmp_path / "json").write_text('{"a": 1}')
    good = _files(tmp_path, "manifest/*")[0]
    bad = [str(tmp_path / name) for name in ("text", "json", "missing")]
    assert main(["inspect", "--json", *bad, good]) == 2
    captured = capsys.readouterr()
    assert [line.split(": ")[1] for line in captured.err.splitlines()] == bad
    assert [report["kind"] for report in json.loads(captured.out)["files"]] == ["manifest"]


def test_a_folder_is_told_what_to_name_instead(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"error: {tmp_path}: Is a directory; name payload files below RUN/store\n"
    )
