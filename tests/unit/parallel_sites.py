"""A receiver of several toy ranks over a store in memory."""

from dataclasses import dataclass, field

import numpy as np
from tests.unit.receiver_sites import Site, tau

from dcr.codec import Item
from dcr.model import Catalogue
from dcr.receiver.agent import ReceiverAgent
from dcr.receiver.instance import InstanceWriter
from dcr.testing.deltas import delta_items
from dcr.testing.toy_parallel import catalogue
from dcr.testing.toy_rank import ToyRank, toy_ranks
from dcr.transport.object_transport import ObjectTransport


@dataclass
class ParallelSite(Site):
    """See ``Site``; version n is ``versions[n]``."""

    num_ranks: int = 2
    slice_bytes: int = 64
    ranks: list[ToyRank] = field(default_factory=list)

    @property
    def catalogue(self) -> Catalogue:  # type: ignore[explicit-override]
        return catalogue()

    def start(self) -> ReceiverAgent:  # type: ignore[explicit-override]
        self.ranks = toy_ranks(self.num_ranks)
        return ReceiverAgent(
            "runtime-0",
            InstanceWriter(self.ranks, self.catalogue),
            self.gate,
            transport=ObjectTransport(self.store, self.catalogue.run),
            archive=self.archive,
            catalogue=self.catalogue,
            incarnation="i",
            slice_bytes=self.slice_bytes,
        )

    def items(self, version: int, *, overwrite: bool = False) -> list[Item]:  # type: ignore[explicit-override]
        classes = None if overwrite else self.agent.report().classification
        return [
            item
            for item in delta_items(
                self.catalogue, self.versions[version - 1], self.versions[version], classes
            )
            if item.name != "head.weight"
        ]

    def holds(self, version: int) -> bool:  # type: ignore[explicit-override]
        """Every copy of every rank."""
        return all(
            np.array_equal(copy.bits, self.versions[version][name][copy.index])
            for rank in self.ranks
            for name, copies in rank.copies.items()
            for copy in copies
        )

    def flip(self, rank: int, name: str, index: int, copy: int = 0) -> None:
        """One bit of one canonical element on one rank."""
        held = self.ranks[rank].copies[name][copy]
        held.bits[np.flatnonzero(held.index == index)] ^= 1

    def refit(self, version: int, number: int) -> None:
        """A whole undisturbed transition."""
        attempt = tau(version, number)
        self.agent.fence(attempt, self.records[-1])
        self.agent.open_apply(attempt, self.records[-1])
        refs = self.publish(attempt, self.items(version))
        self.agent.finish(attempt, self.manifest(attempt, refs))
        self.agent.settle(self.commit(attempt, refs))

    def full_pass(self, limit: int = 500) -> None:
        """Step until a pass has ended, or the instance is out."""
        before = self.agent.diagnose().audit.num_passes
        for _ in range(limit):
            if not self.agent.examine() or self.agent.diagnose().audit.num_passes > before:
                return
        raise AssertionError(f"no pass in {limit} steps")
