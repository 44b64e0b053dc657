"""``dcr plan`` through the real Bridge: the counts of the paper's Tables D.1 and D.2, and layouts refused."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dcr.errors import ConfigError, UnsupportedPath
from dcr.source.plan import PlanReport, report
from dcr_adapters.megatron.ranks import Degrees
from dcr_recipes.commands.plan import Request, default_ownership, make_plan, read_config

CONFIGS = Path(__file__).parents[2] / "data/plan"
QWEN = CONFIGS / "qwen3_30b_a3b.json"
HYBRID = CONFIGS / "nemotron_h_50176_experts.json"


def plan(config: Path, classification: str = "closed_form", **degrees: int) -> PlanReport:
    request = Request(config, "megatron", degrees, classification, "bfloat16")
    return report(make_plan(request), 0.01, default_ownership(classification))


@pytest.mark.parametrize(
    ("t", "delta", "total"), [(1, 18_721, 18_867), (4, 74_161, 74_307), (8, 148_081, 148_227)]
)
def test_the_published_classification_has_the_papers_counts(t: int, delta: int, total: int) -> None:
    got = plan(QWEN, "published", tp=t, etp=t)
    assert (got.num_tensors, got.num_affine, got.num_residual) == (18_867, 18_721, 146)
    assert (got.delta_items, got.delta_items + got.overwrite_items) == (delta, total)
    assert round(100 * got.bytes_residual / got.bytes_total, 2) == 3.69
    assert got.baseline_bytes_per_rank == (got.bytes_total + got.bytes_residual) // t


def test_closed_forms_leave_nothing_to_the_residual_path() -> None:
    got = plan(QWEN, tp=4, etp=4)
    assert (got.num_affine, got.num_residual, got.bytes_residual) == (18_867, 0, 0)
    # queries, keys, values, embedding and head have four shards each; routers may be cut for their owners
    assert 74_161 + 146 * 4 <= got.delta_items <= 74_161 + 146 * 4 + 3
    assert got.owner_bytes_max <= 1.05 * got.bytes_total / 4


@pytest.mark.parametrize(("dp", "by_names"), [(4, 1.056), (8, 1.059), (32, 1.306)])
def test_owners_of_replicas_have_equal_shares(dp: int, by_names: float) -> None:
    made = make_plan(Request(QWEN, "megatron", {"dp": dp}, "closed_form", "bfloat16"))
    cut, whole = report(made, 0.01), report(made, 0.01, "published")
    assert cut.owner_bytes_max <= 1.05 * cut.bytes_total / dp
    assert whole.owner_bytes_max * dp / whole.bytes_total == pytest.approx(by_names, abs=1e-3)


def test_padding_alone_is_no_item() -> None:
    """A vocabulary of 130 padded to 512: of four ranks two hold rows, in the embedding and in the head."""
    tiny = json.loads(QWEN.read_text()) | {"num_hidden_layers": 1, "num_experts": 2, "vocab_size": 130}
    split = plan_of(tiny, "published", tp=4, etp=4)
    # three more shards of each expert tensor, of queries, keys, values and output; one more with rows
    assert split.delta_items == plan_of(tiny).delta_items + 3 * (2 * 3 + 4) + 2 * 1


def _degrees(**degrees: Any) -> Degrees:
    return Degrees(**degrees)


def plan_of(fields: dict[str, Any], ownership: str = "balanced", **degrees: int) -> PlanReport:
    from transformers import AutoConfig

    from dcr_adapters.megatron.plan import plan_megatron

    config = AutoConfig.for_model(**fields)
    made = plan_megatron(config, _degrees(**degrees), "closed_form", "bfloat16")
    return report(made, 0.01, ownership)


@pytest.mark.slow
@pytest.mark.parametrize("t", [1, 8])
def test_a_state_space_hybrid_of_50176_expert_tensors(t: int) -> None:
    """The published rule is 50,176 t_e + 257 t + 405, and 185 residual: here the same but for what is split.

    By the Bridge's mapping objects 352 of the 662 other tensors are split, not 257: A_log, D, dt_bias
    and the gated norm of 48 state-space layers are ColumnParallelMapping (+192), so is the projection
    of the multi-token-prediction layer (+1); the 98 latent projections are duplicated (-98).
    """
    got = plan(HYBRID, "published", tp=t, etp=t)
    assert (got.num_tensors, got.num_residual) == (50_176 + 662 + 185, 185)
    assert got.delta_items == 50_176 * t + 352 * t + 310
    assert plan(HYBRID, tp=t, etp=t).num_residual == 0


@pytest.mark.slow
@pytest.mark.parametrize(("classification", "mean_gb"), [("closed_form", 35), ("published", 36)])
def test_a_checkpoint_of_1121_gb_on_32_ranks(classification: str, mean_gb: int) -> None:
    """The paper's figure is about 36 GB a rank, with 3.01% residual."""
    got = plan(HYBRID, classification, tp=8, ep=32, dp=4)
    assert round(got.bytes_total / 1e9) == 1121
    assert round(got.baseline_bytes_per_rank / 1e9) == mean_gb
    residual = got.bytes_residual / got.bytes_total
    assert residual == pytest.approx(0.0304 if classification == "published" else 0.0, abs=1e-4)


