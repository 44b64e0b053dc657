"""Engines of vLLM that are refused by their configuration; free of vLLM."""

from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from dcr.errors import ConfigError
from dcr_adapters.vllm.loader import VllmLoader
from dcr_adapters.vllm.settings import refused, require_one_engine


def config_of(name: str, value: object, device: str = "cuda") -> Any:
    """A configuration in which only ``name`` is set."""
    for part in reversed(name.split(".")):
        value = SimpleNamespace(**{part: value})
    value.device_config = SimpleNamespace(device_type=device)  # type: ignore[attr-defined]
    return value


REFUSED = [
    ("parallel_config.enable_eplb", True, "first placement; start vLLM without enable_eplb"),
    ("parallel_config.data_parallel_size", 2, "an engine of its own"),
    ("load_config.load_format", "ipc_cache", "other engines map; choose another load_format"),
    ("offload_config.prefetch.offload_group_size", 8, "without offload_group_size"),
    ("model_config.enable_sleep_mode", True, "without enable_sleep_mode"),
    ("kv_transfer_config.kv_connector", "NixlConnector", "OffloadingConnector"),
    ("kv_transfer_config.kv_connector", "MultiConnector", "outside of the engine"),
    ("kv_transfer_config.kv_connector", "MooncakeStoreConnector", "another one's"),
    ("kv_transfer_config.kv_connector_module_path", "a.module", "outside of the engine"),
    ("ec_transfer_config.ec_connector", "ECExampleConnector", "leave ec_transfer_config out"),
    ("speculative_config.method", "eagle", "the draft model keeps its old weights"),
]
FITTING = [
    ("parallel_config.enable_eplb", False),
    ("parallel_config.data_parallel_size", 1),
    ("load_config.load_format", "auto"),
    ("offload_config.prefetch.offload_group_size", 0),
    ("model_config.enable_sleep_mode", False),
    ("kv_transfer_config.kv_connector", None),
    ("kv_transfer_config.kv_connector", "OffloadingConnector"),
    ("kv_transfer_config.kv_connector", "SimpleCPUOffloadConnector"),
    ("kv_transfer_config.kv_connector_extra_config", {"cpu_bytes_to_use": 1}),
    ("ec_transfer_config.ec_connector", None),
    ("speculative_config.method", "ngram"),
]


@pytest.mark.parametrize(("name", "value", "words"), REFUSED)
def test_what_deltas_cannot_follow_is_refused_by_name(name: str, value: object, words: str) -> None:
    found = VllmLoader(nn.Module(), config_of(name, value)).refusals()
    assert list(found) == [name]
    assert found[name].startswith(f"{value}: ")
    assert words in found[name]


@pytest.mark.parametrize(("name", "value"), FITTING)
def test_what_deltas_can_follow_is_not_refused(name: str, value: object) -> None:
    assert refused(config_of(name, value)) == {}


def test_tiers_below_the_memory_of_the_cpu_are_not_emptied() -> None:
    name = "kv_transfer_config.kv_connector_extra_config"
    found = refused(config_of(name, {"spec_name": "TieringOffloadingSpec"}))
    assert list(found) == [f"{name}.spec_name"]


@pytest.mark.parametrize(
    ("key", "device", "is_refused"),
    [
        ("freezing", "cpu", True),
        ("freezing", "cuda", True),
        ("max_autotune", "cpu", True),
        ("max_autotune", "cuda", False),
        ("dce", "cpu", False),
    ],
)
def test_weights_that_are_compiled_in_are_refused(key: str, device: str, is_refused: bool) -> None:
    name = "compilation_config.inductor_compile_config"
    found = refused(config_of(name, {key: True}, device))
    assert list(found) == ([f"{name}.{key}"] if is_refused else [])


def test_settings_that_a_version_does_not_have_are_no_concern() -> None:
    assert refused(SimpleNamespace()) == refused(None) == {}
    require_one_engine(SimpleNamespace())


def test_a_front_of_several_replicas_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"data_parallel_size=2: .*an engine of its own"):
        require_one_engine(config_of("parallel_config.data_parallel_size", 2))
