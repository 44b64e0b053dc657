"""``dcr plan`` without Megatron: FSDP2 worlds, mistakes, and where a Megatron plan is made."""

import json
from pathlib import Path
from typing import Any

import pytest

from dcr.errors import ConfigError
from dcr.indexmap import IndexMap
from dcr.model import TensorSpec
from dcr.source.plan import Plan, location_bits, report
from dcr.source.task import AffineTask
from dcr_adapters.fsdp.plan import Mesh, _tasks
from dcr_recipes.cli import main
from dcr_recipes.commands import plan as command

TINY: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 10, "hidden_size": 8, "intermediate_size": 12,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4,
    "tie_word_embeddings": False,
}  # fmt: skip


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY))
    return path


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["plan", *words])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_an_fsdp2_plan_counts_shards_with_elements(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--hf-config", str(config), "--trainer", "fsdp", "--json")
    _, one, _ = run(capsys, *words)
    code, three, _ = run(capsys, *words, "--dp", "3")
    single, answer = json.loads(one), json.loads(three)
    assert code == 0
    assert single["num_tensors"] == single["items"]["delta"] == answer["num_affine"] == 12
    assert answer["num_residual"] == answer["bytes_residual"] == answer["items"]["overwrite"] == 0
    assert answer["items"]["total"] == 12 * 3 - 2  # four rows of keys and of values: two, two, none
    assert answer["bytes_total"] == single["bytes_total"] == 2 * (2 * 80 + 64 + 32 + 32 + 64 + 3 * 96 + 3 * 8)
    assert answer["owner_bytes"]["min"] < answer["bytes_total"] / 3 < answer["owner_bytes"]["max"]
    assert answer["baseline_bytes_per_rank"] == answer["bytes_total"] // 3


def test_the_plan_is_told_in_words_too(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--hf-config", str(config), "--trainer", "fsdp", "--rate", "0.5")
    assert code == 0
    assert "12: 12 direct, 0 residual" in out
    assert "payload at 50% changed" in out


@pytest.mark.parametrize(
    ("content", "words", "reason"),
    [
        ("{", (), "--hf-config"),
        ("[]", (), "no 'model_type'"),
        ('{"model_type": "nobody"}', (), "nobody"),
        (None, ("--dp", "0"), "at least 1 rank"),
        (None, ("--pp", "2"), "--pp 2: --trainer fsdp has no such axis; it has --dp, --tp, --dp-replicate"),
        (None, ("--dp-replicate", "0"), "--dp-replicate 0: at least 1 rank"),
        (None, ("--classification", "published"), "published is Megatron's"),
        (None, ("--rate", "2"), "--rate 2"),
    ],
)
def test_mistakes_are_one_line(
    config: Path, capsys: pytest.CaptureFixture[str], content: str | None, words: tuple[str, ...], reason: str
) -> None:
    if content is not None:
        config.write_text(content)
    code, _, err = run(capsys, "--hf-config", str(config), "--trainer", "fsdp", *words)
    assert code == 2
    assert reason in err


def test_a_megatron_plan_needs_the_bridge_here_or_in_the_lane(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_has_bridge", lambda: False)
    monkeypatch.setattr("sys.prefix", str(tmp_path / ".venv"))
    words = ("--hf-config", str(config), "--trainer", "megatron")
    code, _, err = run(capsys, *words)
    assert code == 2
    assert "make setup-megatron" in err
    python = tmp_path / ".venv-megatron/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "$@"\nexit 5\n')
    python.chmod(0o755)
    monkeypatch.setattr("sys.argv", ["dcr", "plan", *words])
    assert main(["plan", *words]) == 5


def task(name: str, size: int, replicas: tuple[int, ...]) -> AffineTask:
    return AffineTask(name, name, "bfloat16", size, IndexMap.identity(size), replicas)


def test_a_residual_tensor_is_held_twice_and_sent_whole() -> None:
    specs = (TensorSpec("a", (4,), "bfloat16"), TensorSpec("b", (6,), "bfloat16"))
    made = Plan(
        specs, frozenset({"b"}), [task("a", 2, (0,)), task("a", 2, (1,))], [task("src", 6, (0, 1))], 2
    )
    got = report(made, 0.0)
    assert (got.delta_items, got.overwrite_items, got.num_affine, got.num_residual) == (2, 1, 1, 1)
    assert (got.bytes_total, got.bytes_residual, got.payload_bytes) == (20, 12, 0)
    assert got.baseline_bytes_per_rank == 16
    assert got.owner_bytes_min + got.owner_bytes_max == 32


def test_replicas_share_large_tensors_unless_published() -> None:
    specs = (TensorSpec("big", (1 << 20,), "bfloat16"), TensorSpec("small", (8,), "bfloat16"))
    tasks = [task("big", 1 << 20, (0, 1, 2, 3)), task("small", 8, (0, 1, 2, 3))]
    made = Plan(specs, frozenset(), tasks, (), 4)
    cut, whole = report(made, 0.0), report(made, 0.0, "published")
    assert (cut.delta_items, whole.delta_items) == (5, 2)
    assert cut.owner_bytes_max < 1.05 * cut.bytes_total / 4 < 0.3 * whole.owner_bytes_max
    with pytest.raises(ConfigError, match="'fair' must be one of balanced, published"):
        report(made, 0.0, "fair")


def test_location_bits_are_the_entropy_a_change() -> None:
    assert location_bits(0.5) == pytest.approx(2.0)
    assert location_bits(0.01) == pytest.approx(8.0793, abs=1e-4)
    assert location_bits(0.0) == location_bits(1.0) == 0.0


def test_a_request_that_no_trainer_can_plan_says_so(config: Path) -> None:
    request = command.Request(config, "fsdp", {"dp": 1, "ep": 4}, "closed_form", "bfloat16")
    with pytest.raises(ConfigError, match="--ep 4: --trainer fsdp has no such axis"):
        command.make_plan(request)
    request = command.Request(config, "megatron", {"dp_replicate": 2}, "closed_form", "bfloat16")
    with pytest.raises(ConfigError, match="--dp-replicate 2: --trainer megatron has no such axis"):
        command.make_plan(request)


def test_copies_of_a_sharded_model_add_owners_and_no_bytes(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--hf-config", str(config), "--trainer", "fsdp", "--json", "--dp", "2")
    plain, hybrid = (json.loads(run(capsys, *words, "--dp-replicate", copies)[1]) for copies in ("1", "3"))
    assert hybrid["bytes_total"] == plain["bytes_total"]
    assert hybrid["baseline_bytes_per_rank"] == plain["bytes_total"] // 6
    assert hybrid["owner_bytes"]["max"] < plain["owner_bytes"]["min"]
    assert hybrid["items"]["total"] >= plain["items"]["total"] == 24


def test_tensor_parallel_ranks_cut_layers_and_share_norms(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(json.dumps(TINY | {"vocab_size": 12}))
    words = ("--hf-config", str(config), "--trainer", "fsdp", "--json")
    one = json.loads(run(capsys, *words)[1])
    for dp, tp in ((1, 2), (2, 2)):
        got = json.loads(run(capsys, *words, "--tp", str(tp), "--dp", str(dp))[1])
        assert got["bytes_total"] == one["bytes_total"]
        # nine matrices have a part on every rank; three norms are cut over dp, once for all ranks of tp
        assert got["items"]["total"] == 9 * dp * tp + 3 * dp
        assert got["owner_bytes"]["min"] > 0


def test_parts_of_a_tensor_parallel_plan_are_those_of_dtensors() -> None:
    """Rows and columns of every part, for a weight that is split on either dim or not at all."""
    spec = TensorSpec("model.layers.0.mlp.down_proj.weight", (6, 8), "bfloat16")
    mesh = Mesh(shards=2, copies=2, tensor=2)
    columns = list(_tasks(spec, 1, mesh))
    assert [(task.num_elements, task.replicas) for task in columns] == [
        (12, (0, 4)), (12, (2, 6)), (12, (1, 5)), (12, (3, 7)),
    ]  # fmt: skip
    whole = list(_tasks(spec, None, mesh))
    assert [(task.num_elements, task.replicas) for task in whole] == [(24, (0, 1, 4, 5)), (24, (2, 3, 6, 7))]
    uneven = list(_tasks(TensorSpec("w", (5, 8), "bfloat16"), 0, Mesh(tensor=2)))
    assert [task.num_elements for task in uneven] == [24, 16]


def test_uneven_strided_shards_are_refused(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--hf-config", str(config), "--trainer", "fsdp", "--tp", "2", "--dp", "3")
    code, _, err = run(capsys, *words)
    assert code == 1
    assert "'model.embed_tokens.weight' of shape (10, 8): 10 rows of dim 0 over --dp 3 x --tp 2" in err


def test_experts_whose_parts_are_no_blocks_are_refused(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(json.dumps(TINY | {"model_type": "mixtral", "num_local_experts": 2, "vocab_size": 12}))
    words = ("--hf-config", str(config), "--trainer", "fsdp")
    code, _, err = run(capsys, *words, "--tp", "2")
    assert code == 1
    assert "mlp.experts.gate_up_proj' of shape (2, 24, 8): --tp splits it as 'packed_colwise'" in err


def test_a_model_without_a_tensor_parallel_plan_says_so(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(
        json.dumps({"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 12})
    )
    code, _, err = run(capsys, "--hf-config", str(config), "--trainer", "fsdp", "--tp", "2")
    assert code == 2
    assert "--tp 2: transformers has no tensor-parallel plan of gpt2" in err
