"""`dcr bench values | locations | codec`: keys that programs read, and what must hold at any size."""

import json
from typing import Any

import numpy as np
import pytest

from dcr.codec.inspect import location_bound_bits
from dcr_recipes.bench.data import AdamW, Relative, change_of, positions, to_bfloat16
from dcr_recipes.bench.entropy import word_entropy_bytes, zigzag
from dcr_recipes.cli import main


def _report(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["bench", *words, "--quick", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["bench"] == words[0]
    assert found["rows"]
    return found


def test_values_have_the_papers_order(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    rows = _report(capsys, "values")["rows"]
    assert [row["noise"] for row in rows] == [1e-4, 1e-3, 1e-2]
    wanted = {"noise", "num_changed", "overwrite_bytes", "xor_bytes", "best_bytes", "entropy_bytes"}
    for row in rows:
        assert wanted <= row.keys()
        assert row["entropy_bytes"] < row["best_bytes"] < row["xor_bytes"] < row["overwrite_bytes"]
    assert rows[-1]["overwrite_to_xor"] == pytest.approx(1.72, abs=0.01)


def test_locations_stay_above_the_bound_where_it_holds(capsys: pytest.CaptureFixture[str]) -> None:
    rows = _report(capsys, "locations")["rows"]
    assert {(row["rate"], row["pattern"]) for row in rows} == {
        (rate, pattern) for rate in (0.001, 0.005, 0.01, 0.03, 0.05) for pattern in ("uniform", "clustered")
    }
    for row in rows:
        assert {"rate", "pattern", "bits_per_change", "bound_bits"} <= row.keys()
        assert row["bits_per_change"] <= row["published_bits_per_change"] * 1.02
        if row["pattern"] == "uniform":
            assert row["bits_per_change"] > 0.99 * row["bound_bits"]
        else:
            assert row["bits_per_change"] < row["bound_bits"]


def test_codecs_are_compared_on_the_same_changes(capsys: pytest.CaptureFixture[str]) -> None:
    rows = _report(capsys, "codec")["rows"]
    for start in range(0, len(rows), 3):
        planes, published, overwrite = rows[start : start + 3]
        assert [row["mode"] for row in (planes, published, overwrite)] == ["planes", "published", "overwrite"]
        assert planes["num_changed"] == published["num_changed"] == overwrite["num_changed"]
        assert planes["payload_bytes"] < published["payload_bytes"] < overwrite["payload_bytes"]
        assert planes["bits_per_change"] > 0.95 * planes["bound_bits"]
        assert planes["decode_cpu_s_per_gb"] >= 0


def test_a_table_is_printed_without_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "locations", "--quick"]) == 0
    shown = capsys.readouterr()
    assert "H(s)/s" in shown.out
    assert "ceiling" in shown.out
    assert "[10/10]" in shown.err


def test_help_names_every_bench(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("values", "locations", "scan", "construct", "codec", "apply"))


@pytest.mark.parametrize("make", [AdamW, Relative])
@pytest.mark.parametrize("rate", [0.01, 0.05])
def test_the_rate_is_that_of_changed_bits(make: type[AdamW] | type[Relative], rate: float) -> None:
    words, changes = change_of(make(rate), (0,), 1 << 20)
    assert changes.locations.size / words.size == pytest.approx(rate, rel=0.1)
    assert (words[changes.locations] == changes.old).all()
    assert (changes.old != changes.new).all()


def test_adamw_changes_are_small_steps() -> None:
    _, changes = change_of(AdamW(0.01), (0,), 1 << 20)
    steps = np.abs((changes.new - changes.old).view(np.int16))
    assert 0.6 < (steps == 1).mean() < 0.95


def test_rounding_agrees_with_torch() -> None:
    torch = pytest.importorskip("torch")
    values = np.random.default_rng(0).standard_normal(1 << 16, dtype=np.float32)
    wanted = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(to_bfloat16(values), wanted)


def test_bursts_are_half_full_and_ascending() -> None:
    found = positions(np.random.default_rng(0), 1 << 20, 0.01, "clustered")
    assert (np.diff(found) > 0).all()
    assert found.size / (1 << 20) == pytest.approx(0.01, rel=0.1)
    assert np.unique(found // 64).size * 32 == pytest.approx(found.size, rel=0.05)


def test_entropy_of_known_words() -> None:
    assert word_entropy_bytes(np.zeros(8, np.uint16)) == 0
    assert word_entropy_bytes(np.array([], np.uint16)) == 0
    assert zigzag(np.array([0x8000], np.uint16)).tolist() == [0xFFFF]
    assert location_bound_bits(1 << 10, 1 << 20) == pytest.approx(11.44 * (1 << 10), rel=0.01)
