"""A native loader's storage that is rebuilt at a bad moment, or cannot be learned anew."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from tests.unit.receiver_sites import Site, tau

from dcr.errors import AttemptFailed, UnsupportedPath
from dcr.model import Catalogue, ReceiverState, TensorSpec
from dcr.receiver.apply import RankApplier
from dcr.receiver.join import join
from dcr.receiver.prewarm import learn
from dcr.receiver.rank import PartDigests
from dcr.receiver.writer import Slice
from dcr.testing.torture import BF16, Pattern, TortureRuntime
from dcr.testing.toy_runtime import AUDIT_KEY, RUN


@pytest.fixture
def site() -> Site:
    made = Site()
    made.join()
    return made


def _rebuild(site: Site) -> None:
    for tensor in site.runtime.resident().values():
        tensor.data = tensor.data.clone()


def test_rebuilt_while_a_slice_is_read_is_no_damage(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines rebalance experts in threads of their own: nothing is known, and the next step learns anew."""
    real = RankApplier.scan

    def scan(rank: RankApplier, slices: Sequence[Slice]) -> list[PartDigests]:
        _rebuild(site)
        return real(rank, slices)

    with monkeypatch.context() as once:
        once.setattr(RankApplier, "scan", scan)
        with pytest.raises(AttemptFailed, match="learned and proven again"):
            site.agent.examine()
    assert site.agent.examine() > 0
    assert site.agent.diagnose().audit.finding is None
    assert site.served() == 0


def test_a_storage_that_cannot_be_learned_anew_is_told_and_restored(site: Site) -> None:
    """``dcr doctor`` answers in between, and a restore learns once more."""
    _rebuild(site)
    site.runtime.hostile["tiny.q"] = lambda r, _, __: r.data("norm").view(torch.int16).numpy().fill(5)
    with pytest.raises(UnsupportedPath, match="past the dispatch hook"):
        site.agent.fence(tau(1, 2), site.records[0])
    assert site.agent.report().state is ReceiverState.EMPTY
    assert "nothing is learned" in site.agent.diagnose().rebuilt
    site.runtime.hostile.clear()
    site.agent.restore(tau(1, 2), site.records[0])
    assert site.holds(0)


def test_storages_that_share_bytes_are_refused() -> None:
    """Slices of one numpy array are storages of their own to torch: overlaps between them would be unseen."""

    def sliced() -> dict[str, torch.Tensor]:
        memory = torch.from_numpy(np.zeros(96, dtype=np.int16)).numpy()
        views = {"target": memory[:64], "second": memory[32:]}
        return {name: torch.from_numpy(part).view(BF16).view(8, 8) for name, part in views.items()}

    def place(runtime: TortureRuntime, weight: torch.Tensor) -> None:
        runtime["target"].copy_(weight)
        runtime["second"][:4].copy_(weight[4:])

    loader = TortureRuntime(Pattern("sliced", place, resident=sliced))
    catalogue = Catalogue(
        RUN, AUDIT_KEY, (TensorSpec("w", (8, 8), "bfloat16"), TensorSpec("n", (4, 8), "bfloat16"))
    )
    table = learn(loader, catalogue)
    with pytest.raises(UnsupportedPath, match=r"second .*begins inside that of 'target'"):
        join([table.rank_placement], table.specs).require_supported()
