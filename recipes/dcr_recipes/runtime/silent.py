"""The engine of an instance that only holds weights."""

from dcr.errors import ConfigError
from dcr_recipes.runtime.ports import CacheCounts, Group, Probed


class SilentEngine:
    """Implements ``Engine`` for an instance that is only compared with: it answers nothing."""

    def generate(
        self, prompt: list[int], seeds: list[int], *, max_new_tokens: int, temperature: float
    ) -> Group:
        """Raises ConfigError."""
        raise ConfigError("this instance only holds weights; ask another one")

    def probe(self, prompt: list[int], max_new_tokens: int, *, fresh: bool) -> Probed:
        """Raises ConfigError."""
        raise ConfigError("this instance only holds weights; ask another one")

    def clear(self) -> None:
        """There is nothing to forget."""

    def cache(self) -> CacheCounts:
        """See ``Engine.cache``."""
        return CacheCounts()
