"""A receiver's transitions, and when the serving gate has caches cleared for them (R19, P15)."""

import pytest
import torch
from tests.unit.receiver_sites import Site, tau

from dcr.codec import Item
from dcr.receiver.gate import ServingGate
from dcr_adapters.hf.prompt_cache import Prefilled, PromptCache

KEY = (1, (7,))


class Served:
    """A site whose gate is the real one, with a cache that is filled after every opening."""

    def __init__(self) -> None:
        self.gate, self.prompts = ServingGate(), PromptCache(1 << 20)
        self.gate.on_change(self.prompts.clear)
        self.site = Site(gate=self.gate)  # type: ignore[arg-type]
        self.site.join()
        self.fill()

    def fill(self) -> None:
        with self.gate.enter():
            self.prompts.put(KEY, Prefilled(torch.zeros(1), None))

    @property
    def kept(self) -> bool:
        with self.gate.enter():
            return self.prompts.get(KEY) is not None

    def transition(self, items: list[Item]) -> None:
        site, attempt = self.site, tau(1, 2)
        site.agent.fence(attempt, site.records[0])
        site.agent.open_apply(attempt, site.records[0])
        refs = site.publish(attempt, items)
        site.agent.finish(attempt, site.manifest(attempt, refs))
        site.agent.settle(site.commit(attempt, refs))
        assert self.gate.version == 1


@pytest.fixture
def served() -> Served:
    return Served()


def test_a_refit_clears(served: Served) -> None:
    assert served.kept
    served.transition(served.site.items(1))
    assert not served.kept


def test_a_refit_that_changed_nothing_keeps(served: Served) -> None:
    served.site.versions[1] = served.site.versions[0]
    served.transition([])
    assert served.kept


def test_a_restore_clears(served: Served) -> None:
    """Of torn storage, after an attempt that was given up."""
    site = served.site
    site.agent.fence(tau(1, 2), site.records[0])
    site.agent.open_apply(tau(1, 2), site.records[0])
    site.agent.fence(tau(1, 3), site.records[0])
    site.agent.restore(tau(1, 3), site.records[0])
    site.agent.settle(site.records[0])
    assert served.gate.version == 0
    assert not served.kept
