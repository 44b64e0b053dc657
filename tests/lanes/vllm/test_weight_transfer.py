"""The weight transfer engine ``dcr`` without an engine around it: what ends an update."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from dcr.errors import AttemptFailed, UnsupportedPath
from dcr.model import PathClass, to_json
from dcr.receiver.rank import Method, RankPath, RankPlacement
from dcr.receiver.workers.messages import Answer, Call
from dcr_adapters.vllm.engine import DcrUpdateInfo, DcrWeightTransferEngine


class Rank:
    """A ``RankServer`` that answers as it is told, and remembers what it was asked."""

    def __init__(self, **answers: Answer) -> None:
        self.answers = answers
        self.asked: list[tuple[str, Any]] = []

    def answer(self, call: Call) -> Answer:
        self.asked.append((call.method, json.loads(call.params)))
        return self.answers.get(call.method, Answer(0, value="null"))


def engine_over(rank: Rank) -> DcrWeightTransferEngine:
    parallel = SimpleNamespace(rank=0, world_size=1)
    config = SimpleNamespace(parallel_config=parallel, model_config=None)
    engine = DcrWeightTransferEngine(None, config, torch.device("cpu"), nn.Module())
    engine.server = rank  # type: ignore[assignment]  # as much of it as is asked
    return engine


@pytest.mark.parametrize("of_tensor", [False, True])
def test_what_prewarm_refuses_ends_the_update(of_tensor: bool) -> None:
    reason = "it is quantised; serve it unquantised"
    path = RankPath(PathClass.XOR, Method.LEARNED, refusal=reason if of_tensor else "")
    placement = RankPlacement({"q.weight": path}, {} if of_tensor else {"q.weight": reason})
    engine = engine_over(Rank(prewarm=Answer(0, value=to_json(placement).decode())))
    with pytest.raises(UnsupportedPath, match=f"q.weight: {reason}"):
        engine.receive_weights(DcrUpdateInfo("prewarm"))


def test_what_can_be_taken_does_not() -> None:
    placement = RankPlacement({"q.weight": RankPath(PathClass.XOR, Method.LEARNED)}, {})
    rank = Rank(prewarm=Answer(0, value=to_json(placement).decode()))
    engine_over(rank).receive_weights(DcrUpdateInfo("prewarm"))
    assert rank.asked == [("prewarm", {})]


def test_what_was_written_is_read_back_at_the_end() -> None:
    rank = Rank(check=Answer(0, error="AttemptFailed", message="q.weight: 2 copies differ"))
    with pytest.raises(AttemptFailed, match="2 copies differ"):
        engine_over(rank).finish_weight_update()
    assert [method for method, _ in rank.asked] == ["synchronize", "check"]


def test_nothing_builds_on_what_lies_there() -> None:
    """Nobody compares digests of all ranks, so a wrong base would never be found."""
    rank = Rank()
    engine_over(rank).receive_weights(DcrUpdateInfo("apply", {"owner": 1, "allow_xor": True}))
    assert rank.asked == [("apply", {"owner": 1, "allow_xor": False})]
