"""Deltas equal a dense refit on a framework's loaders: every rank, every parameter and buffer (B2, B7).

Hook (xor, delta16, overwrite) and learned placement (xor, add, set), through the front that a real
engine uses. The oracle is the stock loader with the new checkpoint, in the same ranks.
A lane subclasses ``LoaderMatrix`` and gives the fixture ``case``.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest
from tests.lanes.shared import checkpoints
from tests.lanes.shared.forked import World
from tests.lanes.shared.run import Run, items_of

from dcr.model import Catalogue, Classification, Encoding
from dcr.receiver.instance import InstanceWriter
from dcr.receiver.methods import MethodName
from dcr.receiver.ports import NativeLoader
from dcr.receiver.rank import Method, RankPort
from dcr.receiver.workers.rank_server import MakeRank
from dcr.receiver.workers.ranks import RemoteRank, Workers, remote_ranks
from dcr.testing.deltas import audit_of

METHODS: tuple[MethodName, ...] = ("auto", "hook")
LEARNED_SHARE = 0.99


def make_rank(method: MethodName) -> MakeRank:
    """Ranks that use ``method`` wherever they can."""

    def make(loader: NativeLoader, catalogue: Catalogue) -> RankPort:
        from dcr.receiver.apply import RankApplier

        return RankApplier(loader, catalogue, method=method)

    return make


class Case:
    """One engine's ranks at the old version, and what stock loading makes of both versions."""

    def __init__(self, ranks: World, old: Path, new: Path, folder: Path, method: MethodName) -> None:
        self.family, self.method = old.name, method
        self.run = Run(folder, checkpoints.catalogue(old), checkpoints.version(old))
        self.old, self.new = checkpoints.version(old), checkpoints.version(new)
        self.ranks: list[RemoteRank] = remote_ranks(Workers(ranks, folder=folder), self.run.setup())
        self.stock_old = self.stock(old)
        self.stock_new = self.stock(new)
        self.ranks = remote_ranks(Workers(ranks, folder=folder), self.run.setup())
        self.writer = InstanceWriter(self.ranks, self.run.catalogue)
        self.restore()

    def stock(self, path: Path) -> list[dict[str, str]]:
        """Digests by rank after the stock loader has loaded ``path``."""
        for rank in self.ranks:
            rank.load_dense(path / "model.safetensors")
        return self.digests()

    def digests(self) -> list[dict[str, str]]:
        """Of every parameter and buffer, by rank."""
        return [rank.digests() for rank in self.ranks]

    def restore(self) -> None:
        """The old version, proven."""
        self.writer.restore(self.old, audit_of(self.run.catalogue, self.old))

    def apply(self, encoding: Encoding, classes: Classification) -> None:
        """From the old version to the new one."""
        attempt = self.run.next_attempt()
        items = items_of(self.run.catalogue, self.old, self.new, classes, encoding)
        self.writer.begin(clean=True)
        for payload in self.run.payloads(attempt, items):
            self.writer.apply(payload)
        self.writer.synchronize()
        self.writer.check()


class LoaderMatrix:
    """``not_learned``: family -> end of a canonical name -> a word of the reason, as its page has it."""

    not_learned: ClassVar[Mapping[str, Mapping[str, str]]] = {}

    def test_restored_equals_stock(self, case: Case) -> None:
        """Of any earlier contents."""
        assert case.stock_old != case.stock_new
        case.restore()
        assert case.digests() == case.stock_old

    @pytest.mark.parametrize("encoding", [Encoding.XOR, Encoding.DELTA16, Encoding.OVERWRITE])
    def test_delta_equals_stock(self, case: Case, encoding: Encoding) -> None:
        """Padding and buffers too."""
        case.restore()
        case.apply(encoding, case.writer.prewarm())
        assert case.digests() == case.stock_new
        assert case.writer.audit().items() <= audit_of(case.run.catalogue, case.new).items()

    def test_nearly_every_byte_is_learned(self, case: Case) -> None:
        """What is not has a reason that is known; where the hook is asked for, nothing is."""
        if case.method != "auto":
            taken = {choice.method for rank in case.writer.diagnose() for choice in rank.tensors.values()}
            assert Method.HOOK in taken
            assert Method.LEARNED not in taken
            return
        known = next((found for family, found in self.not_learned.items() if family in case.family), {})
        for rank in case.writer.diagnose():
            assert not rank.refusals
            num_bytes = {True: 0, False: 0}
            for name, choice in rank.tensors.items():
                num_bytes[choice.method == Method.LEARNED] += choice.num_bytes
                if choice.method != Method.LEARNED:
                    assert known[name.rsplit(".", 1)[-1]] in choice.reason, (name, choice)
            assert num_bytes[True] >= LEARNED_SHARE * sum(num_bytes.values())
