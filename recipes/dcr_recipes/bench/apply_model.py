"""Models to apply changes to: a dense one and a mixture of experts, of about 1 GB in BF16 each.

Names, shapes and configurations are Hugging Face's for Qwen3, which both runtimes load without code of ours.
"""

from dataclasses import dataclass
from typing import Any

from dcr.model import TensorSpec

_DTYPE = "bfloat16"


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a model; ``num_experts`` 0 is a dense one, whose ``ffn`` is that of the layer."""

    vocabulary: int
    hidden: int
    ffn: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_experts: int = 0


SHAPES = {
    "dense": Shape(32768, 2048, 6144, 8, 16, 8, 128),
    "moe": Shape(32768, 1024, 512, 5, 8, 4, 128, num_experts=64),
}
QUICK_SHAPES = {
    "dense": Shape(1024, 128, 256, 2, 4, 2, 32),
    "moe": Shape(1024, 128, 64, 2, 4, 2, 32, num_experts=8),
}


def shape_of(model: str, *, quick: bool) -> Shape:
    """The shape by name."""
    return (QUICK_SHAPES if quick else SHAPES)[model]


def specs_of(shape: Shape) -> tuple[TensorSpec, ...]:
    """Every checkpoint tensor."""
    outer = {
        "model.embed_tokens.weight": (shape.vocabulary, shape.hidden),
        "lm_head.weight": (shape.vocabulary, shape.hidden),
        "model.norm.weight": (shape.hidden,),
    }
    specs = [TensorSpec(name, dims, _DTYPE) for name, dims in outer.items()]
    for layer in range(shape.num_layers):
        prefix = f"model.layers.{layer}."
        named = {**_attention(shape), **(_experts(shape) if shape.num_experts else _mlp(shape, "mlp"))}
        specs += [TensorSpec(prefix + name, dims, _DTYPE) for name, dims in named.items()]
    return tuple(specs)


def _attention(shape: Shape) -> dict[str, tuple[int, ...]]:
    rows, kv_rows = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    return {
        "input_layernorm.weight": (shape.hidden,),
        "post_attention_layernorm.weight": (shape.hidden,),
        "self_attn.q_proj.weight": (rows, shape.hidden),
        "self_attn.k_proj.weight": (kv_rows, shape.hidden),
        "self_attn.v_proj.weight": (kv_rows, shape.hidden),
        "self_attn.o_proj.weight": (shape.hidden, rows),
        "self_attn.q_norm.weight": (shape.head_dim,),
        "self_attn.k_norm.weight": (shape.head_dim,),
    }


def _mlp(shape: Shape, prefix: str) -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}.gate_proj.weight": (shape.ffn, shape.hidden),
        f"{prefix}.up_proj.weight": (shape.ffn, shape.hidden),
        f"{prefix}.down_proj.weight": (shape.hidden, shape.ffn),
    }


def _experts(shape: Shape) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {"mlp.gate.weight": (shape.num_experts, shape.hidden)}
    for expert in range(shape.num_experts):
        found |= _mlp(shape, f"mlp.experts.{expert}")
    return found


def config_of(shape: Shape) -> Any:
    """A transformers configuration of this shape."""
    from transformers import Qwen3Config, Qwen3MoeConfig

    common: dict[str, Any] = {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "dtype": _DTYPE,
    }
    if not shape.num_experts:
        return Qwen3Config(
            **common, intermediate_size=shape.ffn, max_window_layers=shape.num_layers,
            architectures=["Qwen3ForCausalLM"],
        )  # fmt: skip
    return Qwen3MoeConfig(
        **common, intermediate_size=3 * shape.hidden, moe_intermediate_size=shape.ffn,
        num_experts=shape.num_experts, num_experts_per_tok=4, decoder_sparse_step=1, norm_topk_prob=True,
        architectures=["Qwen3MoeForCausalLM"],
    )  # fmt: skip
