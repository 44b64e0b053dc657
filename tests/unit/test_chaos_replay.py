"""The replay on a real model: it finds an answer of mixed weights, and one of mixed KV cache."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from dcr_adapters.hf.prompt_cache import PromptCache
from dcr_recipes.chaos.answers import Answer
from dcr_recipes.chaos.replay import StockModel, replay, stock_model
from dcr_recipes.compose import compose
from dcr_recipes.models.build import masters
from dcr_recipes.runtime.hf import HfEngine

PROMPTS = ([1, 2, 3, 4, 5, 6, 7, 8], [9, 8, 7, 6, 5, 4, 3, 2])
SEEDS = [11, 12]


@pytest.fixture(scope="module")
def model() -> StockModel:
    return stock_model(compose(["model=tiny"]))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Mapping[int, Path]:
    """Versions 0 and 1, of which a thirtieth of the elements differ in their last bit; 2 is half of each."""
    folder = tmp_path_factory.mktemp("dense")
    base = masters("tiny", 0).state_dict()
    first = {name: tensor.to(torch.bfloat16).clone() for name, tensor in base.items()}
    second = {name: _nudged(tensor) for name, tensor in first.items()}
    torn = {name: (first if place % 2 else second)[name] for place, name in enumerate(sorted(first))}
    paths = {version: folder / f"{version}.safetensors" for version in range(3)}
    for version, tensors in enumerate((first, second, torn)):
        save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, paths[version])
    return paths


def _nudged(tensor: torch.Tensor) -> torch.Tensor:
    bits = tensor.view(torch.int16).flatten().clone()
    bits[::30] ^= 1
    return bits.view(torch.bfloat16).view(tensor.shape)


def _asked(version: int, prompt: list[int]) -> Answer:
    return Answer(0.0, 1.0, "runtime-0", version, prompt, SEEDS, [], [])


def _answered(model: StockModel, version: int, prompt: list[int]) -> Answer:
    """What ``model`` answers as it is, said to be of ``version``."""
    made = model.answer(_asked(version, prompt))
    return Answer(0.0, 1.0, "runtime-0", version, prompt, SEEDS, made.tokens, made.logprobs)


def test_whole_answers_pass_and_one_of_mixed_weights_is_found(
    model: StockModel, files: Mapping[int, Path]
) -> None:
    whole: list[Answer] = []
    for version in (0, 1):
        model.fill(files[version])
        whole += [_answered(model, version, prompt) for prompt in PROMPTS]
    model.fill(files[2])
    planted = _answered(model, 1, PROMPTS[0])
    verdict = replay([*whole, planted], model, files.get)
    assert verdict.mixed == [planted]
    assert verdict.num_replayed == 5
    assert verdict.num_told_apart == verdict.num_compared == 1


def test_an_answer_with_a_prompt_cache_of_the_version_before_is_found(
    model: StockModel, files: Mapping[int, Path]
) -> None:
    assert isinstance(model.engine, HfEngine)
    caching = StockModel(HfEngine(model.engine._model, PromptCache(1 << 20)), model.storage)
    caching.fill(files[0])
    _answered(caching, 0, PROMPTS[0])
    caching.storage.load(files[1])  # the weights change, and nobody clears what follows from them
    planted, sound = (_answered(caching, 1, prompt) for prompt in PROMPTS)
    assert replay([planted, sound], model, files.get).mixed == [planted]
