"""MegatronShards: a Megatron-core model as a ShardSource (paper section 5, DESIGN R4, R20, B1).

Everything about geometry is settled when the object is made, by all ranks together; afterwards
nothing of it communicates. Served values are those of the Bridge's own export: selected elements,
one added where a norm is zero-centred, then cast.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from dcr.errors import ConfigError, UnsupportedPath
from dcr.model import TensorSpec, digest_hex, stored_bits
from dcr.source.detect import Candidate
from dcr.source.residual import Part, ResidualConversion
from dcr.source.task import AffineTask
from dcr_adapters.megatron.classify import Direct, is_embedding_or_output
from dcr_adapters.megatron.export import Export, Position
from dcr_adapters.megatron.model import (
    Found,
    Parameter,
    alias_of,
    conversion_tasks,
    find,
    served_spec,
    setting_of,
    settle_dtypes,
)
from dcr_adapters.megatron.pending import refuse_pending
from dcr_adapters.megatron.pieces import Piece

SERVED_DTYPES = ("bfloat16", "float16", "float32")

_GLANCED = 16


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    """A piece and the parameter that it is taken from."""

    piece: Piece
    parameter: Parameter
    dtype: torch.dtype


class MegatronShards:
    """One rank's shards; implements ``dcr.source.residual.ResidualSource``. All ranks construct it together.

    ``bridge`` is a ``megatron.bridge.AutoBridge``, ``model`` the rank's chunk or list of chunks (one
    a virtual stage), wrapped or not. ``served_dtype`` casts every floating tensor; None serves what
    is stored, as the Bridge's export does. Canonical names are the Bridge's; a tied output head is
    an alias of the embedding.

    Raises:
        ConfigError: an unknown ``served_dtype`` or ``classification``.
        UnsupportedPath: a layout that cannot be exact, or, unless ``accept_residual``, tasks that
            direct projection cannot serve; names parameter, layout and reason.
    """

    def __init__(
        self,
        bridge: Any,
        model: torch.nn.Module | Sequence[torch.nn.Module],
        *,
        served_dtype: str | None = None,
        classification: str = "closed_form",
        accept_residual: bool = False,
    ) -> None:
        if served_dtype is not None and served_dtype not in SERVED_DTYPES:
            raise ConfigError(
                f"served_dtype {served_dtype!r} must be None or one of {', '.join(SERVED_DTYPES)}"
            )
        self._served = getattr(torch, served_dtype) if served_dtype else None
        self._chunks = [model] if isinstance(model, torch.nn.Module) else list(model)
        settle_dtypes(self._chunks)
        self._held: dict[str, _Held] = {}
        setting = setting_of(bridge, self._chunks, classification)
        every_task = conversion_tasks(bridge, self._chunks)
        parameters = list(find(bridge, self._chunks, every_task, setting))
        specs = self._take(parameters)
        left = _left(parameters, setting.vocab_size)
        every = _gathered((specs, _counted(self._tasks), left))
        direct = _merge([each[0] for each in every])
        self._conversions = tuple({each.key: each for part in every for each, _ in part[2]}.values())
        if self._conversions and not accept_residual:
            raise UnsupportedPath(_refusal(self._conversions))
        _require_complete(direct, [each[1] for each in every])
        self._export = Export(bridge, self._chunks, every_task)
        self._export.prepare({position for part in every for _, position in part[2]}, self._served)
        self._specs = (*direct, *self._export.specs)

    def tensors(self) -> tuple[TensorSpec, ...]:
        """Every canonical tensor, residual ones last; equal on all ranks."""
        return self._specs

    def tasks(self) -> Sequence[AffineTask]:
        """One task per parameter and canonical tensor of which this rank holds elements."""
        return self._tasks

    def conversions(self) -> Sequence[ResidualConversion]:
        """What direct projection cannot serve, on any rank; equal on all ranks."""
        return self._conversions

    def input_digests(self) -> Mapping[str, str]:
        """Digest of every input of a residual conversion of which this rank holds a shard."""
        return self._export.digests(name for each in self._conversions for name in each.inputs)

    def convert(self, names: Sequence[str]) -> Iterable[Part]:
        """The Bridge's export of these tensors, each on one rank. Collective: all ranks iterate it whole."""
        return self._export.parts(names)

    def read(self, task: AffineTask) -> Candidate:
        """Served bits [task.num_elements] of the live shard.

        They alias the weights where rows lie together and nothing is computed; a shard that is not on
        the host is given as it is. Thread-safe.

        Raises:
            UnsupportedPath: the parameter's shape or dtype is no longer the declared one.
        """
        return self.read_range(task, 0, task.num_elements)

    def read_range(self, task: AffineTask, start: int, stop: int) -> Candidate:
        """As ``read``, elements ``start .. stop - 1`` of the shard only.

        Raises:
            UnsupportedPath: as ``read``.
        """
        held = self._held[task.key]
        value = held.piece.take(held.parameter.live(), start, stop)
        if held.piece.plus_one:
            value = value + 1  # in the stored dtype, as the export does, before it is cast
        value = value.to(held.dtype)
        return stored_bits(value) if value.is_cpu else value.reshape(-1)

    def counters(self) -> str:
        """Digest of version counters and of a few elements of every parameter.

        Megatron's optimizers write through ``.data``, which no counter sees; the elements do.

        Raises:
            UnsupportedPath: parameters are still to be gathered by a hook of the next forward pass.
        """
        refuse_pending(self._chunks)
        parameters = {held.parameter.name: held.parameter for held in self._held.values()}
        lines = (f"{name} {_glance(parameter.live())}" for name, parameter in sorted(parameters.items()))
        return digest_hex("\n".join(lines).encode())

    def _take(self, parameters: Sequence[Found]) -> list[TensorSpec]:
        """Make the tasks that direct projection serves; the tensor of each."""
        direct = [
            (found, found.classified, piece)
            for found in parameters
            if isinstance(found.classified, Direct)
            for piece in found.classified.pieces
        ]
        self._tasks = tuple(self._add(*each) for each in direct)
        return [self._spec(found, piece) for found, _, piece in direct]

    def _add(self, found: Found, direct: Direct, piece: Piece) -> AffineTask:
        spec = self._spec(found, piece)
        task = AffineTask(
            key=f"{direct.key} -> {piece.name}",
            name=piece.name,
            dtype=spec.dtype,
            num_elements=piece.map.src_size,
            map=piece.map,
            replicas=found.places[piece.split].replicas,
            aliases=spec.aliases,
        )
        self._held[task.key] = _Held(piece, found.parameter, getattr(torch, spec.dtype))
        return task

    def _spec(self, found: Found, piece: Piece) -> TensorSpec:
        dtype = found.parameter.dtype
        if self._served is not None and dtype.is_floating_point:
            dtype = self._served
        return served_spec(piece.name, piece.shape, dtype, alias_of(found, piece.name))


