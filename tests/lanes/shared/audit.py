"""The background audit of a real engine: one bit of one worker, found, named, taken out and repaired (B6)."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from tests.lanes.shared import checkpoints
from tests.lanes.shared.engine import PATIENCE_S, PROMPTS, Served
from tests.lanes.shared.run import Run

from dcr.model import AuditFinding, ReceiverState
from dcr.receiver.agent import ReceiverAgent

Flip: TypeAlias = Callable[[int, str, int], None]
"""Flip the lowest bit of a 2-byte element, of one rank's resident tensor."""
_QKV, _DOWN = "model.layers.1.self_attn.qkv_proj.weight", "model.layers.0.mlp.down_proj.weight"
_COLUMNS, _ROW = 128, 2
"""Of llama's projections; the element that is hit lies in row 2 of what its rank holds."""


def scan(receiver: ReceiverAgent) -> AuditFinding | None:
    """One pass, or what ended it."""
    before = receiver.diagnose().audit.num_passes
    while receiver.examine() and receiver.diagnose().audit.num_passes == before:
        pass
    return receiver.diagnose().audit.finding


def check_audit(engine: Served, old: Path, folder: Path, flip: Flip) -> None:
    """``engine`` serves the llama checkpoint ``old`` on two ranks."""
    run = Run(folder, checkpoints.catalogue(old), checkpoints.version(old))
    receiver = engine.receiver(run, folder)
    run.admit(receiver)
    run.refit(receiver, checkpoints.flipped(run.newest, rate=0.2, seed=3), receiver.report().classification)
    before = [engine.ask(prompt).tokens for prompt in PROMPTS]
    assert scan(receiver) is None
    for rank, resident, tensor, element in (
        # rank 1 holds the second half of the heads: of 128 rows of the projection the last 64
        (1, _QKV, "model.layers.1.self_attn.q_proj.weight", (64 + _ROW) * _COLUMNS + 5),
        # rank 0 holds the first half of the columns of each row
        (0, _DOWN, "model.layers.0.mlp.down_proj.weight", _ROW * 256 + 5),
    ):
        flip(rank, resident, _ROW * _COLUMNS + 5)
        finding = scan(receiver)
        assert finding is not None
        assert (finding.tensor, finding.ranges) == (tensor, ((element, element + 1),))
        assert f"rank {rank} at elements {element}..{element}" in finding.detail
        assert receiver.lost.is_set()
        assert receiver.report().state is ReceiverState.EMPTY
        waiting = engine.begin(PROMPTS[0], 4)
        run.admit(receiver)
        assert scan(receiver) is finding, "the next pass finds nothing new"
        assert waiting.result(PATIENCE_S).tokens == before[0][:4]
        assert [engine.ask(prompt).tokens for prompt in PROMPTS] == before
