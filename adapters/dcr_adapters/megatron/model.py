"""A Megatron model's conversion tasks on this rank, classified; set-up, with collectives (DESIGN R4)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from dcr.errors import UnsupportedPath
from dcr.model import TensorSpec
from dcr_adapters.megatron.classify import Classified, Setting, classify, names_of
from dcr_adapters.megatron.ranks import Degrees, Grid, Place, grid_of

_WRAPPED = ".to_wrap."
"""Between the name of a module with an adapter and that of its own parameter."""

_GROUPS = ("tp", "cp", "pp", "ep", "expt_tp", "dp_cp", "expt_dp")


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """One conversion task whose parameter this rank holds."""

    index: int
    task: Any
    parameter: "Parameter"
    classified: Classified
    places: Mapping[bool, Place]
    alias: str | None


@dataclass(frozen=True, slots=True)
class Parameter:
    """Where a live parameter or buffer is; buffers may be replaced, so it is looked up again."""

    name: str
    module: torch.nn.Module
    attribute: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    def live(self) -> torch.Tensor:
        """What the attribute holds now.

        Raises:
            UnsupportedPath: shape or dtype are not the declared ones any more.
        """
        tensor: torch.Tensor = getattr(self.module, self.attribute)
        if tuple(tensor.shape) != self.shape or tensor.dtype != self.dtype:
            raise UnsupportedPath(
                f"parameter {self.name!r} is declared {self.dtype} {self.shape} but holds {tensor.dtype} "
                f"{tuple(tensor.shape)}; make a new source"
            )
        return tensor


def model_bridge_of(bridge: Any) -> Any:
    """The model's bridge behind an ``AutoBridge``."""
    return bridge._model_bridge


def conversion_tasks(bridge: Any, chunks: Sequence[torch.nn.Module]) -> list[Any]:
    """The Bridge's tasks for all parameters of all stages; collective over pipeline stages."""
    from transformers import PretrainedConfig

    if isinstance(bridge.hf_pretrained, PretrainedConfig):
        from megatron.bridge.models.conversion.utils import unwrap_model

        made = model_bridge_of(bridge).build_conversion_tasks(
            bridge.hf_pretrained, unwrap_model(list(chunks))
        )
    else:
        made = bridge.get_conversion_tasks(list(chunks))
    return [task for task in made if task is not None]


def setting_of(bridge: Any, chunks: Sequence[torch.nn.Module], classification: str) -> Setting:
    """What all tasks of the model share."""
    from megatron.bridge.models.conversion.utils import unwrap_model

    config = unwrap_model(list(chunks))[0].config
    hf = getattr(bridge.hf_pretrained, "config", bridge.hf_pretrained)
    text = hf.get_text_config() if hasattr(hf, "get_text_config") else hf
    return Setting(
        bridge=model_bridge_of(bridge),
        vocab_size=getattr(text, "vocab_size", None),
        num_experts=int(getattr(config, "num_moe_experts", None) or 0),
        classification=classification,
        hf_state=getattr(bridge.hf_pretrained, "state", {}),
        adapters=_adapters(chunks),
        names={id(tensor): name for name, tensor in global_state(chunks)},
    )