def _left(parameters: Sequence[Found], vocab_size: int | None) -> list[tuple[ResidualConversion, Position]]:
    """What direct projection cannot serve, and where the Bridge's export has it."""
    left = []
    for found in parameters:
        if isinstance(found.classified, ResidualConversion):
            rows = vocab_size if is_embedding_or_output(found.task.param_weight) else None
            left.append((found.classified, Position(found.index, found.classified.outputs, rows)))
    return left


def _glance(tensor: torch.Tensor) -> str:
    """Version counter and some elements' bits."""
    flat = tensor.detach().reshape(-1)
    some = flat[:: max(1, flat.numel() // _GLANCED)][:_GLANCED]
    return f"{tensor._version} {stored_bits(some).tobytes().hex()}"


def _gathered(mine: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return [mine]
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    return every


def _merge(parts: Sequence[Sequence[TensorSpec]]) -> tuple[TensorSpec, ...]:
    """Specs of all ranks, each name once, in order of first appearance.

    Raises:
        UnsupportedPath: two parameters disagree about a tensor.
    """
    merged: dict[str, TensorSpec] = {}
    for spec in (spec for part in parts for spec in part):
        if merged.setdefault(spec.name, spec) != spec:
            raise UnsupportedPath(f"ranks disagree about {spec.name!r}: {merged[spec.name]} and {spec}")
    return tuple(merged.values())


def _counted(tasks: Sequence[AffineTask]) -> dict[str, int]:
    """Mapped elements by name, of the shards of which this rank is the first holder."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    counted: dict[str, int] = {}
    for task in tasks:
        if task.replicas[0] == rank:
            counted[task.name] = counted.get(task.name, 0) + task.map.num_mapped
    return counted


def _require_complete(specs: Sequence[TensorSpec], counts: Sequence[dict[str, int]]) -> None:
    """Refuse a layout whose shards, replicas counted once, are not as many elements as the tensor."""
    for spec in specs:
        covered = sum(count.get(spec.name, 0) for count in counts)
        if covered != spec.num_elements:
            raise UnsupportedPath(
                f"shards of {spec.name!r} hold {covered} of its {spec.num_elements} elements {spec.shape}: "
                "a parameter is missing, or is replicated where its mapping says it is split"
            )


def _refusal(residual: Sequence[ResidualConversion]) -> str:
    shown = "; ".join(f"{each.key!r} -> {', '.join(each.outputs)}: {each.reason}" for each in residual[:5])
    more = f"; and {len(residual) - 5} more" if len(residual) > 5 else ""
    return (
        f"{len(residual)} conversions need the residual path, which is off: {shown}{more}. Turn it on, or "
        "serve from a model whose weights select stored elements"
    )
