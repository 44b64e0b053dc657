"""Engines of SGLang that are refused by their arguments, before a call is made; free of SGLang."""

from types import SimpleNamespace

import pytest

from dcr.errors import ConfigError
from dcr_adapters.sglang.messages import LOADER
from dcr_adapters.sglang.settings import require_stored_as_read, require_takes_calls


def test_arguments_that_a_version_does_not_have_are_no_concern() -> None:
    require_takes_calls(SimpleNamespace(custom_weight_loader=[LOADER]), LOADER)


@pytest.mark.parametrize("loaders", [None, [], ["another.loader"]])
def test_an_engine_that_a_call_would_end_is_refused(loaders: list[str] | None) -> None:
    with pytest.raises(ConfigError, match=f"--custom-weight-loader {LOADER}"):
        require_takes_calls(SimpleNamespace(custom_weight_loader=loaders), LOADER)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("weight_cache_mode", "daemon", "--weight-cache-mode off"),
        ("dp_size", 2, "an engine of its own"),
        ("attn_dp_size", 8, "leave out --attn-dp-size"),
        ("pp_size", 2, "no engine pipeline stages"),
        ("quantization", "fp8", "leave out --quantization"),
        ("speculative_algorithm", "EAGLE", "the draft model keeps its old weights"),
        ("enable_memory_saver", True, "released"),
        ("cpu_offload_gb", 4, "--cpu-offload-gb 0"),
        ("offload_group_size", 2, "--offload-group-size"),
        ("enable_paged_experts", True, "move between memories"),
        ("kt_weight_path", "experts", "a folder of their own"),
        ("elastic_ep_backend", "mooncake", "when a rank is lost"),
        ("enable_elastic_expert_backup", True, "experts of old weights"),
        ("disaggregation_mode", "decode", "another engine's weights"),
        ("encoder_only", True, "another engine's weights"),
        ("language_only", True, "another engine's weights"),
        ("enable_pdmux", True, "goes on in a pause"),
        ("hicache_storage_backend", "file", "outside of the engine"),
        ("enable_lmcache", True, "outside of the engine"),
        ("enable_flexkv", True, "outside of the engine"),
        ("enable_unified_cache_external_linker", True, "outside of the engine"),
        ("radix_cache_backend", "own", "how that cache is emptied"),
        ("enable_mm_global_cache", True, "embeddings of old weights"),
    ],
)
def test_what_deltas_cannot_follow_is_refused_by_name(name: str, value: object, words: str) -> None:
    settings = SimpleNamespace(custom_weight_loader=[LOADER], **{name: value})
    with pytest.raises(ConfigError, match=f"{name}={value}: .*{words}"):
        require_takes_calls(settings, LOADER)


def test_a_quantized_checkpoint_is_refused_by_name() -> None:
    for fitting in (None, SimpleNamespace(), SimpleNamespace(quantization=None)):
        require_stored_as_read(fitting)
    with pytest.raises(ConfigError, match=r"quantized \(fp8\): .*dense refits"):
        require_stored_as_read(SimpleNamespace(quantization="fp8"))
