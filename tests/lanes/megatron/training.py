"""Tiny Megatron models from Hugging Face configurations, and one training step of them."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

VOCAB = 250
SEQUENCE = 16
BATCH = 2


@dataclass(frozen=True, slots=True)
class Layout:
    """Degrees of one world, the model, and what is special about it."""

    world: int = 2
    tp: int = 1
    pp: int = 1
    ep: int = 1
    etp: int = 1
    vpp: int = 1
    moe: bool = False
    tied: bool = False
    distributed_optimizer: bool = False
    groups: int = 4
    family: str = "qwen3"  # others are not trained but shaken, and have no vocabulary padding


LAYOUTS = {
    "one": Layout(world=1),
    "tp2": Layout(tp=2),
    "pp2": Layout(pp=2),
    "pp2-vpp2": Layout(pp=2, vpp=2),
    "pp2-tied": Layout(pp=2, tied=True),
    "tp2-tied": Layout(tp=2, tied=True),
    "ep2": Layout(ep=2, moe=True),
    "tp2-etp2": Layout(tp=2, etp=2, moe=True),
    "tp2-ep2": Layout(tp=2, ep=2, moe=True),
    "tp2-ep2-etp2": Layout(world=4, tp=2, ep=2, etp=2, moe=True),
    "dp2": Layout(distributed_optimizer=True),
    "dp2-tp2": Layout(world=4, tp=2, distributed_optimizer=True),
    "tp4-groups2": Layout(world=4, tp=4, groups=2),
    "mla-one": Layout(world=1, family="deepseek_v3"),
    "mla-tp2-ep2": Layout(tp=2, ep=2, family="deepseek_v3"),
    "hybrid-one": Layout(world=1, family="nemotron_h"),
    "hybrid-tp2": Layout(tp=2, etp=2, family="nemotron_h"),
}


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

    if layout.family != "qwen3":
        return AutoConfig.for_model(**FAMILIES[layout.family])
    common: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "num_hidden_layers": 4 if layout.vpp > 1 else 2,
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


def save_checkpoint(layout: Layout, folder: Path) -> None:
    """A random Hugging Face checkpoint."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(hf_config(layout)).to(torch.bfloat16)
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.02)
    model.save_pretrained(folder)


def build(layout: Layout) -> tuple[list[torch.nn.Module], Any]:
    """This rank's chunks in Megatron's data parallelism, and the optimizer."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    config = _transformer(layout)
    ddp = DistributedDataParallelConfig(
        use_distributed_optimizer=layout.distributed_optimizer, overlap_grad_reduce=False
    )
    chunks = [
        DistributedDataParallel(config, ddp, _chunk(layout, config, stage)) for stage in range(layout.vpp)
    ]
    options = OptimizerConfig(
        optimizer="adam",
        lr=1e-3,
        bf16=True,
        params_dtype=torch.bfloat16,
        use_distributed_optimizer=layout.distributed_optimizer,
        clip_grad=1.0,
    )
    return chunks, get_megatron_optimizer(options, chunks)


def _chunk(layout: Layout, config: Any, stage: int) -> torch.nn.Module:
    from megatron.core import parallel_state as ps
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    from megatron.core.models.gpt.gpt_model import GPTModel

    vp_stage = stage if layout.vpp > 1 else None
    pad = (
        128 * layout.tp if layout.tp > 1 else 1
    )  # the Bridge loads padded rows under tensor parallelism only
    spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, vp_stage=vp_stage)
    model: Any = GPTModel(
        config=config,
        transformer_layer_spec=spec,
        vocab_size=-(-VOCAB // pad) * pad,
        max_sequence_length=64,
        pre_process=ps.is_pipeline_first_stage(ignore_virtual=False, vp_stage=vp_stage),
        post_process=ps.is_pipeline_last_stage(ignore_virtual=False, vp_stage=vp_stage),
        parallel_output=True,
        share_embeddings_and_output_weights=layout.tied,
        position_embedding_type="rope",
        vp_stage=vp_stage,
    )
    made: torch.nn.Module = model.to(torch.bfloat16)
    return made


def _transformer(layout: Layout) -> Any:
    from megatron.core.transformer.transformer_config import TransformerConfig

    options: dict[str, Any] = {
        "num_layers": 4 if layout.vpp > 1 else 2,
        "hidden_size": 64,
        "ffn_hidden_size": 96,
        "num_attention_heads": 8,
        "num_query_groups": layout.groups,
        "kv_channels": 16,
        "gated_linear_unit": True,
        "activation_func": F.silu,
        "normalization": "RMSNorm",
        "add_bias_linear": False,
        "qk_layernorm": True,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "use_cpu_initialization": True,
        "params_dtype": torch.bfloat16,
        "pipeline_dtype": torch.bfloat16,
        "bf16": True,
        "tensor_model_parallel_size": layout.tp,
        "pipeline_model_parallel_size": layout.pp,
        "virtual_pipeline_model_parallel_size": layout.vpp if layout.vpp > 1 else None,
        "expert_model_parallel_size": layout.ep,
        "expert_tensor_parallel_size": layout.etp,
        "sequence_parallel": layout.tp > 1 and layout.moe,
        "layernorm_epsilon": 1e-6,
    }
    for fused in ("gradient_accumulation", "bias_activation", "masked_softmax", "bias_dropout"):
        options[f"{fused}_fusion"] = False
    options |= {"persist_layer_norm": False, "apply_rope_fusion": False}
    if layout.moe:
        options |= {
            "num_moe_experts": 4,
            "moe_router_topk": 2,
            "moe_ffn_hidden_size": 32,
            "moe_grouped_gemm": False,
            "moe_token_dispatcher_type": "alltoall",
            "moe_router_load_balancing_type": "none",
            "moe_aux_loss_coeff": 0.0,
            "moe_permute_fusion": False,
        }
    if layout.ep > 1 and layout.etp > 1:  # gloo gathers tensors of one size only
        options |= {"moe_expert_capacity_factor": 2.0, "moe_pad_expert_input_to_capacity": True}
    config = TransformerConfig(**options)
    config.share_embeddings_and_output_weights = layout.tied
    return config


def provide(layout: Layout, bridge: Any) -> list[torch.nn.Module]:
    """The model that the Bridge itself makes of its configuration, with Megatron's own layers."""
    from dcr_adapters.megatron.meta import local_provider, without_cuda

    provider = local_provider(bridge)
    provider.tensor_model_parallel_size = layout.tp
    provider.expert_model_parallel_size = layout.ep
    provider.expert_tensor_parallel_size = layout.etp
    provider.sequence_parallel = False
    with without_cuda():
        model: Any = provider.provide(pre_process=True, post_process=True)
    for index, (_, tensor) in enumerate([*model.named_parameters(), *model.named_buffers()]):
        tensor.data.copy_(noise(tensor, index))
    made: torch.nn.Module = model.to(torch.bfloat16)
    return [made]


