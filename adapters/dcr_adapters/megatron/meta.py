"""A Megatron model without weights, from a Hugging Face configuration: one process, no GPU, no memory."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist

from dcr.errors import ConfigError
from dcr_adapters.megatron.cpu import Stream
from dcr_adapters.megatron.imports import import_bridge

_FUSIONS = (
    "gradient_accumulation_fusion", "moe_permute_fusion", "persist_layer_norm", "bias_dropout_fusion",
    "masked_softmax_fusion", "apply_rope_fusion", "bias_activation_fusion", "moe_grouped_gemm",
    "moe_shared_expert_overlap", "cross_entropy_loss_fusion",
)  # fmt: skip


_ATTENTION = ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN")


@contextmanager
def meta_model(config: Any) -> Iterator[tuple[Any, torch.nn.Module]]:
    """The Bridge of a ``PretrainedConfig`` and its model, whole on one rank and on the meta device.

    Layers are Megatron's own (no fused kernels), which have the weights of the fused ones.

    Raises:
        ConfigError: no bridge knows the architecture.
    """
    package = import_bridge()
    with _one_rank(), _no_attention_chosen():
        try:
            bridge = package.AutoBridge.from_hf_config(config)
        except ValueError as err:
            raise ConfigError(f"no Megatron-Bridge for this configuration: {err}") from None
        provider = local_provider(bridge)
        with torch.device("meta"), without_cuda():
            model = provider.provide(pre_process=True, post_process=True)
        yield bridge, model


class TELinear(torch.nn.Module):
    """The weight of Transformer Engine's linear layer, under the name by which the Bridge knows it."""

    def __init__(
        self, input_size: int, output_size: int, *, parallel_mode: str | None, config: Any, **_: object
    ) -> None:
        super().__init__()
        self.config = config
        self.parallel_mode = parallel_mode
        self.weight = torch.nn.Parameter(torch.empty(output_size, input_size, dtype=config.params_dtype))


@contextmanager
def without_cuda() -> Iterator[None]:
    """Where there is no CUDA: what layers ask for when they are built, and layers that need kernels."""
    if torch.cuda.is_available():
        yield
        return
    patches = _patches()
    kept = [(owner, name, vars(owner).get(name, _NOTHING)) for owner, name, _ in patches]
    for owner, name, value in patches:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, own in kept:
            if own is _NOTHING:
                delattr(owner, name)
            else:
                setattr(owner, name, own)


_NOTHING = object()


def _patches() -> list[tuple[Any, str, Any]]:
    """Owner, attribute and stand-in: devices and random states first, then norms and latent projections."""
    from megatron.core.extensions.transformer_engine import TENorm
    from megatron.core.post_training.modelopt.layers import Norm
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from megatron.core.transformer.moe import moe_layer
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    attend = DotProductAttention.__init__

    def with_channels(
        self: Any, *args: Any, k_channels: int | None = None, v_channels: int | None = None, **options: Any
    ) -> None:
        """Latent attention gives the widths of a head, which the plain one takes from the configuration."""
        del k_channels  # scores of any width are scaled as latent attention says
        attend(self, *args, **options)
        if v_channels is not None:
            self.hidden_size_per_partition = v_channels * self.num_attention_heads_per_partition

    norm = staticmethod(lambda _, *args, **options: WrappedTorchNorm(*args, **options))
    return [
        (torch.cuda, "Stream", Stream),
        (torch.cuda, "current_device", lambda: "cpu"),
        (random.get_cuda_rng_tracker(), "fork", lambda *_, **__: nullcontext()),
        (DotProductAttention, "__init__", with_channels),
        (TENorm, "__new__", norm),
        (Norm, "__new__", norm),
        (moe_layer, "HAVE_TE", True),
        (moe_layer, "TELinear", TELinear),
    ]


def local_provider(bridge: Any) -> Any:
    """The bridge's model provider, with options that need no kernels; none of them changes a weight."""
    provider = bridge.to_megatron_provider(load_weights=False)
    for option in _FUSIONS:
        if hasattr(provider, option):
            setattr(provider, option, False)
    provider.perform_initialization = False
    provider.use_cpu_initialization = True
    provider.params_dtype = torch.bfloat16
    if hasattr(provider, "transformer_layer_spec"):
        provider.transformer_layer_spec = _local_layers
    if hasattr(provider, "hybrid_stack_spec"):
        provider.hybrid_stack_spec = _local_hybrid_layers
    if hasattr(provider, "finalize"):
        provider.finalize()
    return provider


def _local_layers(config: Any, **options: Any) -> Any:
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec

    return get_gpt_decoder_block_spec(config, use_transformer_engine=False, **options)


def _local_hybrid_layers() -> Any:
    from megatron.core.post_training.modelopt.hybrid.model_specs import get_hybrid_stack_modelopt_spec

    return get_hybrid_stack_modelopt_spec(local_core_attention=True)


@contextmanager
def _no_attention_chosen() -> Iterator[None]:
    """Megatron leaves a model's kind of attention in the environment, and refuses another kind after it."""
    kept = {name: os.environ.pop(name) for name in list(os.environ) if name in _ATTENTION}
    try:
        yield
    finally:
        for name in _ATTENTION:
            os.environ.pop(name, None)
        os.environ.update(kept)


@contextmanager
def _one_rank() -> Iterator[None]:
    """A world of one, which the Bridge asks for its groups."""
    from megatron.core import parallel_state

    if dist.is_initialized():
        raise ConfigError("a plan is made in a process of its own; this one has a process group already")
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        parallel_state.initialize_model_parallel()
        yield
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()
