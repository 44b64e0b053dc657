"""Native loader of the hf runtime: a stock transformers model over packed storage (DESIGN R9, R20).

Serving runtimes keep sibling projections in one parameter. So does this one, and forward stays
untouched: each sibling sees its rows as a view. Which siblings are packed is data
(``configs/dcr_configs/runtime/hf.yaml``), not code.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import nn

from dcr.errors import ConfigError
from dcr.receiver.modules import resident_of

if TYPE_CHECKING:
    from transformers import PretrainedConfig

PackedTable: TypeAlias = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class Rows:
    """``num_rows`` rows from ``first_row`` of the packed parameter with this resident name."""

    resident: str
    first_row: int
    num_rows: int


def pack(model: nn.Module, packed: PackedTable) -> dict[str, Rows]:
    """Move sibling parameters into one parameter each; returns where every canonical name went.

    ``packed`` names a new child module and the siblings that it replaces, in storage order; it
    applies under every module that has all the siblings. Weights keep their values.

    Raises:
        ConfigError: siblings cannot share storage, or the new name is taken.
    """
    placed: dict[str, Rows] = {}
    for prefix, parent in list(model.named_modules()):
        children = dict(parent.named_children())
        for target, parts in packed.items():
            if parts and all(part in children for part in parts):
                placed |= _pack_siblings(f"{prefix}." if prefix else "", parent, target, parts)
    return placed


def _pack_siblings(prefix: str, parent: nn.Module, target: str, parts: Sequence[str]) -> dict[str, Rows]:
    if hasattr(parent, target):
        raise ConfigError(f"runtime.packed: {prefix}{target} exists already; choose another name")
    siblings = [parent.get_submodule(part) for part in parts]
    kinds = [sorted(name for name, _ in sibling.named_parameters(recurse=False)) for sibling in siblings]
    if any(kind != kinds[0] for kind in kinds):
        raise ConfigError(f"runtime.packed: {prefix}{{{','.join(parts)}}} have different parameters: {kinds}")
    holder = nn.Module()
    placed: dict[str, Rows] = {}
    for kind in kinds[0]:
        tensors = [sibling.get_parameter(kind).data for sibling in siblings]
        if len({(tensor.dtype, tensor.shape[1:]) for tensor in tensors}) > 1:
            raise ConfigError(f"runtime.packed: {prefix}{target}.{kind}: rows differ in dtype or width")
        whole = nn.Parameter(torch.cat(tensors), requires_grad=False)
        holder.register_parameter(kind, whole)
        first = 0
        for part, sibling, tensor in zip(parts, siblings, tensors, strict=True):
            delattr(sibling, kind)
            setattr(sibling, kind, whole.data.narrow(0, first, tensor.shape[0]))  # a plain attribute now
            placed[f"{prefix}{part}.{kind}"] = Rows(f"{prefix}{target}.{kind}", first, tensor.shape[0])
            first += tensor.shape[0]
    parent.add_module(target, holder)
    return placed


class HfLoader:
    """Implements ``dcr.receiver.ports.NativeLoader`` over ``model``, which it packs and owns."""

    def __init__(self, model: nn.Module, packed: PackedTable) -> None:
        """Pack ``model`` in place.

        Raises:
            ConfigError: the packed table does not fit the model.
        """
        self.model = model
        names: dict[int, str] = {}
        tied = model.named_parameters(remove_duplicate=False)
        self._tied = {name for name, param in tied if names.setdefault(id(param), name) != name}
        self._rows = pack(model, packed)

    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Copy each canonical tensor to its rows, or to the parameter of its name.

        Raises:
            ValueError: an unknown name, or a shape that is not the destination's.
        """
        parameters = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, weight in weights:
                if self.skips(name):
                    continue
                target = self._target(parameters, name)
                if target.shape != weight.shape:
                    raise ValueError(f"{name}: shape {tuple(weight.shape)}, expected {tuple(target.shape)}")
                target.copy_(weight)

    def resident(self) -> dict[str, torch.Tensor]:
        """Every parameter and buffer of the model, packed ones under their packed names."""
        return resident_of(self.model)

    def refusals(self) -> dict[str, str]:
        """Nothing beyond what the learning pass sees for itself."""
        return {}

    def skips(self, name: str) -> bool:
        """A further name of a tied parameter: its first name fills the storage."""
        return name in self._tied

    def synchronize(self) -> None:
        """Wait for the device; there is no post-load step."""
        if any(tensor.is_cuda for tensor in self.resident().values()):
            torch.cuda.synchronize()

    def _target(self, parameters: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
        if rows := self._rows.get(name):
            return parameters[rows.resident].data.narrow(0, rows.first_row, rows.num_rows)
        if name in parameters:
            return parameters[name].data
        raise ValueError(f"unknown weight {name!r}: the model has no parameter of that name")


def build(config: "str | Path | PretrainedConfig", packed: PackedTable, dtype: str) -> HfLoader:
    """A causal LM with random weights of ``dtype``, packed, in evaluation mode, on the CPU.

    ``config`` is a transformers configuration, or the path of a model folder or ``config.json``.

    Raises:
        ConfigError: there is no configuration at that path, or ``dtype`` or ``packed`` do not fit.
    """
    from transformers import AutoModelForCausalLM

    chosen = getattr(torch, dtype, None)
    if not isinstance(chosen, torch.dtype) or not chosen.is_floating_point:
        raise ConfigError(f"dtype {dtype!r} is no floating-point type of torch")
    if isinstance(config, str | Path):
        config = _read_config(Path(config))
    model = AutoModelForCausalLM.from_config(config, dtype=chosen)  # type: ignore[no-untyped-call]
    model.requires_grad_(False)
    return HfLoader(model.eval(), packed)


def _read_config(path: Path) -> "PretrainedConfig":
    from transformers import AutoConfig

    if not path.exists():
        raise ConfigError(f"model configuration {path} does not exist; give a folder or a config.json")
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError) as err:
        raise ConfigError(f"{path} holds no model configuration: {err}") from err
    return config
