"""What is refused by how a vLLM engine is set up, free of vLLM."""

from types import SimpleNamespace

import pytest
from torch import nn

from dcr_adapters.vllm.refusals import refusals


@pytest.mark.parametrize("method", ["eagle", "mtp", "draft_model"])
def test_a_draft_model_would_keep_its_old_weights(method: str) -> None:
    config = SimpleNamespace(speculative_config=SimpleNamespace(method=method))
    found = refusals(nn.Module(), config=config)
    assert list(found) == ["speculative_config"]
    assert f"{method}: the draft model keeps its old weights" in found["speculative_config"]


@pytest.mark.parametrize(
    "speculative", [None, SimpleNamespace(method="ngram"), SimpleNamespace(method="suffix")]
)
def test_what_has_no_weights_of_its_own_may_guess(speculative: SimpleNamespace | None) -> None:
    assert refusals(nn.Module(), config=SimpleNamespace(speculative_config=speculative)) == {}
