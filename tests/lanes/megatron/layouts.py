"""The worlds of this lane: degrees, tiny models as Hugging Face configurations, and what each trains with."""

from dataclasses import dataclass, field
from typing import Any

from dcr_adapters.megatron.ranks import Degrees

VOCAB = 250
LOADED = "qwen3"
"""The family whose weights are loaded from a checkpoint, with a vocabulary that must be padded."""


@dataclass(frozen=True, slots=True)
class Layout:
    """One world: its degrees, its model, and what is special about it.

    ``published``: conversions and tensors that the published classification leaves to the residual path.
    ``refit``: it is also refitted with that classification. ``lora``: low-rank adapters alone are trained.
    ``random``: the optimizer steps on random gradients, since the forward pass of a layer is a kernel.
    """

    degrees: Degrees = field(default_factory=Degrees)
    vpp: int = 1
    moe: bool = False
    tied: bool = False
    distributed_optimizer: bool = False
    overlap: bool = False
    groups: int = 4
    family: str = LOADED
    published: tuple[int, int] = (4, 8)
    refit: bool = False
    lora: bool = False
    random: bool = False

    @property
    def num_layers(self) -> int:
        """Of a trained model."""
        return 4 if self.vpp > 1 else 2


d = Degrees

LAYOUTS = {
    "one": Layout(),
    "tp2": Layout(d(tp=2), refit=True),
    "pp2": Layout(d(pp=2), refit=True),
    "pp2-vpp2": Layout(d(pp=2), vpp=2, published=(6, 14)),
    "pp2-tied": Layout(d(pp=2), tied=True, published=(3, 7)),
    "tp2-tied": Layout(d(tp=2), tied=True, published=(3, 7)),
    "ep2": Layout(d(dp=2, ep=2), moe=True, refit=True),
    "tp2-etp2": Layout(d(tp=2, etp=2), moe=True),
    "tp2-ep2": Layout(d(tp=2, ep=2), moe=True),
    "tp2-ep2-etp2": Layout(d(tp=2, dp=2, ep=2, etp=2), moe=True),
    "dp2": Layout(d(dp=2), distributed_optimizer=True),
    "dp2-plain": Layout(d(dp=2)),
    "dp2-overlap": Layout(d(dp=2), distributed_optimizer=True, overlap=True),
    "dp2-tp2": Layout(d(dp=2, tp=2), distributed_optimizer=True),
    "tp4-groups2": Layout(d(tp=4), groups=2),
    "mla-one": Layout(family="deepseek_v3", published=(2, 2)),
    "mla-tp2-ep2": Layout(d(tp=2, ep=2), family="deepseek_v3", published=(2, 2)),
    "hybrid-one": Layout(family="nemotron_h", random=True, published=(9, 11)),
    "hybrid-tp2": Layout(d(tp=2, etp=2), family="nemotron_h", random=True, published=(9, 11)),
}

ADAPTED = {"lora-tp2": Layout(d(tp=2), lora=True), "lora-pp2": Layout(d(pp=2), lora=True)}
"""Adapters on attention: merged into it by the export, so that it needs the residual path."""


FAMILIES: dict[str, dict[str, Any]] = {
    # latent attention, shared and routed experts, a router's float32 bias
    "deepseek_v3": {
        "model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 2,
        "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 32,
        "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
        "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
        "moe_intermediate_size": 32, "intermediate_size": 64, "first_k_dense_replace": 1,
        "vocab_size": 256, "n_shared_experts": 1, "max_position_embeddings": 64, "dtype": "bfloat16",
        "tie_word_embeddings": False, "rope_scaling": None,
    },
    # state-space, attention and expert layers
    "nemotron_h": {
        "model_type": "nemotron_h", "architectures": ["NemotronHForCausalLM"], "num_hidden_layers": 4,
        "hybrid_override_pattern": "ME*M", "hidden_size": 64, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "mamba_num_heads": 8, "mamba_head_dim": 16,
        "ssm_state_size": 8, "n_groups": 2, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 64, "intermediate_size": 64,
        "vocab_size": 256, "dtype": "bfloat16", "tie_word_embeddings": False,
    },
}  # fmt: skip


def hf_config(layout: Layout) -> Any:
    """Qwen3, dense or mixture of experts, with a vocabulary that tensor parallelism must pad."""
    from transformers import AutoConfig, Qwen3Config, Qwen3MoeConfig

    if layout.family != LOADED:
        return AutoConfig.for_model(**FAMILIES[layout.family])
    common: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "num_hidden_layers": layout.num_layers,
        "num_attention_heads": 8,
        "num_key_value_heads": layout.groups,
        "head_dim": 16,
        "max_position_embeddings": 64,
        "tie_word_embeddings": layout.tied,
        "intermediate_size": 96,
        "dtype": "bfloat16",
    }
    if not layout.moe:
        return Qwen3Config(architectures=["Qwen3ForCausalLM"], **common)
    moe: dict[str, Any] = {
        "moe_intermediate_size": 32,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
    }
    return Qwen3MoeConfig(architectures=["Qwen3MoeForCausalLM"], decoder_sparse_step=1, **common, **moe)
