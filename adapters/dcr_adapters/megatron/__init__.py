"""Megatron-core and Megatron-Bridge as a trainer (DESIGN R4, R20, B1)."""

from dcr_adapters.megatron.pending import gathered
from dcr_adapters.megatron.shards import MegatronShards

__all__ = ["MegatronShards", "gathered"]
