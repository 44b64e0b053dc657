"""Composing a receiver refuses what it does not know before anything is touched."""

from typing import Any, cast

import pytest

from dcr.config import RefitConfig
from dcr.errors import ConfigError
from dcr.refit import compose_receiver


def test_an_unknown_check_is_refused() -> None:
    nothing = cast("Any", None)  # must not be looked at
    with pytest.raises(ConfigError, match="check: 'all' is not a choice; accepted: written, full, off"):
        compose_receiver(
            "runtime-0", nothing, nothing, loader=nothing, gate=nothing, config=RefitConfig(check="all")
        )
