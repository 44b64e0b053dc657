"""Compressed payloads in memory and on disk: bounds, order of use, and what is never touched."""

import errno
from pathlib import Path

import pytest

from dcr.errors import AttemptFailed, ConfigError
from dcr.model import AttemptId
from dcr.receiver import area as area_module
from dcr.receiver.area import Room, StagingArea

TAU = AttemptId(3, 2)
OLDER = AttemptId(1, 2)


def digest(n: int) -> str:
    return f"{n:032x}"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_no_file_or_folder_of_anybody_else_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made with and without a folder, also where it is the current one and holds what stores hold."""
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("ref")
    (tmp_path / digest(7)).write_bytes(b"an object of an archive")
    (tmp_path / f"{digest(8)}.staged").write_bytes(b"left by an earlier process")
    monkeypatch.chdir(tmp_path)
    StagingArea(Room())
    StagingArea(Room(0, 10, tmp_path)).retain(())
    assert names(tmp_path) == [".git", digest(7)]
    assert (tmp_path / ".git" / "HEAD").read_text() == "ref"


def test_the_code_can_remove_no_folder() -> None:
    source = Path(area_module.__file__).read_text()
    assert not any(word in source for word in ("rmtree", "rmdir", "shutil"))


def test_a_folder_that_depends_on_the_current_one_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"staging\.path"):
        Room(0, 10, Path())


def test_a_folder_that_is_somebody_elses_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(_self: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", denied)
    with pytest.raises(ConfigError, match=r"staging\.path: .* cannot be used: Permission denied"):
        StagingArea(Room(0, 10, tmp_path))


def test_memory_first_then_files_and_bytes_come_back(tmp_path: Path) -> None:
    area = StagingArea(Room(4, 8, tmp_path / "own"))
    for n in range(3):
        area.add(TAU, (0, n), digest(n), bytes([n]) * 4)
    assert (area.memory_bytes, area.disk_bytes) == (4, 8)
    assert names(tmp_path / "own") == [f"{digest(1)}.staged", f"{digest(2)}.staged"]
    assert [area.take(digest(n)) for n in range(3)] == [bytes([n]) * 4 for n in range(3)]
    assert (area.memory_bytes, area.disk_bytes, names(tmp_path / "own")) == (0, 0, [])
    assert area.take(digest(0)) is None


def test_what_fits_nowhere_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    area = StagingArea(Room(4, 4, tmp_path / "own"))
    area.add(TAU, (0, 0), digest(0), b"aaaa")
    area.add(TAU, (0, 1), digest(1), b"bbbb")
    with pytest.raises(AttemptFailed, match=r"staging\.memory_mib"):
        area.add(TAU, (0, 2), digest(2), b"cccc")
    assert area.keys(TAU) == {(0, 0), (0, 1)}
    area.retain({digest(1)})
    area.add(TAU, (0, 2), digest(2), b"cccc")
    assert area.take(digest(2)) == b"cccc"


def test_a_disk_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    area = StagingArea(Room(0, 100, tmp_path / "file" / "below"))
    with pytest.raises(AttemptFailed, match=r"staging\.path"):
        area.add(TAU, (0, 0), digest(0), b"aaaa")
    assert (area.disk_bytes, area.keys(TAU)) == (0, set())


def test_payloads_of_earlier_chains_are_forgotten(tmp_path: Path) -> None:
    area = StagingArea(Room(100, 0))
    area.add(OLDER, (0, 0), digest(0), b"a")
    area.add(TAU, (0, 0), digest(1), b"b")
    area.forget_before(TAU.number)
    assert (area.find(digest(0)), area.memory_bytes) == (None, 1)
