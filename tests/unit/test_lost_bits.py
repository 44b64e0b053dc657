"""A receiver that stores tensors in a form that loses bits says so, once and by name (DESIGN B2, B6)."""

import logging
from collections.abc import Iterable

import numpy as np
import pytest
import torch
from tests.unit.receiver_sites import Site

from dcr.errors import IntegrityError
from dcr.receiver.apply import RankApplier
from dcr.receiver.methods import MethodName, rank_map
from dcr.receiver.ports import NativeLoader
from dcr.receiver.prewarm import learn
from dcr.receiver.rank import LOSES_BITS, Method, is_read_back
from dcr.receiver.rehearsal import unlike_reloaded
from dcr.receiver.storages import Storages
from dcr.testing import misbehaviour as bad
from dcr.testing.deltas import random_version
from dcr.testing.native_loader_suite import dense_load
from dcr.testing.toy_runtime import ToyRuntime

ADVICE = "serve the dtype that the trainer publishes"


def _half() -> ToyRuntime:
    """Serves FP16 where the trainer publishes BF16."""
    runtime = ToyRuntime(tiny=True)
    runtime._tensors["qk"] = torch.nn.Parameter(torch.zeros(6, 2, dtype=torch.float16), requires_grad=False)
    return runtime


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith("dcr.receiver") and record.levelno == logging.WARNING
    ]


def test_casts_are_told_when_the_receiver_is_made(caplog: pytest.LogCaptureFixture) -> None:
    site = Site(_half())
    (warning,) = _warnings(caplog)
    lossy = {"tiny.q", "tiny.k"}
    assert warning.startswith(f"runtime-0: 2 tensors are {LOSES_BITS}: torch.float16")
    assert ADVICE in warning
    (rank,) = site.agent.diagnose().ranks
    assert {n for n, choice in rank.tensors.items() if choice.method == Method.WHOLE} == lossy
    assert {rank.tensors[n].reason for n in lossy} == {f"{LOSES_BITS}: torch.float16"}


def test_what_keeps_every_bit_is_no_reason_to_warn(caplog: pytest.LogCaptureFixture) -> None:
    Site()
    assert _warnings(caplog) == []


@pytest.mark.parametrize("method", ["auto", "hook"])
def test_what_is_not_read_back_has_a_host_copy(method: MethodName) -> None:
    runtime = ToyRuntime()
    dense_load(runtime, runtime.catalogue, random_version(runtime.catalogue, np.random.default_rng(3)))
    runtime.hostile["q.weight"] = bad.computed
    found = rank_map(learn(runtime, runtime.catalogue, keep_copies=method == "hook"), method)
    indirect = {n for n, p in found.paths.items() if p.cover and not is_read_back(p.method, p.reason)}
    assert "q.weight" in indirect
    assert indirect == set(found.shadowed)


def test_storage_is_proven_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """The storages that a rehearsal copies are those of one part; what goes together is in one."""
    runtime = _half()
    runtime.hostile["tiny.norm"] = bad.computed
    version = random_version(runtime.catalogue, np.random.default_rng(3))
    rank = RankApplier(runtime, runtime.catalogue)
    rank.prewarm()
    rank.restore(version)
    parts: list[list[str]] = []

    def heard(
        loader: NativeLoader, storages: Storages, weights: Iterable[tuple[str, torch.Tensor]]
    ) -> list[str]:
        named = list(weights)
        parts.append([name for name, _ in named])
        return unlike_reloaded(loader, storages, named)

    monkeypatch.setattr("dcr.receiver.apply.unlike_reloaded", heard)
    rank.audit()
    assert len(parts) == 1
    monkeypatch.setattr("dcr.receiver.apply.REHEARSED_BYTES", 1)
    rank.audit()
    assert parts[1:] == [["tiny.q"], ["tiny.k"], ["tiny.norm"]]
    assert parts[0] == ["tiny.q", "tiny.k", "tiny.norm"]
    runtime._tensors["qk"].data.view(torch.int16)[5, 1] ^= 1
    with pytest.raises(IntegrityError, match="qk: storage does not hold"):
        rank.audit()
