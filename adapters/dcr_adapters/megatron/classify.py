"""Direct or residual, decided for each conversion task from its mapping object (DESIGN R4, R5, B1).

``closed_form`` projects directly whatever selects source elements; ``published`` keeps the paper's
rule: only the plain shardings and gated halves are direct, and neither embedding nor output head.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

from dcr.errors import ConfigError, UnsupportedPath
from dcr.model import known_dtypes
from dcr.source.residual import ResidualConversion
from dcr_adapters.megatron.closed_form import definer, handler_of
from dcr_adapters.megatron.copies import with_copies
from dcr_adapters.megatron.mapped import Source
from dcr_adapters.megatron.pieces import Piece, Stack, Target, piece_of, transposed
from dcr_adapters.megatron.probe import Selection, localize, output_names, select
from dcr_adapters.megatron.selections import cropped, pieces_of_selections

if TYPE_CHECKING:
    import torch

CLASSIFICATIONS = ("closed_form", "published")


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """What the classification of a model's tasks has in common.

    ``bridge`` is the model's bridge, ``vocab_size`` the canonical one, ``adapters`` the low-rank
    parameters that are merged into each base parameter, ``names`` the global name of every parameter
    and buffer of this rank, by its ``id``.
    """

    bridge: Any
    vocab_size: int | None
    num_experts: int
    classification: str = "closed_form"
    hf_state: Mapping[str, Any] = field(default_factory=dict)
    adapters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    names: Mapping[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.classification not in CLASSIFICATIONS:
            raise ConfigError(
                f"classification {self.classification!r} must be one of {', '.join(CLASSIFICATIONS)}"
            )


@dataclass(frozen=True, slots=True, eq=False)
class Direct:
    """A task whose outputs select elements of one parameter; ``pieces`` are this rank's, maybe none."""

    key: str
    pieces: tuple[Piece, ...]


Classified: TypeAlias = Direct | ResidualConversion


def classify(task: Any, setting: Setting, *, shape: tuple[int, ...], size: int, rank: int) -> Classified:
    """Classify a task with a local ``shape``, on ``rank`` of ``size`` of the axis that splits its parameter.

    Raises:
        UnsupportedPath: the layout cannot be exact; names parameter, layout and reason.
    """
    mapping = localize(task.mapping, size, rank)
    source = Source(mapping, task.megatron_module, shape, size, rank)
    reason = _reason_for_residual(task, setting)
    if reason is not None:
        return _residual(task, setting, source, reason)
    handler = handler_of(task.mapping)
    targets = handler(source) if handler is not None else None
    targets = _with_added(task, setting, targets) if targets is not None else None
    if targets is not None:
        return Direct(task.global_param_name, _pieces(task, setting, source, targets))
    return _probed(task, setting, source)


def names_of(mapping: Any) -> tuple[str, ...]:
    """Canonical names of a mapping object, as it declares them."""
    names = mapping.hf_param
    return (names,) if isinstance(names, str) else tuple(names.values())


def is_embedding_or_output(parameter: object) -> bool:
    """Whether Megatron marks the parameter so; its rows are a vocabulary, which may be padded."""
    return bool(getattr(parameter, "is_embedding_or_output_parameter", False))


def _reason_for_residual(task: Any, setting: Setting) -> str | None:
    dtype = str(task.param_weight.dtype).removeprefix("torch.")
    if dtype not in known_dtypes() or hasattr(task.param_weight, "_quantizer"):
        return f"quantized storage ({type(task.param_weight).__name__}, {dtype}): values depend on a scale"
    if task.global_param_name in setting.adapters:
        return "adapters are merged into it"
    if task.export_hook is not None:
        return "a custom export hook"
    if setting.classification == "published":
        return _published_reason(task)
    return None


def _published_reason(task: Any) -> str | None:
    from megatron.bridge.models.conversion import param_mapping as bridge

    direct = (
        bridge.DirectMapping, bridge.ColumnParallelMapping, bridge.RowParallelMapping,
        bridge.ReplicatedMapping, bridge.AutoMapping, bridge.GatedMLPMapping,
    )  # fmt: skip
    if definer(task.mapping, "megatron_to_hf") not in direct:
        return f"{type(task.mapping).__name__} is outside the published classes"
    if getattr(task.mapping, "permute_dims", None) is not None:
        return "transposed"
    if getattr(task.mapping, "is_grouped_export", False):
        return "stacked experts"
    if is_embedding_or_output(task.param_weight):
        return "embedding or output head: padding, tied weights"
    return None


def _residual(task: Any, setting: Setting, source: Source, reason: str) -> ResidualConversion:
    name = task.global_param_name
    inputs = (name, *setting.adapters.get(name, ()), *_beside(task, setting))
    outputs = _outputs(task, setting, source)
    return ResidualConversion(name, tuple(dict.fromkeys(inputs)), outputs, reason)


