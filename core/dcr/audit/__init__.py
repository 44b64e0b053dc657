"""Additive keyed digests: prove that two copies of a tensor hold the same bits without moving it (B6)."""

from dcr.audit.digest import (
    EMPTY,
    FarIndices,
    combine,
    digest_at,
    digest_map,
    digest_pair,
    digest_segments,
    digest_tensor,
    exchange,
    table_digest,
    update,
)
from dcr.audit.keys import MODULUS, term_key

__all__ = [
    "EMPTY",
    "MODULUS",
    "FarIndices",
    "combine",
    "digest_at",
    "digest_map",
    "digest_pair",
    "digest_segments",
    "digest_tensor",
    "exchange",
    "table_digest",
    "term_key",
    "update",
]
