"""Tokens of a group depend on weights, prompt and seeds only."""

import math
import subprocess
import sys

import pytest
import torch
from typing_extensions import override

from dcr.errors import ConfigError
from dcr_adapters.hf.generate import Responses, generate_group
from dcr_recipes.grpo.loss import token_logprobs
from dcr_recipes.grpo.metrics import token_digest
from dcr_recipes.grpo.policy import build_tiny
from dcr_recipes.grpo.settings import ModelSizes

PROMPT = torch.tensor([5, 17, 400, 3])
SEEDS = [2**63 + 1, 2**64 - 1, 0]


def _model(dtype: torch.dtype = torch.bfloat16) -> torch.nn.Module:
    torch.set_num_threads(1)
    return build_tiny(ModelSizes(), seed=0).to(dtype).eval()


def _generate(model: torch.nn.Module, seeds: list[int], temperature: float = 1.0) -> Responses:
    return generate_group(model, PROMPT, max_new_tokens=6, seeds=seeds, temperature=temperature)


def test_shapes_and_dtypes() -> None:
    tokens, logprobs = _generate(_model(), SEEDS)
    assert (tokens.dtype, tuple(tokens.shape)) == (torch.int64, (3, 6))
    assert (logprobs.dtype, tuple(logprobs.shape)) == (torch.float32, (3, 6))
    assert bool((logprobs < 0).all())


def test_a_group_is_the_same_alone_and_between_others() -> None:
    model = _model()
    alone = _generate(model, SEEDS)
    generate_group(model, torch.arange(9), max_new_tokens=4, seeds=[1, 2], temperature=0.5)
    again = _generate(model, SEEDS)
    assert torch.equal(alone.tokens, again.tokens)
    assert torch.equal(alone.logprobs, again.logprobs)


def test_a_row_does_not_depend_on_the_seeds_of_other_rows() -> None:
    model = _model()
    one, other = _generate(model, SEEDS), _generate(model, [7, SEEDS[1], 8])
    assert torch.equal(one.tokens[1], other.tokens[1])
    assert not torch.equal(one.tokens[0], other.tokens[0])


def test_all_64_bits_of_a_seed_count() -> None:
    tokens = _generate(_model(), [5, 5 + 2**32, 5 + 2**63]).tokens
    assert len({tuple(row) for row in tokens.tolist()}) == 3


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_logprobs_are_those_of_a_full_forward(temperature: float) -> None:
    model = _model(torch.float32)
    tokens, logprobs = _generate(model, SEEDS, temperature)
    sequence = torch.cat([PROMPT.expand(3, -1), tokens], dim=1)
    with torch.no_grad():
        logits = model(input_ids=sequence).logits[:, PROMPT.numel() - 1 : -1]
    assert torch.allclose(logprobs, token_logprobs(logits, tokens, temperature), atol=1e-4)


def test_samples_follow_the_distribution() -> None:
    class Fixed(torch.nn.Module):
        @override
        def forward(self, input_ids: torch.Tensor, **_: object) -> dict[str, object]:
            weights = torch.tensor([0.0, 0.5, 0.3, 0.2])
            return {"logits": weights.log().expand(input_ids.shape[0], 1, 4), "past_key_values": None}

    tokens, logprobs = generate_group(
        Fixed(), torch.tensor([1]), max_new_tokens=1, seeds=range(4000), temperature=1.0
    )
    shares = torch.bincount(tokens[:, 0], minlength=4) / 4000
    assert shares.tolist() == pytest.approx([0.0, 0.5, 0.3, 0.2], abs=0.03)
    assert logprobs[tokens == 2][0].item() == pytest.approx(math.log(0.3))


def test_two_processes_draw_the_same_tokens() -> None:
    script = (
        "import torch, tests.unit.test_hf_generate as t;"
        "g = t._generate(t._model(), t.SEEDS); print(t.token_digest(g.tokens), g.logprobs.sum().item())"
    )
    there = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    here = _generate(_model(), SEEDS)
    assert there.stdout == f"{token_digest(here.tokens)} {here.logprobs.sum().item()}\n"


def test_senseless_requests_are_refused() -> None:
    with pytest.raises(ConfigError):
        _generate(_model(), [])
    with pytest.raises(ConfigError):
        _generate(_model(), SEEDS, temperature=0.0)
