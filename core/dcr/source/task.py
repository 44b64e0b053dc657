"""Conversion tasks: which source elements feed which canonical tensor (paper section 5)."""

from dataclasses import dataclass

from dcr.indexmap import IndexMap


@dataclass(frozen=True, slots=True)
class AffineTask:
    """A shard whose elements map one to one to canonical elements, computed locally (DESIGN R4).

    ``key`` names the source shard on this rank, stably across restarts; ``map`` goes from local
    flat indices (0 .. num_elements - 1) to flat indices of ``name``. ``replicas`` are the trainer
    ranks that hold bitwise the same shard, this one included, sorted.
    """

    key: str
    name: str
    dtype: str
    num_elements: int
    map: IndexMap
    replicas: tuple[int, ...]
    aliases: tuple[str, ...] = ()
