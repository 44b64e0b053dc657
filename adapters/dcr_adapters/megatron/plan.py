"""Tasks of every rank of a layout, from a configuration alone, by the same classifier (DESIGN section 9)."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from dcr.errors import UnsupportedPath
from dcr.indexmap import IndexMap
from dcr.model import TensorSpec
from dcr.source.plan import Plan
from dcr.source.residual import ResidualConversion
from dcr.source.task import AffineTask
from dcr_adapters.megatron.classify import Setting, classify, is_embedding_or_output, names_of
from dcr_adapters.megatron.closed_form import definer
from dcr_adapters.megatron.mapped import kind_of
from dcr_adapters.megatron.meta import meta_model
from dcr_adapters.megatron.model import conversion_tasks, model_bridge_of, setting_of
from dcr_adapters.megatron.ranks import Degrees, Grid

Shard = tuple[str, tuple[int, ...], int, bool]
"""Canonical name and shape, local elements, and whether tensor parallelism splits the tensor."""


def plan_megatron(config: Any, degrees: Degrees, classification: str, dtype: str) -> Plan:
    """Plan for a ``PretrainedConfig``; parameters are served as ``dtype``, buffers as they are.

    Layers are given to pipeline stages in order and in equal bytes, which may differ from a
    training run's by a layer; that moves owners, no count.

    Raises:
        ConfigError: no bridge knows the architecture.
        UnsupportedPath: the layout cannot be exact.
    """
    with meta_model(config) as (bridge, model):
        setting = setting_of(bridge, [model], classification)
        tied = model_bridge_of(bridge).mapping_registry() if _is_tied(bridge, model) else None
        tasks = conversion_tasks(bridge, [model])
        tasks += _norms_beside_their_layer(bridge, model, tasks)
        return _Planner(Grid(degrees), setting, dtype, bridge, tied).plan(tasks)


@dataclass(frozen=True, slots=True, eq=False)
class _Planner:
    grid: Grid
    setting: Setting
    dtype: str
    bridge: Any
    tied: Any
    alike: dict[str, dict[Any, Any]] = field(default_factory=dict)  # shards of tasks of one form

    def plan(self, tasks: list[Any]) -> Plan:
        specs: dict[str, TensorSpec] = {}
        residual: set[str] = set()
        direct: list[AffineTask] = []
        inputs: list[AffineTask] = []
        for stage, task in self._staged(tasks):
            shards = self._shards(task)
            left = isinstance(shards, ResidualConversion)
            if isinstance(shards, ResidualConversion):
                residual.update(shards.outputs)
                inputs += self._source_tasks(task, stage)
                whole = replace(self.setting, classification="closed_form")
                shards = replace(self, setting=whole)._shards(task)
                if isinstance(shards, ResidualConversion):
                    raise UnsupportedPath(
                        f"parameter {shards.key!r}: {shards.reason}; the shapes of its outputs "
                        f"{shards.outputs} are not known without weights"
                    )
            for rank, made in enumerate(shards):
                for name, shape, _, _ in made:
                    specs.setdefault(name, self._spec(task, name, shape))
                if not left:
                    direct += self._direct(task, stage, rank, made)
        return Plan(tuple(specs.values()), frozenset(residual), direct, inputs, self.grid.degrees.world)

    def _staged(self, tasks: list[Any]) -> Iterator[tuple[int, Any]]:
        sizes = [prod(task.param_weight.shape) for task in tasks]
        total, done = sum(sizes), 0
        for task, size in zip(tasks, sizes, strict=True):
            yield min(done * self.grid.degrees.pp // max(total, 1), self.grid.degrees.pp - 1), task
            done += size

    def _shards(self, task: Any) -> list[list[Shard]] | ResidualConversion:
        """What each rank of the axis that splits the parameter holds, by that rank."""
        if definer(self.setting.bridge, _HOOK) is not definer_of_hook():
            return self._classified(task)
        names = names_of(task.mapping)
        alike = self.alike.setdefault(self.setting.classification, {})
        key = _form(task, self._local_shape(task), self._size(task))
        if key not in alike:
            made = self._classified(task)
            if isinstance(made, ResidualConversion) or not all(
                name in names for part in made for name, *_ in part
            ):
                return made
            alike[key] = [[(names.index(name), *rest) for name, *rest in part] for part in made]
        return [[(names[at], *rest) for at, *rest in part] for part in alike[key]]

    def _classified(self, task: Any) -> list[list[Shard]] | ResidualConversion:
        size, shape = self._size(task), self._local_shape(task)
        by_rank = []
        for rank in range(size):
            found = classify(task, self.setting, shape=shape, size=size, rank=rank)
            if isinstance(found, ResidualConversion):
                return found
            by_rank.append(
                [(piece.name, piece.shape, piece.map.src_size, piece.split) for piece in found.pieces]
            )
        return by_rank

    def _size(self, task: Any) -> int:
        degrees = self.grid.degrees
        return degrees.etp if task.mapping.is_expert else degrees.tp

    def _local_shape(self, task: Any) -> tuple[int, ...]:
        """Of a parameter that is whole now.

        Raises:
            UnsupportedPath: it cannot be split evenly.
        """
        size, shape = self._size(task), list(task.param_weight.shape)
        dim = split_dim(task)
        if dim is None or dim >= len(shape) or size == 1:
            return tuple(shape)
        if is_embedding_or_output(task.param_weight):
            multiple = 128 * size
            shape[dim] = -(-shape[dim] // multiple) * multiple
        if shape[dim] % size:
            raise UnsupportedPath(
                f"parameter {task.global_param_name!r} of shape {tuple(shape)}: dim {dim} cannot be split "
                f"over {size} ranks"
            )
        shape[dim] //= size
        return tuple(shape)

    def _direct(self, task: Any, stage: int, rank: int, shards: list[Shard]) -> list[AffineTask]:
        """Tasks of the shards that stand for something of their own: replicated ones once."""
        return [
            self._task(task, stage, rank, name=name, num_elements=num_elements, split=split)
            for name, _, num_elements, split in shards
            if split or rank == 0
        ]

    def _source_tasks(self, task: Any, stage: int) -> list[AffineTask]:
        shape, size = self._local_shape(task), self._size(task)
        split = split_dim(task) is not None and size > 1
        return [
            self._task(task, stage, rank, name=task.global_param_name, num_elements=prod(shape), split=split)
            for rank in (range(size) if split else range(1))
        ]

    def _task(
        self, task: Any, stage: int, rank: int, *, name: str, num_elements: int, split: bool
    ) -> AffineTask:
        expert = bool(task.mapping.is_expert)
        at = {"pp": stage} | ({"tp": rank} if split else {})
        if expert:
            at["ep"] = self._expert_rank(task)
        index_map = IndexMap.identity(num_elements)
        replicas = self.grid.ranks(expert=expert, **at)
        return AffineTask(
            f"{task.global_param_name} {rank}", name, self._served(task), num_elements, index_map, replicas
        )

    def _expert_rank(self, task: Any) -> int:
        from megatron.bridge.utils.common_utils import extract_expert_number_from_param

        expert = int(extract_expert_number_from_param(task.global_param_name))
        return expert * self.grid.degrees.ep // max(self.setting.num_experts, 1)

    def _served(self, task: Any) -> str:
        import torch

        own = task.param_weight.dtype
        is_cast = isinstance(task.param_weight, torch.nn.Parameter) and own.is_floating_point
        return self.dtype if is_cast else str(own).removeprefix("torch.")

    def _spec(self, task: Any, name: str, shape: tuple[int, ...]) -> TensorSpec:
        alias = None
        if self.tied is not None and name in names_of(task.mapping):
            alias = model_bridge_of(self.bridge)._get_tied_output_hf_name(task, self.tied)
        return TensorSpec(name, shape, self._served(task), (alias,) if alias else ())


_HOOK = "maybe_modify_converted_hf_weight"


def definer_of_hook() -> object:
    """The class whose hook on converted weights changes nothing."""
    from megatron.bridge.models.conversion.model_bridge import MegatronModelBridge

    return MegatronModelBridge


def _form(task: Any, shape: tuple[int, ...], size: int) -> tuple[Any, ...]:
    """Equal for tasks that differ in their names only: layers, experts."""
    mapping = task.mapping
    module = task.megatron_module
    kinds = (
        type(mapping),
        getattr(mapping, "permute_dims", None),
        type(module),
        getattr(module, "parallel_mode", None),
    )
    last = task.global_param_name.rpartition(".")[2].rstrip("0123456789")
    expert = names_of(mapping) if getattr(mapping, "is_grouped_export", False) else None
    marked = is_embedding_or_output(task.param_weight), str(task.param_weight.dtype)
    return (*kinds, last, expert and task.global_param_name, *marked, shape, size)


def split_dim(task: Any) -> int | None:
    """The dimension that tensor parallelism splits, from the mapping object and the module."""
    from megatron.bridge.models.conversion import param_mapping as bridge

    mapping = task.mapping
    if isinstance(mapping, bridge.DirectMapping | bridge.ReplicatedMapping):
        return None
    if isinstance(mapping, bridge.RowParallelMapping):
        kind = "row"
    elif isinstance(mapping, bridge.FusedGatedExpertMapping):
        kind = "column"
    else:
        kind = kind_of(mapping, task.megatron_module)
    if kind == "row":
        return 1 if task.param_weight.ndim > 1 else None
    return {"column": 0, "replicated": None}[kind]


def _norms_beside_their_layer(bridge: Any, model: Any, tasks: list[Any]) -> list[Any]:
    """Tasks of norms that fused layers would hold, where the Bridge maps only their name in those."""
    registry = model_bridge_of(bridge).mapping_registry()
    known = {task.global_param_name for task in tasks}
    found = []
    for name, parameter in model.named_parameters():
        for fused, alone in registry._SEPARATE_LAYERNORM_REWRITES:
            if name in known or not name.endswith(f".{alone}"):
                continue
            mapping = registry.megatron_to_hf_lookup(name.removesuffix(alone) + fused)
            if mapping is not None:
                module = model.get_submodule(name.rpartition(".")[0])
                found.append(_Alone(name, name, mapping, module, parameter))
                known.add(name)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Alone:
    """A conversion task, as far as it is asked here."""

    param_name: str
    global_param_name: str
    mapping: Any
    megatron_module: Any
    param_weight: Any
    export_hook: None = None


def _is_tied(bridge: Any, model: Any) -> bool:
    return bool(model_bridge_of(bridge)._share_embeddings_and_output_weights(model.config))
