"""vLLM's real model on forked ranks, see ``tests.lanes.shared.forked``."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from tests.lanes.shared.forked import Body, Extra, World, forked, free_port

from dcr.receiver.workers.rank_server import MakeRank, local_rank
from dcr_adapters.vllm import keep_unpacked, plugin
from dcr_adapters.vllm.loader import VllmLoader


@dataclass(frozen=True, slots=True)
class Layout:
    """How many ranks a model is spread over, and how its experts are."""

    tp: int = 1
    pp: int = 1
    ep: bool = False
    replicas: int = 0

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.tp * self.pp

    @property
    def name(self) -> str:
        """For people."""
        further = [("pp", self.pp > 1), ("ep", self.ep), ("eplb", self.replicas > 0)]
        return "-".join([f"tp{self.tp}", *(word for word, holds in further if holds)])

    def options(self) -> dict[str, Any]:
        """Arguments of the engine."""
        found: dict[str, Any] = {"tensor_parallel_size": self.tp, "pipeline_parallel_size": self.pp}
        if self.ep or self.replicas:
            found["enable_expert_parallel"] = True
        if self.replicas:
            found |= {"enable_eplb": True, "eplb_config": {"num_redundant_experts": self.replicas}}
        return found


@contextmanager
def world(
    model: Path,
    layout: Layout,
    *,
    keep: bool = True,
    make_rank: MakeRank = local_rank,
    extra: dict[str, Extra] | None = None,
    **options: Any,
) -> Iterator[World]:
    """Ranks that have loaded ``model``; ended afterwards. ``keep`` false is stock vLLM."""
    identity = f"dcr-lane-{uuid4().hex[:12]}"
    rank = _Rank(layout, _config(model, layout, options), (free_port(), identity), keep)
    try:
        with forked(Body(layout.world, rank.load, _leave, make_rank, extra or {})) as found:
            yield found
    finally:
        for left in Path("/dev/shm").glob(f"{identity}-*"):  # vLLM's ranks leave their mailbox behind
            left.unlink()


@dataclass(frozen=True, slots=True)
class _Rank:
    layout: Layout
    config: Any
    meeting: tuple[int, str]
    keep: bool

    def load(self, rank: int) -> VllmLoader:
        """In a process of its own."""
        from vllm.config import set_current_vllm_config
        from vllm.distributed import init_distributed_environment, initialize_model_parallel
        from vllm.model_executor.model_loader import get_model

        port, os.environ["VLLM_DIST_IDENT"] = self.meeting
        os.environ[keep_unpacked.SWITCH] = "1" if self.keep else "0"
        torch.set_num_threads(1)
        plugin.register()
        with set_current_vllm_config(self.config):
            init_distributed_environment(
                self.layout.world, rank, f"tcp://127.0.0.1:{port}", rank, backend="gloo"
            )
            initialize_model_parallel(self.layout.tp, self.layout.pp)
            return VllmLoader(get_model(vllm_config=self.config), self.config)


def _leave() -> None:
    from vllm.distributed.parallel_state import destroy_distributed_environment, destroy_model_parallel

    destroy_model_parallel()
    destroy_distributed_environment()


def _config(model: Path, layout: Layout, options: dict[str, Any]) -> Any:
    from vllm.engine.arg_utils import EngineArgs

    torch.accelerator.empty_cache = lambda: None
    torch.accelerator.synchronize = lambda *_: None
    with _balanced(layout):
        return EngineArgs(
            model=str(model),
            dtype="bfloat16",
            max_model_len=256,
            enforce_eager=True,
            **layout.options(),
            **options,
        ).create_engine_config()


@contextmanager
def _balanced(layout: Layout) -> Iterator[None]:
    """vLLM allows redundant experts on CUDA alone when it checks arguments; the loader needs no device."""
    from vllm.platforms import current_platform

    kind = type(current_platform)
    stock = kind.is_cuda_alike
    if layout.replicas:
        kind.is_cuda_alike = lambda _: True
    try:
        yield
    finally:
        kind.is_cuda_alike = stock
