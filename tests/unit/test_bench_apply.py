"""`dcr bench apply`: keys that programs read, proofs, refusals; the runtime here is hf."""

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch

from dcr.errors import ConfigError, IntegrityError
from dcr.model import Encoding, TensorSpec
from dcr_recipes.bench import apply, apply_ways
from dcr_recipes.bench.apply_data import make_versions, singly
from dcr_recipes.bench.apply_floor import Floor, hold, snapshot, storages_of
from dcr_recipes.bench.apply_model import config_of, shape_of, specs_of
from dcr_recipes.bench.timing import Cost
from dcr_recipes.cli import main

SPECS = (TensorSpec("a", (64, 32), "bfloat16"), TensorSpec("b", (500,), "bfloat16"))


class _Copies:
    """A loader that copies by name."""

    def __init__(self, specs: tuple[TensorSpec, ...]) -> None:
        self.tensors = {spec.name: torch.zeros(spec.shape, dtype=torch.bfloat16) for spec in specs}

    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, weight in weights:
            self.tensors[name].copy_(weight)

    def resident(self) -> dict[str, torch.Tensor]:
        return self.tensors

    def skips(self, name: str) -> bool:
        del name
        return False

    def refusals(self) -> dict[str, str]:
        return {}

    def synchronize(self) -> None:
        pass


def test_apply_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "apply", "--quick", "--json", "--rates", "0.01"]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = found["rows"]
    wanted = {"runtime", "model", "tp", "method", "rate", "cpu_s", "ratio_to_learned"}
    assert all(wanted <= row.keys() for row in rows)
    methods = {row["method"] for row in rows}
    assert {"floor", "dense refit", "hook per item xor", "hook streamed xor", apply_ways.LEARNED} <= methods
    assert {
        f"learned {engine} {way}" for engine in apply_ways.ENGINES for way in ("set", "xor", "add")
    } <= methods
    assert {(row["runtime"], row["model"], row["tp"]) for row in rows} == {("hf", "dense", 1)}
    assert [row["ratio_to_learned"] for row in rows if row["method"] == apply_ways.LEARNED] == [1.0]
    assert [line["learned_share"] for line in found["learning"]] == [1.0]


def test_memory_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "apply", "--quick", "--json", "--memory", "20"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["num_refits"] for row in rows] == list(range(2, 21, 2))
    assert all(row["resident_mib"] > 0 for row in rows)


def test_a_method_that_leaves_other_bits_is_named() -> None:
    versions = make_versions(SPECS, 0.05)
    loader = _Copies(SPECS)
    with pytest.raises(IntegrityError, match="does nothing does not leave the bits"):
        apply_ways.measure(loader, versions, {"does nothing": lambda: None}, rounds=1)


def test_the_floor_writes_every_change_and_nothing_else() -> None:
    versions = make_versions(SPECS, 0.05)
    loader = _Copies(SPECS)
    storages = storages_of(loader)
    loader.load(versions.old_tensors())
    before = snapshot(storages)
    loader.load(versions.new_tensors())
    wanted = snapshot(storages)
    floor = Floor(storages, before)
    loader.load(versions.old_tensors())
    floor.run()
    assert hold(storages, wanted)
    assert not hold(storages, before)
    assert floor.num_writes == versions.num_changed


def test_payloads_lead_from_old_to_new() -> None:
    versions = make_versions(SPECS, 0.05)
    for encoding in Encoding:
        for payload in singly(versions.payloads(encoding)):
            (item,) = payload.items
            words = versions.old[item.name].copy()
            at, values = item.locations, item.values.astype(np.uint16)
            if encoding is Encoding.XOR:
                words[at] ^= values
            elif encoding is Encoding.DELTA16:
                words[at] += values
            else:
                words[at] = values
            assert np.array_equal(words, versions.new[item.name])


@pytest.mark.parametrize("model", ["dense", "moe"])
def test_full_models_have_about_a_gigabyte(model: str) -> None:
    num_bytes = sum(spec.num_bytes for spec in specs_of(shape_of(model, quick=False)))
    assert 1.0e9 < num_bytes < 1.25e9


def test_names_are_those_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    shape = shape_of("dense", quick=True)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config_of(shape))
    wanted = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert {spec.name: spec.shape for spec in specs_of(shape)} == wanted


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        (apply.Choice("hf", models=["moe"]), "has no model"),
        (apply.Choice("hf", tps=[2]), "--runtime vllm"),
    ],
)
def test_what_a_runtime_lacks_is_refused(choice: apply.Choice, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        apply.cases_of(choice, quick=True)


def test_a_missing_lane_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.prefix", str(tmp_path / ".venv"))
    with pytest.raises(ConfigError, match="make setup-vllm"):
        apply.default_python()


def test_an_interpreter_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"--python: {tmp_path} is no program"):
        apply.run([apply.Case("vllm", "dense", 1, python=tmp_path)])


def test_costs_of_ranks_are_summed() -> None:
    cost = Cost(1.0, 1.0)
    rank = {"cpu_s": {apply_ways.LEARNED: cost.cpu_s, "floor": 0.5}, "num_writes": 10, "learning": {}}
    rows = apply._rows(apply.Case("vllm", "moe", 2), {"rate": 0.01, "ranks": [rank, rank]})
    assert [(row["cpu_s"], row["ratio_to_learned"], row["num_writes"]) for row in rows] == [
        (2.0, 1.0, 20),
        (1.0, 0.5, 20),
    ]
