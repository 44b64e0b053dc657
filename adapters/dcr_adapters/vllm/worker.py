"""What DCR adds to each vLLM worker process (``worker_extension_cls``, DESIGN R9, B7).

vLLM mixes this class into its worker. Importing it, which vLLM does before it loads the model, also
keeps weights loadable on the CPU, should the entry point not have been found.
"""

import os
from dataclasses import asdict
from typing import Any

from dcr.model import from_json
from dcr.receiver.workers.messages import Answer, Calls, Greeting
from dcr.receiver.workers.rank_server import RankServer, local_rank
from dcr_adapters.vllm import plugin
from dcr_adapters.vllm.loader import VllmLoader

plugin.register()


class DcrWorkerExtension:
    """Only names that begin with ``dcr_``: vLLM refuses a worker that has one of them already."""

    def dcr_call(self, calls: str) -> dict[str, Any]:
        """Answer this rank's part of a collective call; never raises for what the call did."""
        mine = from_json(Calls, calls).get(str(self.rank))  # type: ignore[attr-defined]  # vLLM's worker
        if mine is None:
            return asdict(Answer(self.rank, asked=False))  # type: ignore[attr-defined]
        return asdict(self._dcr_server().answer(mine))

    def _dcr_server(self) -> RankServer:
        if not hasattr(self, "dcr_server"):
            self.dcr_server = make_server(self)
        return self.dcr_server


def make_server(worker: Any) -> RankServer:
    """The calls of one vLLM worker, over the model that it serves."""
    config = worker.vllm_config
    loader = VllmLoader(worker.model_runner.get_model(), config)
    greeting = Greeting(
        rank=worker.rank,
        world=config.parallel_config.world_size,
        process=os.getpid(),
        device=str(getattr(worker, "device", "cpu")),
    )
    return RankServer(loader, greeting, make_rank=local_rank)
