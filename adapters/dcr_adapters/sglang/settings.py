"""Engines that take no deltas as they were started, by SGLang's own arguments (DESIGN R11, R19).

Asked before the first call: each call is an update session of SGLang, whose end processes weights anew.
What can only be seen in a worker is in ``refusals``.
"""

from typing import Any, NamedTuple

from dcr.errors import ConfigError


class _Rule(NamedTuple):
    """Values of one argument that fit, and what is wrong with others; ``instead`` is the remedy."""

    fitting: tuple[object, ...]
    why: str
    instead: str


_OFF: tuple[object, ...] = (False, None)
_OUTSIDE = (
    "keys and values are kept outside of the engine, by tokens alone: old ones, and those of other engines"
)
_MOVES = "weights move between memories while it serves"
_ONE_MODEL = "give each replica an engine of its own, and no engine pipeline stages"
_RULES: dict[str, _Rule] = {
    "weight_cache_mode": _Rule(
        ("off",), "weights are shared with other engines through a cache", "--weight-cache-mode off"
    ),
    "dp_size": _Rule((1,), "several replicas are no instance", _ONE_MODEL),
    "attn_dp_size": _Rule(
        (1,), "each group of ranks has requests and caches of its own", "leave out --attn-dp-size"
    ),
    "pp_size": _Rule((1,), "pipeline stages were not tried", _ONE_MODEL),
    "quantization": _Rule(
        (None, "unquant"), "other bits are stored than the checkpoint's", "leave out --quantization"
    ),
    "speculative_algorithm": _Rule(
        (None, "NGRAM"), "the draft model keeps its old weights", "leave out --speculative-algorithm"
    ),
    "enable_memory_saver": _Rule(
        _OFF, "weights that are released come back as other bits, or cannot be read", "leave it out"
    ),
    "cpu_offload_gb": _Rule((0,), _MOVES, "--cpu-offload-gb 0"),
    "offload_group_size": _Rule((-1, 0), _MOVES, "leave out --offload-group-size"),
    "enable_paged_experts": _Rule(_OFF, _MOVES, "leave it out"),
    "kt_weight_path": _Rule((None,), "experts are read from a folder of their own", "leave it out"),
    "elastic_ep_backend": _Rule((None, "none"), "experts move when a rank is lost", "leave it out"),
    "enable_elastic_expert_backup": _Rule(_OFF, "a backup keeps experts of old weights", "leave it out"),
    "disaggregation_mode": _Rule(
        ("null",), "keys and values come from, or go to, another engine's weights", "leave it out"
    ),
    "encoder_only": _Rule(_OFF, "embeddings go to another engine's weights", "leave it out"),
    "language_only": _Rule(_OFF, "embeddings come from another engine's weights", "leave it out"),
    "enable_pdmux": _Rule(_OFF, "its scheduler goes on in a pause", "leave it out"),
    "hicache_storage_backend": _Rule((None,), _OUTSIDE, "leave it out: host memory alone is emptied"),
    "enable_lmcache": _Rule(_OFF, _OUTSIDE, "leave it out"),
    "enable_flexkv": _Rule(_OFF, _OUTSIDE, "leave it out"),
    "enable_unified_cache_external_linker": _Rule(_OFF, _OUTSIDE, "leave it out"),
    "radix_cache_backend": _Rule((None,), "nothing is known of how that cache is emptied", "leave it out"),
    "enable_mm_global_cache": _Rule(
        _OFF, "embeddings of old weights are kept outside of the engine", "leave it out"
    ),
}


def require_takes_calls(settings: Any, loader: str) -> None:
    """Refuse an engine that a call would end, or whose weights or caches deltas cannot follow.

    ``settings``: SGLang's server arguments, as an object; those that a version does not have are no concern.

    Raises:
        ConfigError: names the argument, why, and the remedy.
    """
    if loader not in (settings.custom_weight_loader or []):
        raise ConfigError(f"the engine does not know DCR: start SGLang with --custom-weight-loader {loader}")
    for name, rule in _RULES.items():
        value = getattr(settings, name, rule.fitting[0])
        if value not in rule.fitting:
            raise ConfigError(f"the engine was started with {name}={value}: {rule.why}; {rule.instead}")


def require_stored_as_read(model_config: Any) -> None:
    """Refuse a checkpoint that is quantized itself, of which SGLang's arguments say nothing.

    ``model_config``: SGLang's, as its front has it; None where it has none.

    Raises:
        ConfigError: names the method, why, and the remedy.
    """
    method = getattr(model_config, "quantization", None)
    if method not in _RULES["quantization"].fitting:
        raise ConfigError(
            f"the engine's checkpoint is quantized ({method}): {_RULES['quantization'].why}; "
            "serve one that is not, or use dense refits for this engine"
        )
