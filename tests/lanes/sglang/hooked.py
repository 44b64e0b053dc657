"""SGLang's own classes with the plug-in's hooks around their methods, while a test runs."""

from collections import defaultdict
from collections.abc import Iterator
from pkgutil import resolve_name

import pytest
from sglang.srt.plugins.hook_registry import HookRegistry

from dcr_adapters.sglang import plugin, scheduler


@pytest.fixture(autouse=True)
def hooks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """SGLang's classes as they are in an engine that takes deltas."""
    monkeypatch.setattr(HookRegistry, "_hooks", defaultdict(list))
    monkeypatch.setattr(HookRegistry, "_patched", set())
    monkeypatch.setattr(scheduler, "takes_calls", lambda: True)
    plugin.register()
    for target in [name for name in HookRegistry._hooks if ".load_model" in name or ".utils." in name]:
        del HookRegistry._hooks[target]  # of models and servers, which are elsewhere
    with pytest.MonkeyPatch.context() as patch:
        for target in HookRegistry._hooks:
            owner, name = target.rsplit(".", 1)
            found = resolve_name(owner)
            patch.setattr(found, name, getattr(found, name))  # so that it is put back
        HookRegistry.apply_hooks()
        yield
