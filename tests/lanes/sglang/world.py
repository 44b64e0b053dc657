"""SGLang's real model on forked ranks, see ``tests.lanes.shared.forked``."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tests.lanes.shared.forked import Body, Extra, World, forked, free_port

from dcr.receiver.workers.rank_server import MakeRank, local_rank
from dcr_adapters.sglang.loader import SglangLoader


@dataclass(frozen=True, slots=True)
class Layout:
    """How many ranks a model is spread over, and over how many of them its experts are."""

    tp: int = 1
    ep: int = 1

    @property
    def name(self) -> str:
        """For people."""
        return f"tp{self.tp}" + (f"-ep{self.ep}" if self.ep > 1 else "")


@contextmanager
def world(
    model: Path,
    layout: Layout,
    *,
    make_rank: MakeRank = local_rank,
    extra: dict[str, Extra] | None = None,
    **options: Any,
) -> Iterator[World]:
    """Ranks that have loaded ``model``; ended afterwards. ``options``: further server arguments."""
    rank = _Rank(model, layout, free_port(), options)
    with forked(Body(layout.tp, rank.load, _leave, make_rank, extra or {})) as found:
        yield found


@dataclass(frozen=True, slots=True)
class _Rank:
    model: Path
    layout: Layout
    port: int
    options: dict[str, Any]

    def load(self, rank: int) -> SglangLoader:
        """In a process of its own, as a scheduler does it."""
        from sglang.srt.configs.device_config import DeviceConfig
        from sglang.srt.configs.load_config import LoadConfig
        from sglang.srt.configs.model_config import ModelConfig
        from sglang.srt.model_loader.loader import get_model_loader

        torch.set_num_threads(1)
        config = ModelConfig(model_path=str(self.model), dtype="bfloat16")
        self._join(rank, config)
        loader = get_model_loader(LoadConfig(), config)
        return SglangLoader(loader.load_model(model_config=config, device_config=DeviceConfig("cpu")))

    def _join(self, rank: int, config: Any) -> None:
        from sglang.srt.distributed.parallel_state import (
            init_distributed_environment,
            initialize_model_parallel,
        )
        from sglang.srt.layers.dp_attention import init_dp_gathered_buffer, initialize_dp_attention
        from sglang.srt.layers.moe import initialize_moe_config
        from sglang.srt.runtime_context import SpawnRanks, publish

        settings = self._settings()
        publish(settings, role="scheduler", ranks=SpawnRanks(world_rank=rank, gpu_id=0))
        initialize_moe_config()
        init_distributed_environment(
            world_size=self.layout.tp,
            rank=rank,
            distributed_init_method=f"tcp://127.0.0.1:{self.port}",
            local_rank=rank,
            backend="gloo",
        )
        initialize_model_parallel()
        initialize_dp_attention(settings)
        init_dp_gathered_buffer(config)

    def _settings(self) -> Any:
        from sglang.srt.server_args import ServerArgs

        settings = ServerArgs(
            model_path=str(self.model),
            device="cpu",
            tp_size=self.layout.tp,
            ep_size=self.layout.ep,
            attention_backend="torch_native",
            sampling_backend="pytorch",
            skip_tokenizer_init=True,
            mem_fraction_static=0.1,
            disable_cuda_graph=True,
            **self.options,
        )
        settings.resolve_once()
        return settings


def _leave() -> None:
    os.environ.pop("MASTER_ADDR", None)
    torch.distributed.destroy_process_group()
