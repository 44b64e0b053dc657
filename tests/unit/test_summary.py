import json
from pathlib import Path

from dcr_recipes.summary import MetricsLog, Row, summarize, write_summary


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