def test_experts_and_stages_are_spread_over_ranks() -> None:
    fields = json.loads(QWEN.read_text()) | {"num_hidden_layers": 4, "num_experts": 8, "vocab_size": 256}
    one, spread = plan_of(fields), plan_of(fields, tp=2, ep=2, pp=2, dp=2)
    assert spread.bytes_total == one.bytes_total
    assert spread.owner_bytes_min > 0
    assert spread.owner_bytes_max < one.bytes_total / 4


def test_latent_attention_and_buffers_are_direct() -> None:
    """DeepSeek-V3's shapes: low-rank queries, keys and values, and the routers' float32 biases."""
    fields: dict[str, Any] = {
        "model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 3,
        "hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 32,
        "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
        "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
        "moe_intermediate_size": 32, "intermediate_size": 64, "first_k_dense_replace": 1,
        "vocab_size": 256, "n_shared_experts": 1,
    }  # fmt: skip
    got = plan_of(fields, tp=2, etp=2)
    assert (got.num_residual, got.overwrite_items) == (0, 0)
    from transformers import AutoConfig

    from dcr_adapters.megatron.plan import plan_megatron

    made = plan_megatron(AutoConfig.for_model(**fields), Degrees(tp=2, etp=2), "closed_form", "bfloat16")
    biases = [spec for spec in made.tensors if spec.dtype == "float32"]
    assert [spec.shape for spec in biases] == [(4,), (4,)]


def test_layouts_that_cannot_be_are_refused() -> None:
    with pytest.raises(UnsupportedPath, match=r"parameter .* dim . cannot be split over 7 ranks"):
        plan(QWEN, tp=7)
    with pytest.raises(ConfigError, match="cannot be laid out over etp=1 x ep=3"):
        plan(QWEN, ep=3)
    with pytest.raises(ConfigError, match="a parallel degree is at least 1"):
        plan(QWEN, tp=0)


def test_an_architecture_without_a_bridge_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}))
    with pytest.raises(ConfigError, match="no Megatron-Bridge for this configuration"):
        plan(path)


def test_the_command_prints_one_json_object(tmp_path: Path) -> None:
    small = json.loads(QWEN.read_text()) | {"num_hidden_layers": 1, "num_experts": 2, "vocab_size": 256}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(small))
    words = ["plan", "--hf-config", str(path), "--trainer", "megatron", "--tp", "2", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "dcr_recipes.cli", *words], capture_output=True, text=True, check=True
    )
    answer = json.loads(done.stdout)
    assert answer["num_tensors"] == answer["num_affine"] == 2 * 3 + 3 + 1 + 1 + 4 + 1 + 2
    assert answer["items"]["overwrite"] == 0


def test_configurations_are_read_as_transformers_does() -> None:
    assert type(read_config(QWEN)).__name__ == "Qwen3MoeConfig"
