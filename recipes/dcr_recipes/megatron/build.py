"""The policy as a Megatron-core model in its own data parallelism, with its distributed optimizer."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dcr.errors import ConfigError
from dcr_adapters.megatron.meta import local_provider, without_cuda
from dcr_recipes.grpo.settings import GrpoSettings
from dcr_recipes.megatron.learner import MegatronLearner, Parts

if TYPE_CHECKING:
    from dcr_recipes.grpo.training import Start


@dataclass(frozen=True, slots=True)
class Degrees:
    """Ranks that share each layer, and stages of layers; all that is left is data parallel."""

    tensor: int = 1
    pipeline: int = 1


def megatron_learner(start: "Start", degrees: Degrees) -> MegatronLearner:
    """Put ``start``'s model (FP32, equal on all ranks) into Megatron over the default process group.

    FP32 masters are the start's weights, parameters their BF16 values; Adam.

    Raises:
        ConfigError: no bridge knows the model, or the batch cannot be shared evenly.
        UnsupportedPath: a layout that cannot be exact.
    """
    from megatron.core import parallel_state, tensor_parallel

    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=degrees.tensor, pipeline_model_parallel_size=degrees.pipeline
    )
    tensor_parallel.model_parallel_cuda_manual_seed(1)  # nothing is drawn: weights come from the start
    num_groups = start.settings.groups_per_rank(parallel_state.get_data_parallel_world_size())
    with tempfile.TemporaryDirectory(prefix="dcr-start-") as folder:
        bridge = _bridge(start.model, Path(folder))
        model = _stage(bridge, degrees)
        bridge.load_hf_weights([model])
        bridge.hf_pretrained.state  # noqa: B018 -- names of the checkpoint are read before it is removed
    masters = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    chunks = [_in_data_parallelism(model)]
    optimizer = _optimizer(chunks, start.settings)
    optimizer.reload_model_params(masters)
    num_rows = {name: tensor.shape[0] for name, tensor in start.model.state_dict().items()}
    return MegatronLearner(Parts(bridge, chunks, optimizer, num_rows), start.settings, num_groups)


def _bridge(model: torch.nn.Module, folder: Path) -> Any:
    """The Bridge over a checkpoint of ``model`` in ``folder``."""
    from megatron.bridge import AutoBridge

    model.save_pretrained(folder)  # type: ignore[operator]  # a transformers model
    try:
        return AutoBridge.from_hf_pretrained(str(folder))
    except ValueError as err:
        raise ConfigError(f"model: no Megatron-Bridge knows it: {' '.join(str(err).split())}") from None


def _stage(bridge: Any, degrees: Degrees) -> Any:
    """This rank's stage in FP32; its weights are zero."""
    from megatron.core import parallel_state

    provider = local_provider(bridge)
    provider.tensor_model_parallel_size = degrees.tensor
    provider.pipeline_model_parallel_size = degrees.pipeline
    provider.sequence_parallel = False
    provider.bf16 = True
    provider.params_dtype = torch.float32
    provider.pipeline_dtype = torch.bfloat16
    provider.variable_seq_lengths = degrees.pipeline > 1  # prompts in words have their own lengths
    provider.should_pad_vocab = degrees.tensor > 1
    with without_cuda():
        model = provider.provide(
            pre_process=parallel_state.is_pipeline_first_stage(),
            post_process=parallel_state.is_pipeline_last_stage(),
        )
    for parameter in model.parameters():
        parameter.data.zero_()  # padded rows are loaded from nowhere
    return model


def _in_data_parallelism(model: Any) -> torch.nn.Module:
    """``model`` with BF16 parameters, from now on."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.transformer.module import Float16Module

    config = model.config
    config.params_dtype = torch.bfloat16
    ddp = DistributedDataParallelConfig(use_distributed_optimizer=True, overlap_grad_reduce=False)
    made: torch.nn.Module = DistributedDataParallel(config, ddp, Float16Module(config, model))
    return made


def _optimizer(chunks: Sequence[torch.nn.Module], settings: GrpoSettings) -> Any:
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    options = OptimizerConfig(
        optimizer="adam",
        lr=settings.lr,
        weight_decay=settings.weight_decay,
        bf16=True,
        params_dtype=torch.bfloat16,
        use_distributed_optimizer=True,
        clip_grad=settings.max_grad_norm,
    )
    return get_megatron_optimizer(options, chunks)