def grid_of_model(chunks: Sequence[torch.nn.Module]) -> Grid:
    """Layout of the ranks, from the process groups of the model or of Megatron's parallel state.

    Raises:
        UnsupportedPath: the groups are laid out in no known order.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return Grid(Degrees())
    from megatron.bridge.models.conversion.utils import unwrap_model
    from megatron.core.process_groups_config import ProcessGroupCollection

    own = getattr(unwrap_model(list(chunks))[0], "pg_collection", None)
    default: Any = None
    groups: dict[str, tuple[int, ...]] = {}
    for name in _GROUPS:
        group = getattr(own, name, None)
        if group is None:
            default = default or ProcessGroupCollection.use_mpu_process_groups(list(_GROUPS))
            group = getattr(default, name)
        groups[name] = tuple(dist.get_process_group_ranks(group))
    return grid_of(groups, dist.get_rank(), dist.get_world_size())


def settle_dtypes(chunks: Sequence[torch.nn.Module]) -> None:
    """Give buffers the dtype that they will have from the first forward pass on.

    Megatron's wrapper for mixed precision casts a router's bias, and the router takes it back to FP32 when
    it is first used: what is served would change its dtype in the midst of a run.
    """
    for chunk in chunks:
        for module in chunk.modules():
            keep: Any = getattr(module, "_maintain_float32_expert_bias", None)
            if keep is not None:
                keep()


def find(
    bridge: Any, chunks: Sequence[torch.nn.Module], tasks: Sequence[Any], setting: Setting
) -> Iterator[Found]:
    """Every one of the Bridge's ``tasks`` whose parameter is on this rank.

    Raises:
        UnsupportedPath: a layout cannot be exact.
    """
    rank = dist.get_rank() if dist.is_initialized() else 0
    grid = grid_of_model(chunks)
    own = model_bridge_of(bridge)
    tied = _registry_of_tied(own, chunks)
    for index, task in enumerate(tasks):
        if task.param_weight is None or own._should_skip_mtp_duplicate_embedding_export(task, list(chunks)):
            continue
        _refuse_dtensor(task)
        expert = bool(task.mapping.is_expert)
        places = {split: grid.place(rank, expert=expert, split=split) for split in (True, False)}
        shape = tuple(task.param_weight.shape)
        classified = classify(task, setting, shape=shape, size=places[True].size, rank=places[True].rank)
        alias = own._get_tied_output_hf_name(task, tied) if tied is not None else None
        alias = alias if _emits(bridge, alias) else None
        yield Found(index, task, _parameter(task), classified, places, alias)


def alias_of(found: Found, name: str) -> str | None:
    """The tied output head's name, if ``name`` is the mapping's own; a hook may add copies of it."""
    return found.alias if name in names_of(found.task.mapping) else None


def served_spec(name: str, shape: tuple[int, ...], dtype: torch.dtype, alias: str | None) -> TensorSpec:
    """Spec of a canonical tensor."""
    return TensorSpec(name, shape, str(dtype).removeprefix("torch."), (alias,) if alias else ())


def _parameter(task: Any) -> Parameter:
    attribute = task.param_name.rsplit(".", 1)[-1]
    module, weight = task.megatron_module, task.param_weight
    if not hasattr(module, attribute) or getattr(module, attribute) is not weight:
        raise UnsupportedPath(
            f"parameter {task.global_param_name!r} is not attribute {attribute!r} of its module "
            f"{type(module).__name__}; it cannot be read again after a training step"
        )
    return Parameter(task.global_param_name, module, attribute, tuple(weight.shape), weight.dtype)


def _refuse_dtensor(task: Any) -> None:
    from torch.distributed.tensor import DTensor

    if isinstance(task.param_weight, DTensor):
        raise UnsupportedPath(
            f"parameter {task.global_param_name!r} is a DTensor with placements "
            f"{tuple(task.param_weight.placements)}: Megatron-FSDP shards have no map here; "
            "use Megatron's distributed data parallel, or the fsdp trainer"
        )


def _registry_of_tied(own: Any, chunks: Sequence[torch.nn.Module]) -> Any:
    from megatron.bridge.models.conversion.utils import unwrap_model

    config = unwrap_model(list(chunks))[0].config
    return own.mapping_registry() if own._share_embeddings_and_output_weights(config) else None


def _emits(bridge: Any, alias: str | None) -> bool:
    """Whether the Bridge's export writes the tied output weight a second time."""
    state: Any = getattr(bridge.hf_pretrained, "state", None)
    if alias is None or not hasattr(state, "source"):
        return alias is not None
    return alias in state.source.get_all_keys()


def global_parameters(chunks: Sequence[torch.nn.Module]) -> Iterator[tuple[str, torch.Tensor]]:
    """This rank's parameters by the Bridge's global names: layers and experts are numbered over all ranks."""
    return _globally(chunks, torch.nn.Module.named_parameters)


def global_state(chunks: Sequence[torch.nn.Module]) -> Iterator[tuple[str, torch.Tensor]]:
    """The same, then this rank's buffers."""
    yield from global_parameters(chunks)
    yield from _globally(chunks, torch.nn.Module.named_buffers)


def _globally(
    chunks: Sequence[torch.nn.Module],
    listed: Callable[[torch.nn.Module], Iterator[tuple[str, torch.Tensor]]],
) -> Iterator[tuple[str, torch.Tensor]]:
    from megatron.bridge.models.conversion import model_bridge
    from megatron.bridge.models.conversion.utils import unwrap_model

    models = unwrap_model(list(chunks))
    number = model_bridge._megatron_local_name_to_global
    for stage, model in enumerate(models):
        for name, tensor in listed(model):
            yield number(models, models[0].config, _unwrapped(name), stage), tensor


def _adapters(chunks: Sequence[torch.nn.Module]) -> dict[str, tuple[str, ...]]:
    """Names of low-rank parameters by the name of the base parameter into which they are merged."""
    names = [name for name, _ in global_parameters(chunks)]
    found: dict[str, tuple[str, ...]] = {}
    for name in names:
        prefix, wrapped, _ = name.partition(_WRAPPED)
        if wrapped:
            found[name] = tuple(other for other in names if other.startswith(f"{prefix}.adapter"))
            if not found[name]:
                raise UnsupportedPath(
                    f"parameter {name!r} is wrapped, but has no parameters named {prefix}.adapter...: what "
                    "its export depends on is not known"
                )
    return found


def _unwrapped(name: str) -> str:
    while name.startswith("module."):
        name = name.removeprefix("module.")
    return name
