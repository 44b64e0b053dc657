from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dcr.errors import ConfigError
from dcr_recipes.cli import main
from dcr_recipes.layout import RunFolder
from dcr_recipes.plots import draw_all
from dcr_recipes.plots.rates import heat_map, kind_of, layer_of
from dcr_recipes.plots.timeline import last_refit
from dcr_recipes.summary import MetricsLog, Row

NAMES = {"change_rate.png", "payload_bytes.png", "reward.png", "refit_seconds.png"}


def _row(step: int) -> Row:
    return {
        "step": step, "version": step, "reward/mean": step / 10, "reward/std": 0.1,
        "train/gen_kl_error": 1e-7, "refit/payload_bytes": 1000 // step, "refit/dense_bytes": 50_000,
        "refit/seconds": 0.5 if step > 1 else None, "refit/entropy_bound_bytes": 700.0,
        "refit/compare_s": 0.1, "refit/apply_s": 0.2,
    }  # fmt: skip


def _folder(tmp_path: Path, num_steps: int, *, rates: bool = True) -> RunFolder:
    folder = RunFolder(tmp_path)
    folder.config.touch()
    for step in range(1, num_steps + 1):
        MetricsLog(folder.metrics).append(_row(step))
        changed = {"model.embed_tokens.weight": [step, 100], "model.layers.0.mlp.up_proj.weight": [0, 50]}
        if rates:
            MetricsLog(folder.change_rates).append({"step": step, "version": step, "changed": changed})
    return folder


def _ink(path: Path) -> tuple[tuple[int, ...], int]:
    """Shape of a picture and how many different colours it has."""
    from matplotlib.image import imread

    pixels = np.asarray(imread(path))
    return pixels.shape, len(np.unique(pixels.reshape(-1, pixels.shape[-1]), axis=0))


def test_every_picture_is_drawn_and_shows_something(tmp_path: Path) -> None:
    drawn = draw_all(_folder(tmp_path, 3))
    assert {path.name for path in drawn} == NAMES
    for path in drawn:
        shape, num_colours = _ink(path)
        assert min(shape[:2]) > 400
        assert num_colours > 50


def test_a_dense_run_has_no_change_rates_and_one_step_is_enough(tmp_path: Path) -> None:
    folder = _folder(tmp_path, 1, rates=False)
    folder.plots.mkdir()
    (folder.plots / "change_rate.png").touch()
    assert {path.name for path in draw_all(folder)} == NAMES - {"change_rate.png"}
    assert not (folder.plots / "change_rate.png").exists()


def test_a_run_without_steps_has_no_pictures(tmp_path: Path) -> None:
    assert draw_all(RunFolder(tmp_path)) == []


def test_the_command_draws_and_refuses_other_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = _folder(tmp_path, 2)
    assert main(["plot", str(folder.root)]) == 0
    assert {Path(line).name for line in capsys.readouterr().out.split()} == NAMES
    assert main(["plot", str(tmp_path / "nothing")]) == 2
    assert "is no run folder" in capsys.readouterr().err
    assert issubclass(ConfigError, ValueError)


def test_the_timeline_holds_the_stages_of_the_last_refit_only() -> None:
    def stage(name: str, start_ms: float, end_ms: float, version: int) -> dict[str, Any]:
        start, length = 1000 * start_ms, 1000 * (end_ms - start_ms)
        return {"ph": "X", "name": name, "ts": start, "dur": length, "args": {"version": version}}

    events = [
        stage("trainer.refit", 0, 10, 1),
        stage("owner.fold_in", 8, 9, 1),
        stage("trainer.refit", 20, 40, 2),
        stage("trainer.refit", 22, 30, 2),
        stage("receiver.apply", 23, 24, 2),
        stage("owner.fold_in", 35, 39, 2),
        stage("trainer.verify", 31, 50, 2),
        stage("runtime.load_dense", 45, 50, 2),
    ]
    found = last_refit({"traceEvents": events})
    assert [(e["name"], e["ts"], e["dur"]) for e in found] == [
        ("receiver.apply", 3, 1), ("owner.fold_in", 15, 4),
    ]  # fmt: skip
    assert last_refit({"traceEvents": []}) == []


def test_rates_are_grouped_by_layer_and_by_kind() -> None:
    changed = {
        "model.embed_tokens.weight": [10, 100],
        "model.layers.10.self_attn.q_proj.weight": [4, 10],
        "model.layers.2.self_attn.q_proj.weight": [1, 10],
        "model.layers.2.mlp.up_proj.weight": [0, 30],
        "model.norm.weight": [0, 0],
    }
    rows: list[Row] = [{"step": 1, "version": 1, "changed": changed}]
    layers = heat_map(rows, layer_of)
    assert layers.labels == ("embed_tokens", "layer 2", "layer 10", "norm")
    np.testing.assert_allclose(layers.rates[:, 0], [0.1, 1 / 40, 0.4, np.nan])
    kinds = heat_map(rows, kind_of)
    assert kinds.labels == ("embed_tokens", "norm", "q_proj", "up_proj")
    np.testing.assert_allclose(kinds.rates[:, 0], [0.1, np.nan, 0.25, 0.0])


def test_a_diverged_run_is_drawn_too(tmp_path: Path) -> None:
    folder, nan = _folder(tmp_path, 1), float("nan")
    for step in (2, 3):
        bad = dict.fromkeys(("reward/mean", "reward/std", "train/gen_kl_error"), nan)
        MetricsLog(folder.metrics).append({**_row(step), **bad})
    assert {path.name for path in draw_all(folder)} == NAMES
    rows = MetricsLog(folder.metrics).rows()[1:]
    folder.metrics.unlink()
    for row in rows:
        MetricsLog(folder.metrics).append(row)
    assert {path.name for path in draw_all(folder)} == NAMES


@pytest.mark.parametrize("name", ["metrics.jsonl", "change_rates.jsonl"])
def test_the_command_names_a_damaged_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    folder = _folder(tmp_path, 2)
    lines = (folder.root / name).read_text().splitlines(keepends=True)
    (folder.root / name).write_text("".join([lines[0][:9] + "\n", *lines[1:]]))
    assert main(["plot", str(folder.root)]) == 1
    assert f"{name}: line 1 is damaged" in capsys.readouterr().err
