"""Closed forms of parameters whose rows lie in blocks, each split over the axis (see ``closed_form``).

Raises UnsupportedPath where the configuration does not fit the weight.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np

from dcr.errors import UnsupportedPath
from dcr_adapters.megatron.mapped import Source
from dcr_adapters.megatron.pieces import Target


def mamba_in_proj(source: Source) -> tuple[Target, ...]:
    """Blocks of a Mamba layer's input projection: z, x, B, C and dt."""
    config, t = source.config, source.size
    inner = config.mamba_num_heads * config.mamba_head_dim // t
    state = config.mamba_state_dim * config.mamba_num_groups // t
    return _blocks(source, [inner, inner, state, state, config.mamba_num_heads // t])


def chunked(source: Source) -> tuple[Target, ...]:
    """The chunks that the mapping itself names, one after another."""
    parts = source.mapping.get_shard_idx(source.config, local_tp=True)
    joined = np.concatenate([np.asarray(part, dtype=np.int64) for part in parts])
    if not np.array_equal(joined, np.arange(joined.size)):
        raise UnsupportedPath(
            f"parameter {source.mapping.megatron_param!r}: its chunks do not follow another"
        )
    return _blocks(source, [len(part) for part in parts])


def _blocks(source: Source, sizes: Sequence[int]) -> tuple[Target, ...]:
    """Blocks of ``sizes`` local rows, each of which is split over the axis."""
    _require_rows(source, sum(sizes))
    table = np.concatenate([
        source.size * start + source.rank * size + np.arange(size, dtype=np.int64)
        for start, size in zip([0, *accumulate(sizes)], sizes, strict=False)
    ])  # fmt: skip
    shape = (source.num_rows * source.size, *source.shape[1:])
    return (Target(str(source.mapping.hf_param), shape, table, split=source.size > 1),)


def _require_rows(source: Source, rows: int) -> None:
    if rows != source.num_rows:
        raise UnsupportedPath(
            f"parameter {source.mapping.megatron_param!r} has {source.num_rows} rows, its configuration asks "
            f"for {rows} on each of {source.size} ranks; sizes must divide evenly"
        )


def _delta_net(source: Source) -> dict[str, tuple[int, int]]:
    """First local row and rows of one key head, by block of a gated delta net's projection."""
    config = source.config
    per_head = config.linear_num_value_heads // config.linear_num_key_heads
    value = per_head * config.linear_value_head_dim
    key = config.linear_key_head_dim
    each = {"q": key, "k": key, "v": value, "z": value, "b": per_head, "a": per_head}
    heads = config.linear_num_key_heads // source.size
    starts = [0, *accumulate(heads * size for size in each.values())]
    _require_rows(source, starts[-1])
    return {name: (start, size) for (name, size), start in zip(each.items(), starts, strict=False)}


def gdn(source: Source) -> tuple[Target, ...]:
    """A gated delta net's projections as two tensors, blocks of which take turns by key head."""
    names = source.mapping.hf_param
    blocks = _delta_net(source)
    return tuple(
        _regrouped(source, names[joined], {part: blocks[part] for part in joined})
        for joined in ("qkvz", "ba")
    )


def _regrouped(source: Source, name: str, blocks: Mapping[str, tuple[int, int]]) -> Target:
    """Blocks that canonically take turns by key head."""
    heads = source.config.linear_num_key_heads
    period = sum(size for _, size in blocks.values())
    table = np.full(source.num_rows, -1, dtype=np.int64)
    inner = 0
    for start, size in blocks.values():
        local = np.arange(heads // source.size * size, dtype=np.int64)
        head = source.rank * (heads // source.size) + local // size
        table[start : start + local.size] = head * period + inner + local % size
        inner += size
    return Target(name, (heads * period, *source.shape[1:]), table, split=source.size > 1)


def gdn_separate(source: Source) -> tuple[Target, ...]:
    """The same as four tensors, blocks of which follow one another."""
    names, blocks = source.mapping.hf_param, _delta_net(source)
    joined = {"qkv": "qkv", "z": "z", "b": "b", "a": "a"}
    return tuple(
        _in_turn(source, names[name], [blocks[part] for part in parts]) for name, parts in joined.items()
    )


def _in_turn(source: Source, name: str, blocks: Sequence[tuple[int, int]]) -> Target:
    """Blocks that canonically follow one another, each split over the axis."""
    heads = source.config.linear_num_key_heads
    table = np.full(source.num_rows, -1, dtype=np.int64)
    base = 0
    for start, size in blocks:
        rows = heads // source.size * size
        table[start : start + rows] = base + source.rank * rows + np.arange(rows)
        base += heads * size
    return Target(name, (base, *source.shape[1:]), table, split=source.size > 1)
