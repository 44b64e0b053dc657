"""Prompt cache: a hit changes no bit, and nothing of it outlives a change of weights."""

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.integration.stock_loader import StockLoader

from dcr.errors import ConfigError, IntegrityError
from dcr.receiver.gate import ServingGate
from dcr_adapters.hf.generate import Responses, generate_group
from dcr_adapters.hf.prompt_cache import Prefilled, PromptCache
from dcr_recipes.grpo.policy import build_tiny
from dcr_recipes.grpo.settings import ModelSizes
from dcr_recipes.runtime.answers import GenerateAnswer
from dcr_recipes.runtime.hf import HfEngine, LoaderStorage
from dcr_recipes.runtime.worker import RuntimeWorker

PROMPT = [5, 17, 400, 3, 8]
SEEDS = [1, 2, 3]
MANY = 1 << 24


def _model(seed: int = 0) -> torch.nn.Module:
    torch.set_num_threads(1)
    return build_tiny(ModelSizes(), seed=seed).to(torch.bfloat16).eval()


def _generate(model: torch.nn.Module, prompts: PromptCache | None, rows: int = 3) -> Responses:
    return generate_group(
        model,
        torch.tensor(PROMPT),
        max_new_tokens=6,
        seeds=SEEDS[:rows],
        temperature=1.0,
        prompts=prompts,
    )


def _equal(left: Responses, right: Responses) -> bool:
    return torch.equal(left.tokens, right.tokens) and torch.equal(left.logprobs, right.logprobs)


def test_a_hit_gives_the_same_bits_as_a_miss() -> None:
    model, prompts = _model(), PromptCache(MANY)
    plain = _generate(model, None)
    answers = [_generate(model, prompts) for _ in range(3)]
    assert all(_equal(answer, plain) for answer in answers)
    figures = prompts.figures()
    assert (figures.hits, figures.misses, figures.clears) == (2, 1, 0)
    assert figures.num_bytes > 0


def test_another_group_size_is_another_entry() -> None:
    model, prompts = _model(), PromptCache(MANY)
    for rows in (3, 2, 3, 2):
        assert _equal(_generate(model, prompts, rows), _generate(model, None, rows))
    assert (prompts.figures().hits, prompts.figures().misses) == (2, 2)


def test_bytes_are_bounded_and_the_least_recently_used_leaves_first() -> None:
    prompts = PromptCache(2 * 16)
    entry = Prefilled(torch.zeros(2), (torch.zeros(1), [torch.zeros(1)]))
    assert entry.num_bytes == 16
    for token in (1, 2):
        prompts.put((1, (token,)), entry)
    assert prompts.get((1, (1,))) is not None
    prompts.put((1, (3,)), entry)
    assert prompts.get((1, (2,))) is None
    assert prompts.get((1, (1,))) is not None
    assert prompts.get((1, (3,))) is not None
    assert prompts.figures().num_bytes == 32
    prompts.put((1, (3,)), entry)
    assert prompts.figures().num_bytes == 32
    prompts.put((1, (4,)), Prefilled(torch.zeros(9), None))
    assert prompts.get((1, (4,))) is None
    prompts.clear()
    prompts.clear()
    assert (prompts.figures().num_bytes, prompts.figures().clears) == (0, 1)


def test_what_is_taken_out_may_be_extended() -> None:
    prompts = PromptCache(MANY)
    prompts.put((1, (1,)), Prefilled(torch.zeros(2), [torch.zeros(1)]))
    taken = prompts.get((1, (1,)))
    assert taken is not None
    taken.kv.append(torch.ones(1))  # type: ignore[attr-defined]
    taken.logits[0] = 7.0
    again = prompts.get((1, (1,)))
    assert again is not None
    assert (again.logits[0].item(), len(again.kv)) == (0.0, 1)  # type: ignore[arg-type]


def test_no_bytes_hold_nothing_and_a_negative_bound_is_refused() -> None:
    prompts = PromptCache(0)
    _generate(_model(), prompts)
    assert prompts.figures().num_bytes == 0
    with pytest.raises(ConfigError, match="prompt_cache_mib"):
        PromptCache(-1)