def _beside(task: Any, setting: Setting) -> Iterator[str]:
    """Global names of all that the task's module holds, any of which its mapping may read."""
    module = task.megatron_module
    if module is None:
        return
    prefix = "".join(task.global_param_name.rpartition(".")[:2])
    for own, tensor in chain(module.named_parameters(), module.named_buffers()):
        yield setting.names.get(id(tensor), prefix + own)


def _outputs(task: Any, setting: Setting, source: Source) -> tuple[str, ...]:
    """Canonical names that the export gives: the hooks' too, which may add a scale or another copy."""

    def hooked(converted: "dict[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
        kept = _modify(task, setting, converted)
        if task.export_hook is None:
            return kept
        return {new: each for name, old in kept.items() for new, each in task.export_hook(name, old)}

    declared = names_of(task.mapping)
    if getattr(task.mapping, "is_grouped_export", False):
        return declared
    return output_names(source.mapping, source.module, source.shape, hooked) or declared


def _with_added(task: Any, setting: Setting, targets: tuple[Target, ...]) -> tuple[Target, ...] | None:
    """``targets`` and the copies of them that the bridge's hook adds; None if it does anything else."""
    from megatron.bridge.models.conversion.model_bridge import MegatronModelBridge

    if getattr(task.mapping, "is_grouped_export", False):  # stacked instead; the hook never sees them
        return targets
    if definer(setting.bridge, "maybe_modify_converted_hf_weight") is MegatronModelBridge:
        return targets
    return with_copies(targets, lambda converted: _modify(task, setting, converted))


def _modify(task: Any, setting: Setting, converted: "dict[str, torch.Tensor]") -> dict[str, Any]:
    """The hook on a copy of the bridge, which may keep what it has seen."""
    bridge = copy.copy(setting.bridge)
    return dict(bridge.maybe_modify_converted_hf_weight(task, converted, setting.hf_state))


def _pieces(task: Any, setting: Setting, source: Source, targets: tuple[Target, ...]) -> tuple[Piece, ...]:
    width = 1
    for size in source.shape[1:]:
        width *= size
    num_rows = _vocabulary(task, setting, targets)
    stack = _stack(task, setting)
    pieces = []
    for target in targets:
        if stack is not None and _turned(task, setting, target):
            target = transposed(target)
        piece = piece_of(target, width, stack=stack, num_rows=num_rows)
        if piece is not None:
            pieces.append(piece)
    return tuple(pieces)


def _vocabulary(task: Any, setting: Setting, targets: Sequence[Target | Selection]) -> int | None:
    """Canonical rows of an embedding or output head, whose shards are padded for the trainer."""
    if setting.vocab_size is None or not is_embedding_or_output(task.param_weight):
        return None
    for target in targets:
        if target.shape[0] < setting.vocab_size:
            raise UnsupportedPath(
                f"parameter {task.global_param_name!r} holds {target.shape[0]} rows for a vocabulary of "
                f"{setting.vocab_size}; it belongs to another configuration"
            )
    return setting.vocab_size


def _stack(task: Any, setting: Setting) -> Stack | None:
    if not getattr(task.mapping, "is_grouped_export", False):
        return None
    from megatron.bridge.utils.common_utils import extract_expert_number_from_param

    try:
        expert = int(extract_expert_number_from_param(task.global_param_name))
    except ValueError:
        raise UnsupportedPath(
            f"parameter {task.global_param_name!r} is part of {names_of(task.mapping)}, but its name has no "
            "expert number, so that the Bridge leaves it out"
        ) from None
    return Stack(expert, setting.num_experts)


def _turned(task: Any, setting: Setting, target: Target) -> bool:
    """Whether the Bridge transposes the stacked matrices: where a checkpoint tells the shape, if it fits."""
    if not getattr(task.mapping, "transpose_on_export", False):
        return False
    if target.name not in setting.hf_state:
        return True
    expected = tuple(setting.hf_state[target.name].shape)
    shape = (setting.num_experts, *target.shape)
    return shape != expected and (*shape[:-2], shape[-1], shape[-2]) == expected


def _probed(task: Any, setting: Setting, source: Source) -> Classified:
    stack = _stack(task, setting)
    hooked = None if stack is not None else lambda converted: _modify(task, setting, converted)
    found = select(source.mapping, source.module, source.shape, hooked)
    if isinstance(found, str):
        return _residual(task, setting, source, f"{type(task.mapping).__name__}: {found}")
    num_rows = _vocabulary(task, setting, found)
    if num_rows is not None:
        found = tuple(cropped(each, num_rows) for each in found)
    pieces = pieces_of_selections(found, source.shape, stack)
    if isinstance(pieces, str):
        return _residual(task, setting, source, f"{type(task.mapping).__name__}: {pieces}")
    if stack is not None and getattr(task.mapping, "transpose_on_export", False):
        return _residual(task, setting, source, f"{type(task.mapping).__name__}: stacked and transposed")
    return Direct(task.global_param_name, pieces)
