"""The probe of an engine's prefix cache (DESIGN R19): it finds what other weights left, or says it cannot."""

import pytest

from dcr.errors import Unreachable
from dcr_recipes.runtime import prefix_probe
from dcr_recipes.runtime.ports import CacheCounts
from dcr_recipes.runtime.prefix_probe import Asked, PrefixProbe


class Cached:
    """An engine of one weight, whose cache answers with the weight that it was filled by."""

    def __init__(self) -> None:
        self.weight = 1
        self.held: int | None = None
        self.refusals = 0
        self.logprob = -0.5
        self.probe = PrefixProbe(self.ask, self.empty)

    def ask(self, prompt: list[int], max_new_tokens: int) -> Asked:
        """Figures are new objects, as those of an engine are: Python takes one NaN for equal to itself."""
        hit = self.held is not None
        self.held = self.held if self.held is not None else self.weight
        return Asked(
            [self.held] * max_new_tokens, [1.0 * self.logprob] * max_new_tokens, len(prompt) if hit else 0
        )

    def empty(self) -> bool:
        if self.refusals:
            self.refusals -= 1
            return False
        self.held = None
        return True


def test_probes_are_counted_and_fresh_ones_pass() -> None:
    engine = Cached()
    assert not engine.probe.probe([1, 2], 3, fresh=False).hit
    found = engine.probe.probe([1, 2], 3, fresh=True)
    assert (found.hit, found.is_stale, found.tokens) == (True, False, [1, 1, 1])
    engine.probe.clear()
    assert engine.probe.counts() == CacheCounts(hits=1, misses=1, clears=1)


def test_what_other_weights_left_is_found() -> None:
    engine = Cached()
    engine.probe.probe([1, 2], 3, fresh=False)
    engine.weight = 2
    assert engine.probe.probe([1, 2], 3, fresh=True).is_stale


def test_a_cache_that_cannot_be_emptied_yet_is_asked_again_and_then_proves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Cached()
    engine.probe.probe([1, 2], 3, fresh=False)
    engine.weight, engine.refusals = 2, 2
    assert engine.probe.probe([1, 2], 3, fresh=True).is_stale
    monkeypatch.setattr(prefix_probe, "_PATIENCE_S", 0.0)
    engine.refusals = 10
    with pytest.raises(Unreachable, match="did not empty its prefix cache"):
        engine.probe.probe([1, 2], 3, fresh=True)


def test_an_answer_of_a_diverged_policy_is_fresh() -> None:
    engine = Cached()
    engine.logprob = float("nan")
    assert not engine.probe.probe([1, 2], 3, fresh=True).is_stale
    engine.weight = 2
    assert engine.probe.probe([1, 2], 3, fresh=True).is_stale
