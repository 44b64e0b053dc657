"""One trainer rank of a run without transport: rank 0 serves itself, from a stock model loaded densely.

usage: python -m tests.integration.grpo_ranks RANK PORT FOLDER STEPS LR; writes ``rank-<n>.json`` to FOLDER.
``committed`` in FOLDER plays the commit record: a run that ends at step 3 dies before that step commits.
"""

import json
import os
import sys
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from tests.integration.stock_loader import StockLoader

from dcr.receiver.gate import ServingGate
from dcr_recipes.grpo.fsdp import fsdp_learner
from dcr_recipes.grpo.metrics import run_token_digest, weights_digest
from dcr_recipes.grpo.policy import build_tiny
from dcr_recipes.grpo.rollout import RolloutClient
from dcr_recipes.grpo.settings import GrpoSettings, ModelSizes
from dcr_recipes.grpo.tasks import random_tokens
from dcr_recipes.grpo.training import Start, assemble
from dcr_recipes.runtime.hf import HfEngine, LoaderStorage
from dcr_recipes.runtime.worker import RuntimeWorker

SIZES = ModelSizes()
STEP_THAT_IS_NOT_COMMITTED = 3


class Position(NamedTuple):
    version: int
    step: int


class Served:
    """Rank 0's runtime, asked under two names, and the dense refit that feeds it."""

    def __init__(self, seed: int, folder: Path) -> None:
        self._file = folder / "dense.safetensors"
        model = build_tiny(SIZES, seed).to(torch.bfloat16).eval()
        storage = LoaderStorage(StockLoader(model))
        self._worker = RuntimeWorker("runtime-0", HfEngine(model), storage=storage, gate=ServingGate())
        asked = self._worker.generate
        self.rollouts = RolloutClient([("runtime-0", asked), ("again", asked)], 16, 1.0)

    def refit(self, dense: dict[str, torch.Tensor], version: int) -> None:
        from safetensors.torch import save_file

        save_file(dense, self._file)
        self._worker.load_dense(str(self._file), version)


def main() -> None:
    rank, port, folder, steps, lr = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), *sys.argv[4:6]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2, timeout=timedelta(seconds=60))
    answer = _run(folder, int(steps), GrpoSettings(seed=11, lr=float(lr)))
    (folder / f"rank-{rank}.json").write_text(json.dumps(answer))
    dist.destroy_process_group()


def _run(folder: Path, steps: int, settings: GrpoSettings) -> dict[str, object]:
    served = Served(settings.seed, folder) if dist.get_rank() == 0 else None
    start = Start(build_tiny(SIZES, settings.seed), random_tokens(settings, SIZES.vocabulary), settings)
    training = assemble(
        start,
        fsdp_learner(start.model, settings),
        checkpoints=folder / "checkpoints",
        run="0" * 32,
        rollouts=served.rollouts if served else None,
    )
    committed = folder / "committed"
    if committed.exists():
        version = int(committed.read_text())
        assert training.restore(Position(version, version))
    done = len(training.history)
    before, changed = training.gather(), []
    _refit(served, before, done)
    for step in range(done + 1, steps + 1):
        training.rollout_and_train(step, version=step - 1)
        training.save(step)
        after = training.gather()
        _refit(served, after, step)
        changed.append(_num_changed(before, after))
        before = after
    if served is not None:
        committed.write_text(str(steps - 1 if steps == STEP_THAT_IS_NOT_COMMITTED else steps))
    return {
        "weights": weights_digest(before),
        "tokens": run_token_digest(training.history),
        "history": [asdict(metrics) for metrics in training.history],
        "changed": changed,
        "num_elements": sum(tensor.numel() for tensor in before.values()),
    }


def _refit(served: Served | None, dense: dict[str, torch.Tensor], version: int) -> None:
    if served is not None:
        served.refit(dense, version)


def _num_changed(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> int:
    return sum(int((before[n].view(torch.int16) != after[n].view(torch.int16)).sum()) for n in before)


if __name__ == "__main__":
    main()
