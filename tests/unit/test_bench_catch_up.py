"""`dcr bench catch-up`: keys that programs read, and that every way ends in the same bits."""

import json

import pytest

from dcr_recipes.cli import main


def test_a_delta_is_less_to_read_than_a_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "catch-up", "--quick", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["way"], row["behind"]) for row in rows] == [
        ("dense refit", None), ("dense restore", None),
        ("composed delta", 1), ("composed delta", 7), ("composed delta", 50),
    ]  # fmt: skip
    assert rows[0]["read_bytes"] == rows[0]["checkpoint_bytes"]
    read = [row["read_bytes"] for row in rows[2:]]
    assert read == sorted(read)
    assert all(row["link_bytes"] <= row["read_bytes"] < rows[1]["read_bytes"] for row in rows[2:])
    assert [row["retries"] for row in rows[2:]] == [1, 1, 5]
