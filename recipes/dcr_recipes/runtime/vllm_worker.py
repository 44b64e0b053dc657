"""What a run adds to each vLLM worker process: raw dumps and injected faults.

Named by ``worker_extension_cls``; vLLM imports it in each worker before the model is loaded.
"""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from typing_extensions import override

from dcr import observe
from dcr.model import from_json
from dcr.receiver.workers.messages import Apply, Calls
from dcr_adapters.vllm.loader import VllmLoader
from dcr_adapters.vllm.worker import DcrWorkerExtension
from dcr_recipes.runtime import rank_faults
from dcr_recipes.runtime.arguments import CONTEXT
from dcr_recipes.runtime.dump import rank_file, sampled, write_dump


class RunWorkerExtension(DcrWorkerExtension):
    """Mixed into vLLM's worker, whose names must not meet ours; hence the prefix."""

    @override
    def dcr_call(self, calls: str) -> dict[str, Any]:
        """See ``DcrWorkerExtension``; the point ``rank.apply`` names the attempt for injected faults."""
        if not hasattr(self, "dcr_listening"):
            self.dcr_listening = ExitStack()
            worker: Any = self
            told = worker.vllm_config.additional_config.get(CONTEXT)
            rank_faults.listen(self.dcr_listening, told, worker.rank)
        mine = from_json(Calls, calls).get(str(self.rank))  # type: ignore[attr-defined]  # vLLM's worker
        if mine is not None and mine.method == "apply":
            observe.point("rank.apply", attempt=str(from_json(Apply, mine.params).attempt))
        return super().dcr_call(calls)

    def dcr_dump(self, path: str, share: float, sample: str) -> int:
        """Write this rank's parameters and buffers to ``<path>.rank-<rank>``; returns their bytes."""
        worker: Any = self
        resident = VllmLoader(worker.model_runner.get_model()).resident()
        return write_dump(rank_file(Path(path), worker.rank), sampled(resident, share, sample))
