"""Maps of mapping classes without a closed form: tokens are pushed through the Bridge's own code.

Every local element becomes a random token that names its tensor-parallel rank as well. A canonical
tensor that consists of tokens only is a selection of source elements; anything else (scaled, added,
quantized) is not, and is told apart because it is no token. Communication is replaced: what another
rank would send is computed, since its tokens differ by a constant.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from dcr.indexmap import Indices
from dcr.model import stored_bits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    Modify: TypeAlias = Callable[[dict[str, torch.Tensor]], Mapping[str, torch.Tensor]]

MOST_ELEMENTS = 1 << 26
_SHIFT = 48  # a token's rank stands above its 48 random bits


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """A canonical tensor that selects source elements: local flat index [N] -> canonical, -1 where unused."""

    name: str
    shape: tuple[int, ...]
    table: Indices
    split: bool


def localize(mapping: Any, size: int, rank: int) -> Any:
    """A copy of the mapping object that stands on ``rank`` of ``size`` and communicates with nobody."""
    from megatron.bridge.models.conversion.param_mapping import MegatronParamMapping

    own: type[Any] = type(mapping)
    local: Any = own if issubclass(own, _Local) else _local_class(own)  # type: ignore[arg-type]
    clone = local.__new__(local)
    vars(clone).update(vars(mapping))
    clone._dcr_size, clone._dcr_rank = size, rank
    for name, value in list(vars(clone).items()):
        if isinstance(value, MegatronParamMapping):
            setattr(clone, name, localize(value, size, rank))
    return clone


def select(
    mapping: Any,
    module: object,
    shape: tuple[int, ...],
    modify: "Modify | None" = None,
) -> tuple[Selection, ...] | str:
    """What a localized mapping makes of a local parameter of ``shape``, or why it is no selection.

    ``modify`` is applied to the converted tensors. Memory: about 60 bytes an element of the whole tensor.
    """
    size, rank = mapping._dcr_size, mapping._dcr_rank
    count = int(np.prod(shape, dtype=np.int64))
    if count * size > MOST_ELEMENTS:
        return f"{count * size} elements are too many to trace through an unknown mapping class"
    tokens = _tokens(count)
    here = _traced(mapping, module, tokens.reshape(shape), modify)
    there = here
    if size > 1 and not isinstance(here, str):
        other = localize(mapping, size, (rank + 1) % size)
        there = _traced(other, module, tokens.reshape(shape), modify)
    if isinstance(here, str) or isinstance(there, str):
        return here if isinstance(here, str) else str(there)
    order = np.argsort(tokens)
    found = []
    constants = _constants(mapping, module, shape, modify, here)
    for name, tensor in here.items():
        if name in constants:
            continue
        # what is gathered is the same on all ranks; what is replicated comes from one's own
        split = size > 1 and name in there and same_bits(tensor, there[name])
        selection = _read(name, tensor, (tokens, order), (size, rank), split)
        if isinstance(selection, str):
            return selection
        found.append(selection)
    return tuple(found)


def output_names(
    mapping: Any, module: object, shape: tuple[int, ...], modify: "Modify | None" = None
) -> tuple[str, ...]:
    """Names of all that a localized mapping and ``modify`` make of a parameter; none if they fail.

    Tried without memory first, then on zeros, for what looks at values.
    """
    import torch

    zeros = torch.zeros((), dtype=torch.bfloat16)
    found = _converted(mapping, module, zeros.to("meta").expand(shape), modify)
    if isinstance(found, str) and int(np.prod(shape, dtype=np.int64)) * mapping._dcr_size <= MOST_ELEMENTS:
        found = _converted(mapping, module, zeros.expand(shape), modify)
    return () if isinstance(found, str) else tuple(found)


def same_bits(one: "torch.Tensor", other: "torch.Tensor") -> bool:
    """Whether two tensors are stored alike, of whatever dtype; NaNs may be equal, meta tensors never are."""
    alike = one.dtype == other.dtype and one.shape == other.shape and not (one.is_meta or other.is_meta)
    return alike and np.array_equal(stored_bits(one), stored_bits(other))


def _tokens(count: int) -> Indices:
    """Different random numbers [count] of 48 bits; the same for the same count."""
    draws = np.unique(np.random.default_rng(count).integers(0, 1 << _SHIFT, count * 2 + 8, dtype=np.int64))
    return np.random.default_rng(1).permutation(draws)[:count]


def _traced(
    mapping: Any, module: object, tokens: Indices, modify: "Modify | None"
) -> "dict[str, torch.Tensor] | str":
    """Converted tokens of the rank on which the mapping stands, or the error."""
    import torch

    local = torch.from_numpy(tokens + (np.int64(mapping._dcr_rank) << _SHIFT))
    return _converted(mapping, module, local, modify)


def _converted(
    mapping: Any, module: object, local: "torch.Tensor", modify: "Modify | None"
) -> "dict[str, torch.Tensor] | str":
    """What becomes of a local parameter, or the error."""
    try:
        converted = dict(mapping.megatron_to_hf(local, module))
        return dict(modify(converted)) if modify else converted
    except (RuntimeError, TypeError, ValueError, KeyError, AttributeError, AssertionError) as err:
        return f"its conversion fails on traced values: {err}"


def _read(
    name: str, tensor: "torch.Tensor", drawn: tuple[Indices, Indices], place: tuple[int, int], split: bool
) -> Selection | str:
    """Where each local token is in a converted tensor, or why it holds anything else."""
    (tokens, order), (size, rank) = drawn, place
    if tensor.is_floating_point():
        return f"{name!r} is computed in floating point"
    flat = tensor.reshape(-1).numpy().astype(np.int64)
    ranks, low = flat >> _SHIFT, flat & ((1 << _SHIFT) - 1)
    at = np.minimum(np.searchsorted(tokens[order], low), max(tokens.size - 1, 0))
    known = (tokens[order][at] == low) & (ranks >= 0) & (ranks < size) if tokens.size else flat < 0
    if not known.all():
        return f"{name!r} holds values that no single source element has"
    mine = np.flatnonzero(ranks == rank)
    if not split and mine.size != flat.size:
        return f"{name!r} mixes ranks in a way that differs by rank"
    source = order[at[mine]]
    if np.unique(source).size != source.size:
        return f"one source element feeds several of {name!r}"
    table = np.full(tokens.size, -1, dtype=np.int64)
    table[source] = mine
    return Selection(name, tuple(tensor.shape), table, split)


def _constants(
    mapping: Any,
    module: object,
    shape: tuple[int, ...],
    modify: "Modify | None",
    traced: "Mapping[str, torch.Tensor]",
) -> set[str]:
    """Names of floating tensors that were put there as they are: any two parameters give the same bits.

    Tokens alone do not tell, since they saturate functions such as a sigmoid.
    """
    floating = {name for name, tensor in traced.items() if tensor.is_floating_point()}
    if not floating:
        return floating
    one, other = (_converted(mapping, module, each, modify) for each in _draws(shape))
    if isinstance(one, str) or isinstance(other, str):
        return set()
    return {
        name
        for name in floating & one.keys() & other.keys()
        if same_bits(one[name], other[name]) and same_bits(one[name], traced[name])
    }


def _draws(shape: tuple[int, ...]) -> "tuple[torch.Tensor, torch.Tensor]":
    """Two parameters of many magnitudes, which differ in the sign of every element."""
    import torch

    generator = np.random.default_rng(2)
    one, other = (np.exp2(generator.uniform(-6, 6, shape)).astype(np.float32) for _ in range(2))
    signs = np.where(generator.random(shape) < 0.5, np.float32(-1), np.float32(1))
    return torch.from_numpy(np.asarray(one * signs)), torch.from_numpy(np.asarray(-other * signs))


@lru_cache(maxsize=64)
def _local_class(cls: type[Any]) -> type[Any]:
    return type(f"Local{cls.__name__}", (_Local, cls), {})


class _Local:
    """Methods of a mapping object that stands alone; mixed in before its class."""

    _dcr_size: int
    _dcr_rank: int

    @property
    def tp_size(self) -> int:
        return self._dcr_size

    @property
    def tp_rank(self) -> int:
        return self._dcr_rank

    @property
    def pp_size(self) -> int:
        return 1

    @property
    def pp_rank(self) -> int:
        return 0

    @property
    def ep_size(self) -> int:
        return 1

    @property
    def ep_rank(self) -> int:
        return 0

    def gather_from_tp_ranks(self, tensor: "torch.Tensor") -> "list[torch.Tensor]":
        if tensor.is_floating_point():  # no tokens: another rank's values would drown this one's
            return [tensor] * self._dcr_size
        return [tensor + ((rank - self._dcr_rank) << _SHIFT) for rank in range(self._dcr_size)]

    def gather_from_ep_ranks(self, tensor: "torch.Tensor", module: object, name: object) -> dict[str, Any]:
        del module
        return {str(name): tensor}

    def broadcast_from_pp_rank(self, tensor: "torch.Tensor", cache_key: object = None) -> "torch.Tensor":
        del cache_key
        return tensor

    def broadcast_obj_from_pp_rank(self, value: object, cache_key: object = None) -> object:
        del cache_key
        return value

    def maybe_dequantize(self, tensor: "torch.Tensor") -> "torch.Tensor":
        return tensor

    def _get_or_create_mapping(self, kind: str) -> Any:
        made = super()._get_or_create_mapping(kind)  # type: ignore[misc]
        return localize(made, self._dcr_size, self._dcr_rank)
