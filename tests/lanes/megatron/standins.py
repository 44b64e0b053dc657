"""Mapping objects and modules outside any model."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Case:
    """A mapping object, the kind of its module, its configuration, and the whole weight."""

    mapping: Any
    kind: str
    config: Any
    shape: tuple[int, ...]
    size: int
    split: int | None = 0
    marks: dict[str, Any] = field(default_factory=dict)

    def local_shape(self) -> tuple[int, ...]:
        """Of one rank's shard."""
        shape = list(self.shape)
        if self.split is not None:
            assert shape[self.split] % self.size == 0
            shape[self.split] //= self.size
        return tuple(shape)

    def module(self) -> torch.nn.Module:
        """A module whose class name tells the Bridge how it is split."""
        names = {"column": "ColumnParallelLinear", "row": "RowParallelLinear", "replicated": "TopKRouter"}
        module: torch.nn.Module = type(names[self.kind], (torch.nn.Module,), {})()
        module.config = self.config
        return module

    def task(self, name: str | None = None) -> Any:
        """A conversion task of this rank."""
        weight = torch.nn.Parameter(torch.zeros(self.local_shape(), dtype=torch.bfloat16))
        for mark, value in self.marks.items():
            setattr(weight, mark, value)
        own = name or self.mapping.megatron_param
        return SimpleNamespace(
            param_name=own,
            global_param_name=own,
            mapping=self.mapping,
            megatron_module=self.module(),
            param_weight=weight,
            export_hook=None,
        )


def attention(heads_per_group: int, groups: int, head: int, **more: Any) -> Any:
    """A transformer configuration with grouped heads."""
    return SimpleNamespace(
        num_attention_heads=heads_per_group * groups,
        num_query_groups=groups,
        kv_channels=head,
        hidden_size=more.pop("hidden_size", 8),
        **more,
    )
