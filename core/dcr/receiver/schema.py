"""What torch operators write, by their schemas: asked once an operator (DESIGN R12)."""

from collections.abc import Iterable, Iterator
from enum import Enum
from functools import cache
from typing import Any

import torch

aten = torch.ops.aten
COPY = aten.copy_.default
FILLS = frozenset({aten.fill_.Scalar, aten.fill_.Tensor, aten.zero_.default})
SCALAR_READ = aten._local_scalar_dense.default
NEW_CONSTANT = aten.lift_fresh.default
FOREACH_COPY = aten._foreach_copy_.default
CASTS = frozenset({aten.clone.default, aten._to_copy.default})
SET_STORAGE = aten.set_

_STORES = frozenset({
    aten.copy_.default, aten.fill_.Scalar, aten.fill_.Tensor, aten.zero_.default, aten.index_put_.default,
    aten.index_copy_.default, aten.index_fill_.int_Scalar, aten.scatter_.src, aten.scatter_.value,
    aten.masked_fill_.Scalar, aten.masked_scatter_.default, aten._foreach_copy_.default,
})  # fmt: skip


class Effect(Enum):
    """VIEW: results share memory with arguments. WRITE: an argument is written. PURE: neither."""

    VIEW = 1
    WRITE = 2
    PURE = 3


@cache
def effect_of(func: Any) -> Effect:
    """What the operator's schema says of it."""
    infos = [argument.alias_info for argument in func._schema.arguments]
    if any(info is not None and info.is_write for info in infos):
        return Effect.WRITE
    return Effect.VIEW if any(info is not None for info in infos) else Effect.PURE


@cache
def _written_arguments(func: Any) -> tuple[tuple[int, str], ...]:
    """Position and name of each argument that the operator's schema marks as written."""
    arguments = enumerate(func._schema.arguments)
    return tuple((i, a.name) for i, a in arguments if a.alias_info is not None and a.alias_info.is_write)


def tensors_in(values: Iterable[object]) -> Iterator[torch.Tensor]:
    """Every tensor among ``values``, lists of tensors included."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)


def written_by(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors that this call writes and that have at least one element."""
    found = [args[i] if i < len(args) else kwargs.get(name) for i, name in _written_arguments(func)]
    return [tensor for tensor in tensors_in(found) if tensor.numel()]


def writes_only(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether what is written does not depend on what was there before.

    Operators that write a part of their argument (``index_put_``) count: what they leave stays.
    """
    if func in _STORES:
        accumulates = func is aten.index_put_.default and (
            (len(args) > 3 and args[3]) or kwargs.get("accumulate")
        )
        return not accumulates
    return str(func._overloadname).endswith("out")
