"""Closed-form maps of Megatron-Bridge's mapping classes (DESIGN B1, R4): local rows -> canonical rows.

A class is known by the class that defines its ``megatron_to_hf``, so that a subclass which only
loads differently is known too; one that converts differently is not. Formulas are in rows; t and r
are size and rank of the axis that splits the weight, R the local number of rows.

| class | local row i -> canonical row |
|---|---|
| Direct, Replicated | i |
| ColumnParallel | r R + i |
| RowParallel | i, columns from r C; vectors are replicated |
| Auto | one of these, by its module; then ``permute_dims`` |
| GatedMLP | gate: r R/2 + i in the first half, up the same in the second |
| QKV, KV, ConcatenatedQKV | heads of a group lie together: query heads (and output gates), key, value |
| MambaInProj, Chunked | blocks, each split by t |
| GDNLinear, GDNLinearSeparate | blocks by head, grouped again by key head |
| FusedGatedExpert | gate, then up, in one tensor |
| RMSNorm2ZeroCentered | as Auto, and one is added |
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np

from dcr.errors import UnsupportedPath
from dcr.indexmap import Indices
from dcr_adapters.megatron.mapped import Source, kind_of
from dcr_adapters.megatron.pieces import Target
from dcr_adapters.megatron.row_blocks import chunked, gdn, gdn_separate, mamba_in_proj

_COMMUNICATION = (
    "gather_from_tp_ranks", "gather_from_ep_ranks", "broadcast_from_pp_rank", "maybe_dequantize",
)  # fmt: skip


Handler: TypeAlias = Callable[[Source], tuple[Target, ...]]


def definer(mapping: object, method: str) -> type | None:
    """The class that defines ``method`` for the object."""
    return next((cls for cls in type(mapping).__mro__ if method in vars(cls)), None)


def handler_of(mapping: object) -> Handler | None:
    """The closed form of a mapping object; None if it converts or communicates in a way of its own."""
    cls = definer(mapping, "megatron_to_hf")
    known, base = _handlers()
    if any(definer(mapping, method) is not base for method in _COMMUNICATION):
        return None
    return known.get(cls) if cls is not None else None


@lru_cache(maxsize=1)
def _handlers() -> tuple[dict[type, Handler], type]:
    from megatron.bridge.models.conversion import param_mapping as bridge

    known: dict[type, Handler] = {
        bridge.DirectMapping: _replicated,
        bridge.ReplicatedMapping: _replicated,
        bridge.ColumnParallelMapping: _column,
        bridge.RowParallelMapping: _row,
        bridge.AutoMapping: _auto,
        bridge.RMSNorm2ZeroCenteredRMSNormMapping: _plus_one,
        bridge.GatedMLPMapping: _gated,
        bridge.FusedGatedExpertMapping: _fused_gated,
        bridge.QKVMapping: _qkv,
        bridge.ConcatenatedQKVMapping: _concatenated_qkv,
        bridge.KVMapping: _kv,
        bridge.MambaInProjMapping: mamba_in_proj,
        bridge.ChunkedMapping: chunked,
        bridge.GDNLinearMapping: gdn,
        bridge.GDNLinearMappingSeparate: gdn_separate,
    }
    return known, bridge.MegatronParamMapping


# ---- whole tensors ----


def _replicated(source: Source) -> tuple[Target, ...]:
    table = np.arange(source.num_rows, dtype=np.int64)
    return (Target(str(source.mapping.hf_param), source.shape, table, split=False),)


def _column(source: Source) -> tuple[Target, ...]:
    rows = source.num_rows
    shape = (rows * source.size, *source.shape[1:])
    table = _global_rows(source, "column")
    return (Target(str(source.mapping.hf_param), shape, table, split=source.size > 1),)


def _row(source: Source) -> tuple[Target, ...]:
    if len(source.shape) < 2 or source.size == 1:
        return _replicated(source)
    (whole,) = _replicated(source)
    shape = (source.shape[0], source.shape[1] * source.size, *source.shape[2:])
    inner = int(np.prod(source.shape[1:]))
    if len(source.shape) > 2:
        raise UnsupportedPath(
            f"parameter {source.mapping.megatron_param!r} of shape {source.shape}: a row-parallel weight of "
            "more than two dimensions has no map; use a column-parallel or replicated layer"
        )
    return (replace(whole, shape=shape, column=source.rank * inner, split=True),)


def _auto(source: Source) -> tuple[Target, ...]:
    by_kind = {"column": _column, "row": _row, "replicated": _replicated}
    (target,) = by_kind[kind_of(source.mapping, source.module)](source)
    dims = source.mapping.permute_dims
    return (target if dims is None else replace(target, dims=tuple(dims)),)


def _plus_one(source: Source) -> tuple[Target, ...]:
    (target,) = _auto(source)
    return (replace(target, plus_one=True),)


# ---- rows in groups ----


def _gated(source: Source) -> tuple[Target, ...]:
    names = source.mapping.hf_param
    half = _half(source)
    shape = (half * source.size, *source.shape[1:])
    row = np.arange(source.num_rows, dtype=np.int64)
    far = source.rank * half + row % half if half else row
    split = source.size > 1
    return (
        Target(names["gate"], shape, np.where(row < half, far, -1), split=split),
        Target(names["up"], shape, np.where(row >= half, far, -1), split=split),
    )


def _fused_gated(source: Source) -> tuple[Target, ...]:
    if len(source.shape) != 2:
        raise UnsupportedPath(
            f"parameter {source.mapping.megatron_param!r} of shape {source.shape}: the Bridge fuses gate and "
            "up of matrices only"
        )
    half = _half(source)
    row = np.arange(source.num_rows, dtype=np.int64)
    table = row + source.rank * half + (row >= half) * (source.size - 1) * half
    shape = (2 * half * source.size, *source.shape[1:])
    return (Target(str(source.mapping.hf_param), shape, table, split=source.size > 1),)


def _half(source: Source) -> int:
    if source.num_rows % 2:
        raise UnsupportedPath(
            f"parameter {source.mapping.megatron_param!r}: {source.num_rows} rows are no gate and up halves"
        )
    return source.num_rows // 2


def _qkv(source: Source) -> tuple[Target, ...]:
    names = source.mapping.hf_param
    return _parts(source, [names["q"], names["k"], names["v"]], _query_blocks(source.config))


def _concatenated_qkv(source: Source) -> tuple[Target, ...]:
    name = str(source.mapping.hf_param)
    parts = _parts(source, [name, name, name], _query_blocks(source.config))
    starts = [0, *accumulate(part.shape[0] for part in parts)]
    table = np.full(source.num_rows, -1, dtype=np.int64)
    for part, start in zip(parts, starts[:-1], strict=True):
        table = np.where(part.table >= 0, part.table + start, table)
    return (replace(parts[0], shape=(starts[-1], *source.shape[1:]), table=table),)


def _kv(source: Source) -> tuple[Target, ...]:
    names, head = source.mapping.hf_param, _head_size(source.config)
    blocks = [[np.arange(head)], [head + np.arange(head)]]
    return _parts(source, [names["k"], names["v"]], blocks)


def _head_size(config: Any) -> int:
    return int(config.kv_channels or config.hidden_size // config.num_attention_heads)


def _query_blocks(config: Any) -> list[list[Indices]]:
    """Rows of one group that are its queries, keys and values, each in canonical order."""
    head, heads = _head_size(config), config.num_attention_heads // config.num_query_groups
    gated = bool(getattr(config, "attention_output_gate", False))
    one = np.arange(head, dtype=np.int64)
    last = (2 if gated else 1) * heads * head
    query: list[Indices] = []
    for at in range(heads):
        query.append(at * head + one)
        if gated:  # canonically the gate follows its own head
            query.append((heads + at) * head + one)
    return [query, [last + one], [last + head + one]]


def _parts(source: Source, names: Sequence[str], blocks: Sequence[Sequence[Indices]]) -> tuple[Target, ...]:
    """Tensors that take turns group by group; ``blocks`` gives each one's rows within a group."""
    kind = kind_of(source.mapping, source.module)
    rows = _global_rows(source, kind)
    num_rows = source.num_rows * (source.size if kind == "column" else 1)
    members = [np.concatenate(block) for block in blocks]
    period = sum(member.size for member in members)
    if num_rows % period:
        raise UnsupportedPath(
            f"parameter {source.mapping.megatron_param!r}: {num_rows} rows are no multiple of the {period} "
            "of a query group; the configuration does not fit the weight"
        )
    targets = []
    for name, member in zip(names, members, strict=True):
        place = np.full(period, -1, dtype=np.int64)
        place[member] = np.arange(member.size)
        inner = place[rows % period]
        table = np.where(inner >= 0, rows // period * member.size + inner, -1)
        shape = (num_rows // period * member.size, *source.shape[1:])
        targets.append(Target(name, shape, table, split=kind == "column" and source.size > 1))
    return tuple(targets)


def _global_rows(source: Source, kind: str) -> Indices:
    first = source.rank * source.num_rows if kind == "column" else 0
    return first + np.arange(source.num_rows, dtype=np.int64)
