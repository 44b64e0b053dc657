"""Tasks of every rank of an FSDP2 world, from a configuration alone (DESIGN section 9)."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import torch

from dcr.errors import ConfigError, UnsupportedPath
from dcr.indexmap import IndexMap
from dcr.model import TensorSpec
from dcr.source.plan import Plan
from dcr.source.task import AffineTask
from dcr_adapters.fsdp.mapping import chunk
from dcr_adapters.fsdp.model import served_dtype_of

_FROM_THE_END = {"colwise": -2, "colwise_gather_output": -2, "rowwise": -1, "embedding_rowwise": -2}
"""Style in the model's own tensor-parallel plan -> the dim of a weight that is split, from the end."""
_WHOLE = ("replicated_with_grad_allreduce", "moe_tp_experts", "sequence_parallel")
"""Styles that split no parameter under their own name."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """``shards`` ranks cut every parameter on dim 0, ``tensor`` ranks cut layers, ``copies`` are alike."""

    shards: int = 1
    copies: int = 1
    tensor: int = 1

    def __post_init__(self) -> None:
        for name, size in (("--dp", self.shards), ("--dp-replicate", self.copies), ("--tp", self.tensor)):
            if size < 1:
                raise ConfigError(f"{name} {size}: at least 1 rank")

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.shards * self.copies * self.tensor

    def replicas(self, shard: int | None, tensor: int | None) -> tuple[int, ...]:
        """Sorted ranks at these places; None: at any. Ranks run over tensor, then shard, then copy."""
        shards = range(self.shards) if shard is None else (shard,)
        tensors = range(self.tensor) if tensor is None else (tensor,)
        places = product(range(self.copies), shards, tensors)
        return tuple((copy * self.shards + at) * self.tensor + part for copy, at, part in places)


def plan_fsdp(config: Any, mesh: Mesh, dtype: str) -> Plan:
    """Plan for a ``PretrainedConfig`` of a causal language model, every parameter sharded on dim 0.

    With tensor-parallel ranks the layers are cut as the model's own plan in transformers says.

    Raises:
        ConfigError: no such model, or it has no tensor-parallel plan.
        UnsupportedPath: the layout cannot be exact; names parameter, layout and reason.
    """
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    try:
        with torch.device("meta"):
            model = auto.from_config(config)
    except ValueError as err:
        raise ConfigError(f"no causal language model for this configuration: {err}") from None
    styles: Mapping[str, str] = (getattr(model, "tp_plan", None) or {}) if mesh.tensor > 1 else {}
    if mesh.tensor > 1 and not styles:
        raise ConfigError(
            f"--tp {mesh.tensor}: transformers has no tensor-parallel plan of {config.model_type}"
        )
    direct: list[AffineTask] = []
    specs = []
    for spec, is_parameter in _specs(model, dtype):
        specs.append(spec)
        if not is_parameter or not spec.shape:
            direct.append(_task(spec, spec.num_elements, mesh.replicas(None, None)))
        else:
            direct += _tasks(spec, _split_dim(spec, styles), mesh)
    return Plan(tuple(specs), frozenset(), [task for task in direct if task.num_elements], (), mesh.world)


def _tasks(spec: TensorSpec, split: int | None, mesh: Mesh) -> Iterator[AffineTask]:
    """One task a part of a parameter; the ranks of tensor parallelism cut before those of FSDP."""
    if split == 0 and mesh.shards > 1 and spec.shape[0] % (mesh.shards * mesh.tensor):
        raise UnsupportedPath(
            f"parameter {spec.name!r} of shape {spec.shape}: {spec.shape[0]} rows of dim 0 over --dp "
            f"{mesh.shards} x --tp {mesh.tensor} strided shards; torch places uneven ones wrongly: choose "
            "degrees that divide it"
        )
    for part in range(mesh.tensor if split is not None else 1):
        shape = list(spec.shape)
        if split is not None:
            shape[split] = chunk(shape[split], mesh.tensor, part)[1]
        for shard in range(mesh.shards):
            rows = chunk(shape[0], mesh.shards, shard)[1]
            replicas = mesh.replicas(shard, part if split is not None else None)
            yield _task(spec, rows * prod(shape[1:]), replicas)


def _task(spec: TensorSpec, num_elements: int, replicas: tuple[int, ...]) -> AffineTask:
    return AffineTask(
        spec.name, spec.name, spec.dtype, num_elements, IndexMap.identity(num_elements), replicas
    )


def _split_dim(spec: TensorSpec, styles: Mapping[str, str]) -> int | None:
    """The dim that tensor parallelism splits; None where every rank holds the whole parameter.

    Raises:
        UnsupportedPath: a style whose parts are no blocks of the tensor.
    """
    path, _, attribute = re.sub(r"\.\d+(?=\.|$)", ".*", spec.name).rpartition(".")
    style = styles.get(f"{path}.{attribute}") or styles.get(path)
    if style is None or style in _WHOLE:
        return None
    if style not in _FROM_THE_END:
        raise UnsupportedPath(
            f"parameter {spec.name!r} of shape {spec.shape}: --tp splits it as {style!r}, whose parts "
            "are no blocks which a DTensor can describe; plan it with --tp 1 or --trainer megatron"
        )
    rows = _FROM_THE_END[style] == -2
    if len(spec.shape) == 1:  # a bias: of the output's features
        return 0 if rows else None
    return len(spec.shape) + _FROM_THE_END[style]


def _specs(model: torch.nn.Module, dtype: str) -> Iterator[tuple[TensorSpec, bool]]:
    """Canonical tensors, and whether each is a parameter. Without storage, ties are told by the object."""
    places = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())
    names: dict[int, list[str]] = {}
    for name in model.state_dict():
        names.setdefault(id(places[name]), []).append(name)
    for name, *aliases in names.values():
        tensor = places[name]
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        served = served_dtype_of(name, tensor, is_parameter, dtype)
        yield TensorSpec(name, tuple(tensor.shape), served, tuple(aliases)), is_parameter
