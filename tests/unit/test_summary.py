import json
from pathlib import Path

import pytest

from dcr.errors import PayloadError
from dcr_recipes.launch.progress import step_line
from dcr_recipes.summary import MetricsLog, Row, diverged, summarize, write_summary

NAN, INF = float("nan"), float("inf")


def _row(step: int, **more: object) -> Row:
    row: Row = {
        "step": step,
        "version": step,
        "reward/mean": step / 10,
        "refit/changed_fraction": 0.01 * step,
        "refit/payload_bytes": 10,
        "refit/dense_bytes": 1000,
    }
    return {**row, **more}


def test_rows_survive_and_are_cut_to_what_the_checkpoint_knows(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    assert log.rows() == []
    for step in (1, 2, 3):
        log.append(_row(step))
    with log.path.open("a") as torn:
        torn.write('{"step": 4, "ver')
    assert [row["step"] for row in log.rows()] == [1, 2, 3]
    assert log.cut(2) == [_row(1), _row(2)]
    log.append(_row(3))
    assert [json.loads(line)["step"] for line in log.path.read_text().splitlines()] == [1, 2, 3]
    assert log.cut(0) == []


def test_the_summary_has_exactly_the_promised_keys(tmp_path: Path) -> None:
    rows = [_row(step, **{"verify/differing_bits": 0}) for step in (1, 2)]
    made = summarize(rows, final_version=3, weights_digest="w", token_digest="t")
    assert made == {
        "num_steps": 2,
        "final_version": 3,
        "differing_bits": 0,
        "payload_bytes": 20,
        "dense_bytes": 2000,
        "changed_fraction": 0.015,
        "weights_digest": "w",
        "rewards": [0.1, 0.2],
        "token_digest": "t",
    }
    write_summary(tmp_path / "summary.json", made)
    assert json.loads((tmp_path / "summary.json").read_text()) == made


def test_an_unverified_run_claims_no_proof_and_an_empty_one_no_change() -> None:
    assert summarize([_row(1)], final_version=1, weights_digest="", token_digest="")["differing_bits"] is None
    empty = summarize([], final_version=0, weights_digest="", token_digest="")
    assert (empty["num_steps"], empty["changed_fraction"], empty["differing_bits"]) == (0, 0.0, 0)


def test_figures_that_are_not_finite_become_null_and_every_reader_takes_them(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.append(_row(1))
    log.append(_row(2, **{"reward/mean": NAN, "train/loss": -INF, "refit/seconds": 0.5}))
    assert log.cut(2) == log.rows()
    (_, row) = log.rows()
    assert (row["reward/mean"], row["train/loss"], row["refit/seconds"]) == (None, None, 0.5)
    assert step_line(row, 2).split()[:3] == ["2/2", "-", "2.000%"]
    made = summarize(log.rows(), final_version=2, weights_digest="w", token_digest="t")
    assert made["rewards"] == [0.1, None]
    path = tmp_path / "summary.json"
    write_summary(path, {**made, "rewards": [0.1, NAN], "pause_max_s": INF})
    read = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert (read["rewards"], read["pause_max_s"]) == ([0.1, None], None)


@pytest.mark.parametrize("bad", [NAN, INF, None])
def test_a_diverged_training_is_told_in_words(bad: float | None) -> None:
    assert diverged(_row(3, **{"train/loss": 0.5, "train/grad_norm": 1.0, "train/gen_kl_error": bad})) == ""
    words = diverged(_row(3, **{"train/loss": bad, "train/grad_norm": 1.0}))
    assert words.startswith("training diverged: loss is not finite at step 3;")
    both = diverged(_row(4, **{"train/loss": bad, "train/grad_norm": bad}))
    assert both.startswith("training diverged: loss and gradient norm are not finite at step 4;")


@pytest.mark.parametrize("damaged", [b'{"step": 2, "ver', b"\xff\x00", b"", b"7"])
def test_a_damaged_line_is_named(tmp_path: Path, damaged: bytes) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.append(_row(1))
    log.path.write_bytes(log.path.read_bytes() + damaged + b"\n")
    log.append(_row(3))
    for read in (log.rows, lambda: log.cut(1)):
        with pytest.raises(PayloadError, match=r"metrics\.jsonl: line 2 is damaged"):
            read()
