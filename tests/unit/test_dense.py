from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import dcr_recipes.dense
from dcr.errors import Unreachable
from dcr_recipes.dense import Counts, count_changes, load_patiently


@dataclass
class Runtime:
    process: int = 1
    version: int = 3
    is_open: bool = True
    away: int = 0
    loaded: list[tuple[str, int]] = field(default_factory=list)

    def status(self) -> "Runtime":
        self.away -= 1
        if self.away >= 0:
            raise Unreachable("connection refused")
        return self

    def dump(self, path: str, share: float = 1.0, sample: str = "") -> int:
        raise AssertionError(path, share, sample)

    def load_dense(self, path: str, version: int) -> None:
        self.loaded.append((path, version))


def test_changes_are_counted_on_stored_bits(tmp_path: Path) -> None:
    nan = torch.tensor([0x7FC0, 0x7FC1], dtype=torch.int16).view(torch.bfloat16)
    before = {"a": torch.tensor([0.0, 1.0, 2.0]), "b": nan, "c": torch.tensor(3, dtype=torch.int64)}
    after = {"a": torch.tensor([-0.0, 1.0, 2.5]), "b": nan.flip(0).contiguous(), "c": before["c"]}
    save_file(before, tmp_path / "before")
    save_file(after, tmp_path / "after")
    assert count_changes(tmp_path / "before", tmp_path / "after") == Counts(4, 6, 12 + 4 + 8)
    assert count_changes(tmp_path / "after", tmp_path / "after") == Counts(0, 6, 24)


def test_an_instance_that_serves_the_version_is_left_alone() -> None:
    runtime = Runtime()
    load_patiently("runtime-0", runtime, Path("d"), 3, patience_s=60)
    assert runtime.loaded == []


@pytest.mark.parametrize("runtime", [Runtime(version=2), Runtime(is_open=False), Runtime(version=-1, away=2)])
def test_any_other_is_loaded_also_after_it_was_away(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dcr_recipes.dense, "_PAUSE_S", 0)
    load_patiently("runtime-0", runtime, Path("d"), 3, patience_s=60)
    assert runtime.loaded == [("d", 3)]


def test_one_that_stays_away_is_an_error() -> None:
    with pytest.raises(Unreachable, match="runtime-0 did not load version 3 in 0 s: connection refused"):
        load_patiently("runtime-0", Runtime(away=9), Path("d"), 3, patience_s=0)
