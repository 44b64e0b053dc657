import io
from pathlib import Path

from rich.console import Console

from dcr_recipes.launch.figures import duration, size, stage_words
from dcr_recipes.launch.final import final_table, headline
from dcr_recipes.launch.live import Picture, ProcessState, render
from dcr_recipes.launch.progress import Progress
from dcr_recipes.layout import RunFolder
from dcr_recipes.summary import MetricsLog, Row

ROW: Row = {
    "step": 1, "version": 1, "reward/mean": 0.5, "refit/changed_fraction": 0.04, "refit/payload_bytes": 1000,
    "refit/dense_bytes": 50_000, "refit/seconds": 0.25, "refit/compare_s": 0.1, "refit/fold_in_s": 0.05,
    "refit/restore_s": 0.0, "refit/entropy_bound_bytes": 500.0, "verify/differing_bits": 0,
}  # fmt: skip


def _shown(width: int = 120, *, terminal: bool = False) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=width, force_terminal=terminal), out


def test_without_a_terminal_there_are_plain_lines_only(tmp_path: Path) -> None:
    console, out = _shown()
    phases = iter(["starting", "starting", "rollout of step 1", "refit to v1"])
    log = MetricsLog(tmp_path / "metrics.jsonl")
    with Progress(log.path, 2, console, lambda: [ProcessState("owner-0", next(phases), True, 0)]) as progress:
        for _ in range(3):
            progress.update()
        log.append(ROW)
        progress.update()
        progress.update()
    lines = out.getvalue().splitlines()
    assert "\x1b" not in out.getvalue()
    assert [line.split("owner-0: ")[-1] for line in lines[:2]] == ["starting", "rollout of step 1"]
    assert [line.split()[0] for line in lines[2:]] == ["step", "1/2"]


def test_a_terminal_gets_a_picture_and_keeps_the_lines(tmp_path: Path) -> None:
    console, out = _shown(terminal=True)
    log = MetricsLog(tmp_path / "metrics.jsonl")
    with Progress(
        log.path, 2, console, lambda: [ProcessState("runtime-0", "loading the model", True, 0)]
    ) as progress:
        progress.update()
        assert "loading the model" in out.getvalue()
        log.append(ROW)
        progress.update()
    assert "1/2   0.5000    4.000%" in out.getvalue()


def test_the_picture_names_figures_stages_and_processes() -> None:
    console, out = _shown()
    processes = [ProcessState("runtime-0", "serving v1", True, 2), ProcessState("owner-0", "refit", False, 0)]
    console.print(render(Picture(1, 4, 61.0, 20.0, ROW, processes)))
    text = out.getvalue()
    for part in (
        "step 2/4", "1:01 passed", "about 1:00 left", "version v1, reward 0.5000, 0 differing bits",
        "sent 1.0 kB of 50.0 kB (50.0 times less)", "refit 0.25 s: compare 100, fold-in 50 ms",
        "serving v1", "restarted 2x",
    ):  # fmt: skip
        assert part in text, part
    assert "owner-0    ended" in text


def test_a_picture_before_the_first_step_and_after_a_crash() -> None:
    console, out = _shown()
    console.print(render(Picture(0, 4, 1.0, None, None, [])))
    console.print(
        render(Picture(1, 4, 1.0, None, {**ROW, "refit/seconds": None, "refit/compare_s": None}, []))
    )
    assert out.getvalue().count("time left: not known yet") == 2
    assert "refit 0" not in out.getvalue()


def test_the_final_table_tells_totals_and_files(tmp_path: Path) -> None:
    console, out = _shown()
    folder = RunFolder(tmp_path)
    folder.trace_json.touch()
    folder.plots.mkdir()
    (folder.plots / "reward.png").touch()
    done = {
        "num_steps": 1, "final_version": 1, "differing_bits": 0, "payload_bytes": 1000, "dense_bytes": 50_000,
        "changed_fraction": 0.04,
    }  # fmt: skip
    assert headline(done) == "1 steps, version 1, 0 differing bits"
    assert headline({**done, "differing_bits": None}).endswith("not verified")
    console.print(final_table(done, [{**ROW, "verify/share": 0.1}, ROW], folder, num_restarts=3))
    text = out.getvalue()
    for part in (
        "(2.00%, 50.0 times less)",
        "sent is 1.00 times that",
        "at least 10% of the tensors",
        "plots/reward.png",
        "| 3 ",
    ):
        assert part in text, part
    assert "that took part" not in text
    without = {**ROW, "verify/share": 1.0, "refit/left_out": "runtime-1"}
    console.print(final_table(done, [without, without, ROW], folder, num_restarts=0))
    assert "that took part (2 refits" in out.getvalue()
    assert "trace.json (opens in Perfetto)" in text
    assert "metrics.jsonl" not in text


def test_figures_read_well() -> None:
    assert [size(n) for n in (999, 1000, 2.5e6, 3e12)] == ["999 B", "1.0 kB", "2.5 MB", "3.0 TB"]
    assert [duration(s) for s in (0.4, 59.6, 3661)] == ["0:00", "1:00", "1:01:01"]
    assert stage_words([{"step": 1, "refit/seconds": 1.0}]) == "no stages recorded"


def test_a_diverged_step_has_dashes_and_is_explained_once(tmp_path: Path) -> None:
    console, out = _shown()
    log = MetricsLog(tmp_path / "metrics.jsonl")
    with Progress(log.path, 3, console) as progress:
        log.append(ROW)
        for step in (2, 3):
            nan = float("nan")
            log.append({**ROW, "step": step, "reward/mean": nan, "train/loss": nan})
        progress.update()
        progress.update()
    text = out.getvalue()
    assert [line.split()[:2] for line in text.splitlines() if "/3 " in line] == [
        ["1/3", "0.5000"], ["2/3", "-"], ["3/3", "-"],
    ]  # fmt: skip
    assert text.count("training diverged: loss and reward are not finite at step 2;") == 1
    assert text.count("diverged") == 1
    console.print(render(Picture(3, 3, 1.0, None, log.rows()[-1], [])))
    assert "version v1, reward -, 0 differing bits" in out.getvalue()
