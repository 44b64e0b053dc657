"""Real engines over refits: tokens of a fresh engine, no stale prefix, kept requests (DESIGN R19)."""

from pathlib import Path

import pytest
from tests.lanes.shared import checkpoints
from tests.lanes.shared.run import Run, Version
from tests.lanes.vllm.engines import LONG_PROMPT, PROMPTS, Said, served


def fresh(model: Path, tp: int) -> list[list[int]]:
    """What a new engine that has loaded ``model`` answers."""
    with served(model, tp) as engine:
        return [engine.ask(prompt).tokens for prompt in PROMPTS]


def tokens(answers: list[Said]) -> list[list[int]]:
    return [answer.tokens for answer in answers]


def check_engine(old: Path, tp: int, folder: Path, num_refits: int, *, rate: float = 0.2) -> None:
    run = Run(folder, checkpoints.catalogue(old), checkpoints.version(old))

    def following(seed: int) -> Version:
        return checkpoints.flipped(run.newest, rate=rate, seed=seed)

    with served(old, tp) as engine:
        stock = [engine.ask(prompt) for prompt in PROMPTS]
        receiver = engine.receiver(run, folder)
        run.admit(receiver)
        assert tokens([engine.ask(prompt) for prompt in PROMPTS]) == tokens(stock)
        assert engine.ask(LONG_PROMPT).num_cached >= 128, "the prefix is cached before a refit"
        classes = receiver.report().classification
        for seed in range(num_refits - 1):
            run.refit(receiver, following(seed), classes)
        newest = following(num_refits)
        flying = engine.begin(PROMPTS[0], 800, "flying")
        while engine.counts.get("flying", 0) < 5:
            assert not flying.done()
        run.refit(receiver, newest, classes)
        kept = flying.result(300)
        after = engine.ask(LONG_PROMPT)
        assert after.num_cached == 0, "no key or value of the old version survives"
        answers = [engine.ask(prompt) for prompt in PROMPTS]
    last, before = str(num_refits), str(num_refits - 1)
    assert [span[0] for span in kept.spans] == [before, last]
    assert kept.spans[0][1] == 0
    assert kept.spans[-1][2] == len(kept.tokens) == 800
    assert all(answer.spans == [(last, 0, len(answer.tokens))] for answer in answers)
    expected = fresh(checkpoints.write(folder / "last", run.newest, like=old), tp)
    assert tokens(answers) == expected
    assert after.tokens == expected[2]
    assert tokens(stock) != expected, "the refits change what is said"


def test_llama_on_two_ranks(tmp_path: Path) -> None:
    check_engine(checkpoints.make(tmp_path, "llama"), 2, tmp_path, num_refits=2)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "qwen3moe"])
def test_ten_refits_on_two_ranks(family: str, tmp_path: Path) -> None:
    check_engine(checkpoints.make(tmp_path, family), 2, tmp_path, num_refits=10)


@pytest.mark.slow
@pytest.mark.parametrize("tp", [1, 3])
def test_ten_refits_of_a_pretrained_model(tp: int, tmp_path: Path) -> None:
    """Nine attention heads: one rank or three. ``make grpo`` makes and caches it."""
    from dcr_recipes.models.cache import models_folder

    found = sorted(models_folder().glob("smollm2*/model.safetensors"))
    assert found, f"no converted SmolLM2 in {models_folder()}; make grpo makes it"
    check_engine(found[0].parent, tp, tmp_path, num_refits=10, rate=0.02)