class Refits:
    """A worker that is refitted densely between two weights."""

    def __init__(self, folder: Path, prompts: PromptCache) -> None:
        model = _model()
        gate = ServingGate(admit_deadline_s=0.05)
        self.gate, self.prompts, self._folder = gate, prompts, folder
        storage = LoaderStorage(StockLoader(model))
        self.worker = RuntimeWorker("r", HfEngine(model, prompts), storage=storage, gate=gate)

    def load(self, seed: int, version: int) -> None:
        path = self._folder / f"{seed}.safetensors"
        save_file({name: tensor.data for name, tensor in _model(seed).named_parameters()}, path)
        self.worker.load_dense(str(path), version)

    def ask(self) -> GenerateAnswer:
        return self.worker.generate([PROMPT], [SEEDS], max_new_tokens=6, temperature=1.0)


def _fresh(folder: Path, seed: int) -> GenerateAnswer:
    instance = Refits(folder, PromptCache(0))
    instance.load(seed, 2)
    return instance.ask()


class NeverCleared(PromptCache):
    """The bug: a refit leaves the cache alone."""

    def clear(self) -> None:  # type: ignore[explicit-override]
        return


def test_without_the_clearing_a_stale_answer_would_come(tmp_path: Path) -> None:
    fresh = _fresh(tmp_path, seed=1)
    stale = Refits(tmp_path, NeverCleared(MANY))
    stale.load(0, 1)
    stale.ask()
    stale.load(1, 2)
    answer = stale.ask()
    assert answer.version == fresh.version == 2
    assert answer.logprobs != fresh.logprobs


def test_the_probe_finds_a_stale_answer(tmp_path: Path) -> None:
    stale = Refits(tmp_path, NeverCleared(MANY))
    stale.load(0, 1)
    stale.worker.probe(PROMPT, 4, fresh=True)
    stale.load(1, 2)
    with pytest.raises(IntegrityError, match="r answers its probe at version 2 from a stale prompt cache"):
        stale.worker.probe(PROMPT, 4, fresh=True)


def test_with_the_clearing_the_answer_is_a_fresh_instances(tmp_path: Path) -> None:
    instance = Refits(tmp_path, PromptCache(MANY))
    instance.load(0, 1)
    before = instance.ask()
    instance.load(1, 2)
    assert instance.ask() == _fresh(tmp_path, seed=1) != before
    assert instance.ask() == _fresh(tmp_path, seed=1)
    status = instance.worker.status()
    assert (status.prompt_cache_hits, status.prompt_cache_misses, status.prompt_cache_clears) == (1, 2, 1)


def test_a_refit_that_changed_nothing_keeps_the_cache(tmp_path: Path) -> None:
    instance = Refits(tmp_path, PromptCache(MANY))
    instance.load(0, 1)
    instance.ask()
    instance.gate.close()
    instance.gate.open(2, changed=False)
    assert instance.ask().version == 2
    assert instance.worker.status().prompt_cache_hits == 1


def test_the_probe_is_a_request_like_others(tmp_path: Path) -> None:
    instance = Refits(tmp_path, PromptCache(MANY))
    instance.load(0, 1)
    first = instance.worker.probe(PROMPT, 4, fresh=True)
    second = instance.worker.probe(PROMPT, 4, fresh=False)
    assert (first.hit, second.hit) == (False, True)
    assert (first.tokens, first.logprobs) == (second.tokens, second.logprobs)
    assert instance.worker.status().num_answers == 0


def test_the_probe_of_a_diverged_policy_is_fresh() -> None:
    model, prompts = _model(), NeverCleared(MANY)
    engine = HfEngine(model, prompts)
    engine.probe(PROMPT, 4, fresh=True)
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(float("nan"))
    assert engine.probe(PROMPT, 4, fresh=True).is_stale
    diverged = HfEngine(model, PromptCache(MANY))
    probed = [diverged.probe(PROMPT, 4, fresh=True) for _ in range(2)]
    assert [(each.hit, each.is_stale) for each in probed] == [(False, False), (True, False)]
    assert all(math.isnan(logprob) for logprob in probed[1].logprobs)
