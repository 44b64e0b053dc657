"""Tiny Megatron models, and training steps of them with Megatron's own schedule and optimizers."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from tests.lanes.megatron.layouts import LOADED, VOCAB, Layout, hf_config

SEQUENCE = 16
BATCH = 2


def save_checkpoint(layout: Layout, folder: Path) -> None:
    """A random Hugging Face checkpoint."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(hf_config(layout)).to(torch.bfloat16)
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.02)
    model.save_pretrained(folder)


def build(layout: Layout, bridge: Any) -> tuple[list[torch.nn.Module], Any]:
    """This rank's chunks with their first weights, in Megatron's data parallelism, and the optimizer."""
    if layout.family == LOADED:
        config = _transformer(layout)
        models = [_chunk(layout, config, stage) for stage in range(layout.vpp)]
        bridge.load_hf_weights(models)
    else:
        models = _provided(layout, bridge)
        config = models[0].config
    if layout.lora:
        models = [_with_adapters(models)]
    return _wrapped(layout, config, models)


def _wrapped(layout: Layout, config: Any, models: list[torch.nn.Module]) -> tuple[list[torch.nn.Module], Any]:
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    ddp = DistributedDataParallelConfig(
        use_distributed_optimizer=layout.distributed_optimizer,
        overlap_grad_reduce=layout.overlap,
        overlap_param_gather=layout.overlap,
    )
    chunks = [DistributedDataParallel(config, ddp, model) for model in models]
    options = OptimizerConfig(
        optimizer="adam",
        lr=1e-3,
        bf16=True,
        params_dtype=torch.bfloat16,
        use_distributed_optimizer=layout.distributed_optimizer,
        overlap_param_gather=layout.overlap,
        clip_grad=1.0,
    )
    return chunks, get_megatron_optimizer(options, chunks)


def _with_adapters(models: list[torch.nn.Module]) -> torch.nn.Module:
    """The Bridge's low-rank adapters on attention; the base weights are frozen."""
    from megatron.bridge.peft import utils
    from megatron.bridge.peft.lora import LoRA

    utils.HAVE_TE = False  # its placeholders have no linear layers to compare with
    lora = LoRA(target_modules=["linear_qkv", "linear_proj"], dim=4, alpha=8)
    adapted: Any = lora(models[0], training=True)
    made: torch.nn.Module = adapted[0] if isinstance(adapted, list) else adapted
    return made


def _chunk(layout: Layout, config: Any, stage: int) -> torch.nn.Module:
    from megatron.core import parallel_state as ps
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    from megatron.core.models.gpt.gpt_model import GPTModel

    vp_stage = stage if layout.vpp > 1 else None
    pad = (
        128 * layout.degrees.tp if layout.degrees.tp > 1 else 1
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

    degrees = layout.degrees
    options: dict[str, Any] = {
        "num_layers": layout.num_layers,
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
        "tensor_model_parallel_size": degrees.tp,
        "pipeline_model_parallel_size": degrees.pp,
        "virtual_pipeline_model_parallel_size": layout.vpp if layout.vpp > 1 else None,
        "expert_model_parallel_size": degrees.ep,
        "expert_tensor_parallel_size": degrees.etp,
        "sequence_parallel": degrees.tp > 1 and layout.moe,
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
    if degrees.ep > 1 and degrees.etp > 1:  # gloo gathers tensors of one size only
        options |= {"moe_expert_capacity_factor": 2.0, "moe_pad_expert_input_to_capacity": True}
    config = TransformerConfig(**options)
    config.share_embeddings_and_output_weights = layout.tied
    return config


def _provided(layout: Layout, bridge: Any) -> list[torch.nn.Module]:
    """The model that the Bridge itself makes of its configuration, with Megatron's own layers."""
    from dcr_adapters.megatron.meta import local_provider, without_cuda

    provider = local_provider(bridge)
    provider.tensor_model_parallel_size = layout.degrees.tp
    provider.expert_model_parallel_size = layout.degrees.ep
    provider.expert_tensor_parallel_size = layout.degrees.etp
    provider.sequence_parallel = layout.degrees.tp > 1  # experts ask for it
    provider.bf16 = True
    with without_cuda():
        model: Any = provider.provide(pre_process=True, post_process=True)
    for index, (_, tensor) in enumerate([*model.named_parameters(), *model.named_buffers()]):
        tensor.data.copy_(noise(tensor, index) * 0.05)
    made: torch.nn.Module = model.to(torch.bfloat16)
    return [made]


def noise(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    """Random numbers of the tensor's shape; the same on every rank."""
    return torch.randn(tensor.shape, generator=torch.Generator().manual_seed(seed))


def train_step(chunks: list[torch.nn.Module], optimizer: Any, layout: Layout, step: int = 1) -> None:
    """Gradients, reduced as Megatron reduces them, and one Adam step; buffers change as well."""
    from megatron.core.distributed import finalize_model_grads

    for chunk in chunks:
        chunk.zero_grad_buffer()  # type: ignore[operator]
    optimizer.zero_grad()
    if layout.random:
        _random_gradients(chunks, step)
    else:
        _backward(chunks, layout, step)
    finalize_model_grads(chunks)
    optimizer.step()
    for chunk in chunks:
        for index, (_, buffer) in enumerate(chunk.named_buffers()):
            hit = noise(buffer, 1000 * step + index).abs() > 1.0
            buffer.data.copy_(torch.where(hit, noise(buffer, 2000 * step + index).to(buffer.dtype), buffer))


def _random_gradients(chunks: list[torch.nn.Module], step: int) -> None:
    """The same on every rank: what is replicated stays so."""
    for chunk in chunks:
        for index, parameter in enumerate(chunk.parameters()):
            gradient: Any = parameter.main_grad  # type: ignore[attr-defined]
            gradient.copy_(noise(parameter, 3000 * step + index))


def _backward(chunks: list[torch.nn.Module], layout: Layout, step: int) -> None:
    from megatron.core.pipeline_parallel import get_forward_backward_func

    generator = torch.Generator().manual_seed(7 + step)
    micro = layout.degrees.pp * 2 if layout.vpp > 1 else 1
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


def _forward(batches: Any, model: torch.nn.Module) -> tuple[torch.Tensor, Any]:
    tokens = next(batches)
    positions = torch.arange(SEQUENCE).unsqueeze(0).expand(BATCH, -1)
    mask = torch.triu(torch.ones(SEQUENCE, SEQUENCE, dtype=torch.bool), 1)[None, None]
    out = model(tokens[:, :-1].contiguous(), positions, mask, labels=tokens[:, 1:].contiguous())
    return out, partial(_loss)


def _loss(out: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    loss = out.float().mean()
    return loss, {"loss": loss.detach()}