def shake(chunks: list[torch.nn.Module]) -> None:
    """Change some elements of every parameter and buffer, replicas alike."""
    for chunk in chunks:
        for index, (_, tensor) in enumerate([*chunk.named_parameters(), *chunk.named_buffers()]):
            hit = noise(tensor, 1000 + index).abs() > 1.5
            tensor.data.copy_(torch.where(hit, noise(tensor, 2000 + index).to(tensor.dtype), tensor))


def noise(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    """Random numbers of the tensor's shape; the same on every rank."""
    return torch.randn(tensor.shape, generator=torch.Generator().manual_seed(seed))


def train_step(chunks: list[torch.nn.Module], optimizer: Any, layout: Layout) -> None:
    """Forward, backward, reduced gradients, one Adam step."""
    from megatron.core.distributed import finalize_model_grads
    from megatron.core.pipeline_parallel import get_forward_backward_func

    for chunk in chunks:
        chunk.zero_grad_buffer()  # type: ignore[operator]
    optimizer.zero_grad()
    generator = torch.Generator().manual_seed(7)
    micro = layout.pp * 2 if layout.vpp > 1 else 1
    batches = [torch.randint(0, VOCAB, (BATCH, SEQUENCE + 1), generator=generator) for _ in range(micro)]
    get_forward_backward_func()(
        forward_step_func=_forward,
        data_iterator=[iter(batches) for _ in chunks] if len(chunks) > 1 else iter(batches),
        model=chunks,
        num_microbatches=micro,
        seq_length=SEQUENCE,
        micro_batch_size=BATCH,
        forward_only=False,
    )
    finalize_model_grads(chunks)
    optimizer.step()


def _forward(batches: Any, model: torch.nn.Module) -> tuple[torch.Tensor, Any]:
    tokens = next(batches)
    positions = torch.arange(SEQUENCE).unsqueeze(0).expand(BATCH, -1)
    mask = torch.triu(torch.ones(SEQUENCE, SEQUENCE, dtype=torch.bool), 1)[None, None]
    out = model(tokens[:, :-1].contiguous(), positions, mask, labels=tokens[:, 1:].contiguous())
    return out, partial(_loss)


def _loss(out: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    loss = out.float().mean()
    return loss, {"loss": loss.detach()}
