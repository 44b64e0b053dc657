"""What an engine's process checks and makes before the engine is started; no engine needed."""

import pytest

from dcr.errors import ConfigError
from dcr_recipes.processes.engine_setup import require_known

KNOWN = ("tp_size", "moe_backend", "log_level")


def test_known_arguments_pass() -> None:
    require_known("vLLM", ["log_level", "tp_size"], KNOWN)


@pytest.mark.parametrize(("name", "hint"), [("moe_backends", "nearest: moe_b"), ("zzz", "leave it out")])
def test_an_unknown_one_is_named_with_a_remedy(name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=f"runtime.arguments: vLLM has no engine argument '{name}'; {hint}"):
        require_known("vLLM", ["log_level", name], (each for each in KNOWN))
