"""Tasks of every rank of an FSDP2 world, from a configuration alone (DESIGN section 9)."""

from collections.abc import Iterator
from typing import Any

import torch

from dcr.errors import ConfigError
from dcr.indexmap import IndexMap
from dcr.model import TensorSpec
from dcr.source.plan import Plan
from dcr.source.task import AffineTask
from dcr_adapters.fsdp.mapping import chunk
from dcr_adapters.fsdp.model import served_dtype_of


def plan_fsdp(config: Any, num_ranks: int, dtype: str) -> Plan:
    """Plan for a ``PretrainedConfig`` of a causal language model, every parameter sharded on dim 0.

    Raises:
        ConfigError: a number of ranks below 1, or no such model.
    """
    from transformers import AutoModelForCausalLM

    if num_ranks < 1:
        raise ConfigError(f"--dp {num_ranks}: at least 1 rank")
    auto: Any = AutoModelForCausalLM
    try:
        with torch.device("meta"):
            model = auto.from_config(config)
    except ValueError as err:
        raise ConfigError(f"no causal language model for this configuration: {err}") from None
    direct: list[AffineTask] = []
    specs = []
    for spec, is_parameter in _specs(model, dtype):
        specs.append(spec)
        whole = not is_parameter or not spec.shape
        shards = [spec.num_elements] if whole else _shards(spec.shape, num_ranks)
        for rank, size in enumerate(shards):
            replicas = tuple(range(num_ranks)) if whole else (rank,)
            if size:
                index_map = IndexMap.identity(size)
                direct.append(AffineTask(spec.name, spec.name, spec.dtype, size, index_map, replicas))
    return Plan(tuple(specs), frozenset(), direct, (), num_ranks)


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


def _shards(shape: tuple[int, ...], num_ranks: int) -> list[int]:
    row = 1
    for size in shape[1:]:
        row *= size
    return [chunk(shape[0], num_ranks, rank)[1] * row for rank in range(num_ranks)]
