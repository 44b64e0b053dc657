"""DCR as a weight transfer engine of vLLM (``weight_transfer_config={"backend": "dcr"}``).

For those who drive weight updates with vLLM's own calls and routes. Naming it also keeps weights loadable
on the CPU. vLLM's calls give no answers back, so a failure is raised and vLLM ends the update; the
receiver of a run takes the same calls with answers, over ``DcrWorkerExtension``.

Nobody joins the digests of all ranks here, so an item's target digest is not compared. What is written must
not build on what lies there: differences (xor, delta16) are refused, overwrites are read back at the end.
"""

import json
import os
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

import dcr.errors
from dcr.errors import AttemptFailed, UnsupportedPath
from dcr.model import from_json
from dcr.receiver.rank import RankPlacement
from dcr.receiver.workers.messages import Call, Greeting
from dcr.receiver.workers.rank_server import RankServer, local_rank
from dcr_adapters.vllm.loader import VllmLoader


@dataclass
class DcrInitInfo(WeightTransferInitInfo):  # type: ignore[misc]  # vLLM ships no types
    """Where the run is: see ``dcr.receiver.workers.messages.Configure``."""

    store: str = ""
    run: str = ""
    catalogue: str = ""


@dataclass
class DcrUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """One call of ``RankServer`` for every rank: ``method`` and its named parameters."""

    method: str = "apply"
    params: dict[str, Any] = field(default_factory=dict)


class DcrWeightTransferEngine(WeightTransferEngine):  # type: ignore[misc]
    """Holds this worker's receiver. vLLM makes one after it has loaded the model."""

    init_info_cls = DcrInitInfo
    update_info_cls = DcrUpdateInfo
    supports_draft_weight_update = False

    def __init__(self, config: Any, vllm_config: Any, device: torch.device, model: torch.nn.Module) -> None:
        super().__init__(config, vllm_config, device, model)
        parallel = vllm_config.parallel_config
        greeting = Greeting(parallel.rank, parallel.world_size, os.getpid(), str(device))
        self.server = RankServer(VllmLoader(model, vllm_config), greeting, make_rank=local_rank)

    def init_transfer_engine(self, init_info: DcrInitInfo) -> None:
        """Join a run. Raises what the rank raised."""
        wanted = {"store": init_info.store, "run": init_info.run, "catalogue": init_info.catalogue}
        self._do("configure", wanted)

    def start_weight_update(self) -> None:
        """Nothing: ``begin`` is a call of its own, because it says whether storage is proven."""

    def receive_weights(self, update_info: DcrUpdateInfo) -> None:
        """Make one call. Raises what the rank raised, and UnsupportedPath if ``prewarm`` has refusals."""
        method, params = update_info.method, update_info.params
        answer = self._do(method, {**params, "allow_xor": False} if method == "apply" else params)
        if method == "prewarm":
            _require_supported(from_json(RankPlacement, answer))

    def finish_weight_update(self) -> None:
        """Everything written is in place and read back, and derived weights are made anew.

        Raises:
            AttemptFailed: two copies differ, or an element does not hold its bits; the storage is torn.
        """
        self._do("synchronize", {})
        self._do("check", {})

    def shutdown(self) -> None:
        """Nothing is held open."""

    def _do(self, method: str, params: dict[str, Any]) -> str:
        answer = self.server.answer(Call(method, json.dumps(params)))
        if answer.error:
            raise getattr(dcr.errors, answer.error, AttemptFailed)(answer.message)
        return answer.value


def _require_supported(placement: RankPlacement) -> None:
    refused = {name: path.refusal for name, path in placement.paths.items() if path.refusal}
    refused |= placement.refusals
    if refused:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in sorted(refused.items()))
        raise UnsupportedPath(f"the loader cannot take deltas: {reasons}")
