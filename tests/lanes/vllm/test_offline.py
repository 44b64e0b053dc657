"""Refits of an offline ``LLM``, between two calls of ``generate`` (DESIGN R19)."""

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import vllm  # noqa: F401 -- imported once, before processes are forked
from tests.lanes.shared import checkpoints
from tests.lanes.shared.run import Run, items_of
from tests.lanes.vllm.offline import in_fork, offline, say

from dcr.codec import Payload
from dcr.errors import AttemptFailed
from dcr.model import Encoding, PathClass, to_json
from dcr.receiver.workers.gate import OfflineGate
from dcr.receiver.workers.messages import Apply
from dcr.receiver.workers.ranks import Workers
from dcr_adapters.vllm.control import OfflineControl


def fresh(model: Path) -> list[list[int]]:
    return say(offline(model))


def test_refits_between_two_batches(tmp_path: Path) -> None:
    paths = [checkpoints.make(tmp_path, "qwen3moe")]
    for number in range(3):
        paths.append(checkpoints.changed(paths[-1], tmp_path / f"v{number + 1}", rate=0.2, seed=number))
    run = Run(tmp_path, checkpoints.catalogue(paths[0]), checkpoints.version(paths[0]))

    def body() -> Any:
        llm = offline(paths[0])
        control = OfflineControl(llm)
        gate = OfflineGate(control)
        receiver = run.receiver("offline", Workers(control, folder=tmp_path), gate)
        run.admit(receiver)
        said = []
        for path in [None, *paths[1:]]:
            if path is not None:
                run.refit(receiver, checkpoints.version(path), receiver.report().classification)
            with gate.generating() as version:
                said.append([version, llm.llm_engine.get_weight_version(), say(llm)])
        return said

    said = in_fork(body)
    assert [entry[:2] for entry in said] == [[v, str(v)] for v in range(4)]
    for path, (_, _, tokens) in zip(paths, said, strict=True):
        assert tokens == in_fork(partial(fresh, path))
    assert said[0][2] != said[-1][2]


def test_vllms_own_weight_update_calls(tmp_path: Path) -> None:
    """Backend ``dcr``, by the entry point alone, without a worker extension; differences are refused."""
    old = checkpoints.make(tmp_path, "llama")
    new = checkpoints.changed(old, tmp_path / "new", rate=0.2)
    run = Run(tmp_path, checkpoints.catalogue(old), checkpoints.version(old))
    classes = dict.fromkeys(run.catalogue.by_name(), PathClass.XOR)

    def payloads_of(encoding: Encoding) -> list[Payload]:
        items = items_of(run.catalogue, run.newest, checkpoints.version(new), classes, encoding)
        return list(run.payloads(run.next_attempt(), items))

    differences, payloads = payloads_of(Encoding.XOR), payloads_of(Encoding.OVERWRITE)

    def body() -> Any:
        from vllm.config import WeightTransferConfig

        llm = offline(old, weight_transfer_config=WeightTransferConfig(backend="dcr"))
        before = say(llm)
        llm.init_weight_transfer_engine({"init_info": asdict(run.setup())})

        def tell(method: str, params: Any) -> None:
            llm.update_weights({"update_info": {"method": method, "params": params}})

        llm.start_weight_update()
        tell("prewarm", {})
        tell("begin", {"clean": True})
        refused = ""
        try:
            tell("apply", apply_of(differences[0]))
        except AttemptFailed as err:
            refused = str(err)
        llm.start_weight_update()
        tell("begin", {"clean": True})
        for payload in payloads:
            tell("apply", apply_of(payload))
        llm.finish_weight_update()
        llm.reset_prefix_cache(reset_running_requests=True)
        return refused, before, say(llm)

    refused, before, after = in_fork(body)
    assert "torn" in refused
    assert before == in_fork(partial(fresh, old))
    assert after == in_fork(partial(fresh, new))
    assert before != after


def apply_of(payload: Payload) -> Any:
    wanted = Apply(payload.attempt, payload.owner, payload.sequence, payload.digest, allow_xor=True)
    return json.loads(to_json(wanted))
