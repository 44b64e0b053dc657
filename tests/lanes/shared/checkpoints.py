"""Random small checkpoints of the families that the lane loads, and changed versions of them."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from dcr.model import Bits, Catalogue, TensorSpec, stored_bits

VOCAB = 1024
EOS = VOCAB - 2
_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "bos_token_id": None,
    "eos_token_id": EOS,
}


@dataclass(frozen=True, slots=True)
class Family:
    """``build`` makes a transformers configuration and the model's class."""

    tied: bool
    build: Callable[[], tuple[Any, Any]]


def _qwen2() -> tuple[Any, Any]:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2Config(**_COMMON, intermediate_size=256, tie_word_embeddings=True), Qwen2ForCausalLM


def _qwen3() -> tuple[Any, Any]:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(**_COMMON, head_dim=32, intermediate_size=256, tie_word_embeddings=True)
    return config, Qwen3ForCausalLM


def _llama() -> tuple[Any, Any]:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaConfig(**_COMMON, intermediate_size=256, tie_word_embeddings=False), LlamaForCausalLM


def _qwen3moe() -> tuple[Any, Any]:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = Qwen3MoeConfig(
        **_COMMON,
        intermediate_size=256,
        moe_intermediate_size=64,
        num_experts=8,
        num_experts_per_tok=2,
        decoder_sparse_step=1,
        norm_topk_prob=True,
        tie_word_embeddings=False,
    )
    return config, Qwen3MoeForCausalLM


def _nemotron_h(n_groups: int) -> tuple[Any, Any]:
    from transformers import NemotronHConfig, NemotronHForCausalLM

    common = {name: value for name, value in _COMMON.items() if name != "num_hidden_layers"}
    config = NemotronHConfig(
        **{**common, "bos_token_id": 1},
        layers_block_type=["linear_attention", "full_attention", "linear_attention", "mlp"],
        head_dim=32,
        intermediate_size=256,
        ssm_state_size=16,
        mamba_num_heads=8,
        mamba_head_dim=32,
        n_groups=n_groups,
        chunk_size=16,
        n_routed_experts=4,
        moe_intermediate_size=64,
        moe_shared_expert_intermediate_size=64,
        num_experts_per_tok=2,
        pad_token_id=0,
    )
    return config, NemotronHForCausalLM


def _deepseek_v2() -> tuple[Any, Any]:
    from transformers import DeepseekV2Config, DeepseekV2ForCausalLM

    config = DeepseekV2Config(
        **{**_COMMON, "num_key_value_heads": 4},
        intermediate_size=256,
        moe_intermediate_size=64,
        first_k_dense_replace=2,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_shared_experts=1,
        q_lora_rank=None,
        kv_lora_rank=64,
        qk_nope_head_dim=32,
        qk_rope_head_dim=32,
        v_head_dim=32,
        tie_word_embeddings=False,
    )
    return config, DeepseekV2ForCausalLM


def _qwen3_next() -> tuple[Any, Any]:
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

    config = Qwen3NextConfig(
        **_COMMON,
        head_dim=32,
        intermediate_size=256,
        moe_intermediate_size=64,
        shared_expert_intermediate_size=64,
        num_experts=4,
        num_experts_per_tok=2,
        linear_num_value_heads=4,
        linear_num_key_heads=2,
        linear_key_head_dim=32,
        linear_value_head_dim=32,
        linear_conv_kernel_dim=4,
        layer_types=["linear_attention", "full_attention"],
        tie_word_embeddings=False,
    )
    return config, Qwen3NextForCausalLM


FURTHER = {"deepseek_v2": Family(False, _deepseek_v2), "qwen3_next": Family(False, _qwen3_next)}
"""Absorbed projections; convolutions that a kernel wants packed."""
FAMILIES = {
    "qwen2": Family(True, _qwen2),
    "qwen3": Family(True, _qwen3),
    "llama": Family(False, _llama),
    "qwen3moe": Family(False, _qwen3moe),
    "nemotron_h-g2": Family(False, lambda: _nemotron_h(2)),
    "nemotron_h-g1": Family(False, lambda: _nemotron_h(1)),
}


def make(folder: Path, family: str, seed: int = 0) -> Path:
    """Write a random bfloat16 checkpoint and a word tokenizer; returns its folder."""
    path = folder / family
    if path.exists():
        return path
    torch.manual_seed(seed)
    config, kind = {**FAMILIES, **FURTHER}[family].build()
    model = kind(config).to(torch.bfloat16)
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(_random(name, value))
    model.save_pretrained(path)
    _write_tokenizer(path)
    return path


def _random(name: str, value: torch.Tensor) -> torch.Tensor:
    if "A_log" in name:
        return torch.rand(value.shape) * 2
    spread = 0.05 if value.dim() > 1 else 0.1
    return torch.randn(value.shape) * spread + (1.0 if "norm" in name else 0.0)


def _write_tokenizer(path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"t{i}": i for i in range(EOS)} | {"<eos>": EOS, "<unk>": VOCAB - 1}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    kind: Any = PreTrainedTokenizerFast
    kind(tokenizer_object=tokenizer, eos_token="<eos>", unk_token="<unk>", pad_token="<eos>").save_pretrained(
        path
    )


def changed(old: Path, new: Path, *, rate: float = 0.02, seed: int = 7) -> Path:
    """A checkpoint ``new`` that is ``flipped`` from ``old``."""
    return new if new.exists() else write(new, flipped(version(old), rate=rate, seed=seed), like=old)


def flipped(old: dict[str, Bits], *, rate: float, seed: int) -> dict[str, Bits]:
    """``old`` with about ``rate`` of every tensor's stored words changed in low bits, some in sign."""
    rng = np.random.default_rng(seed)
    new = {}
    for name, bits in old.items():
        words = bits.copy()
        at = rng.choice(words.size, max(1, int(words.size * rate)), replace=False, shuffle=False)
        flips = rng.integers(1, 8, at.size, dtype=words.dtype)
        flips[::17] ^= words.dtype.type(1 << (8 * words.itemsize - 1))
        words[at] ^= flips
        new[name] = words
    return new


def write(new: Path, bits: dict[str, Bits], *, like: Path) -> Path:
    """A checkpoint of other weights, in all else as ``like``."""
    new.mkdir()
    for file in like.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, new)
    tensors = {
        name: torch.from_numpy(bits[name].view(f"i{bits[name].itemsize}")).view(value.dtype).view(value.shape)
        for name, value in load_file(like / "model.safetensors").items()
    }
    save_file(tensors, new / "model.safetensors", metadata={"format": "pt"})
    return new


def catalogue(path: Path, run: str = "a" * 32) -> Catalogue:
    """What a trainer of this checkpoint publishes; a tied output head is an alias of the embedding."""
    config = json.loads((path / "config.json").read_text())
    specs = []
    for name, value in load_file(path / "model.safetensors").items():
        embedding = name.rsplit(".", 2)[-2] in ("embed_tokens", "embeddings")
        tied = config.get("tie_word_embeddings") and embedding
        kind = str(value.dtype).removeprefix("torch.")
        specs.append(TensorSpec(name, tuple(value.shape), kind, ("lm_head.weight",) if tied else ()))
    return Catalogue(run, "0123456789abcdef0123456789abcdef", tuple(sorted(specs, key=lambda s: s.name)))


def version(path: Path) -> dict[str, Bits]:
    """Flat stored bits by canonical name."""
    tensors = load_file(path / "model.safetensors")
    return {name: stored_bits(value) for name, value in sorted(tensors.items())}


def weights(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """The checkpoint as its file has it."""
    yield from load_file(path / "model.safetensors").items()
