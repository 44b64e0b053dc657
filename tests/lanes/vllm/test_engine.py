"""Real engines over refits: tokens of a fresh engine, no stale prefix, kept requests (DESIGN R19)."""

from pathlib import Path

import pytest
from tests.lanes.vllm import checkpoints
from tests.lanes.vllm.engines import LONG_PROMPT, PROMPTS, Said, served
from tests.lanes.vllm.run import Run


def fresh(model: Path, tp: int) -> list[list[int]]:
    """What a new engine that has loaded ``model`` answers."""
    with served(model, tp) as engine:
        return [engine.ask(prompt).tokens for prompt in PROMPTS]


def tokens(answers: list[Said]) -> list[list[int]]:
    return [answer.tokens for answer in answers]


def versions_of(old: Path, folder: Path, num_refits: int) -> list[Path]:
    """``old`` and the versions after it, each a checkpoint of its own."""
    paths = [old]
    for number in range(num_refits):
        paths.append(checkpoints.changed(paths[-1], folder / f"v{number + 1}", rate=0.2, seed=number))
    return paths


def check_engine(old: Path, tp: int, folder: Path, num_refits: int) -> None:
    paths = versions_of(old, folder, num_refits)
    run = Run(folder, checkpoints.catalogue(old), checkpoints.version(old))
    with served(old, tp) as engine:
        stock = [engine.ask(prompt) for prompt in PROMPTS]
        receiver = engine.receiver(run, folder)
        run.admit(receiver)
        assert tokens([engine.ask(prompt) for prompt in PROMPTS]) == tokens(stock)
        assert engine.ask(LONG_PROMPT).num_cached >= 128, "the prefix is cached before a refit"
        for path in paths[1:-1]:
            run.refit(receiver, checkpoints.version(path), receiver.report().classification)
        flying = engine.begin(PROMPTS[0], 400, "flying")
        while engine.counts.get("flying", 0) < 5:
            assert not flying.done()
        run.refit(receiver, checkpoints.version(paths[-1]), receiver.report().classification)
        kept = flying.result(300)
        after = engine.ask(LONG_PROMPT)
        assert after.num_cached == 0, "no key or value of the old version survives"
        answers = [engine.ask(prompt) for prompt in PROMPTS]
    last, before = str(num_refits), str(num_refits - 1)
    assert [span[0] for span in kept.spans] == [before, last]
    assert kept.spans[0][1] == 0
    assert kept.spans[-1][2] == len(kept.tokens) == 400
    assert all(answer.spans == [(last, 0, len(answer.tokens))] for answer in answers)
    expected = fresh(paths[-1], tp)
    assert tokens(answers) == expected
    assert after.tokens == expected[2]
    assert tokens(stock) != expected, "the refits change what is said"


def test_llama_on_two_ranks(tmp_path: Path) -> None:
    check_engine(checkpoints.make(tmp_path, "llama"), 2, tmp_path, num_refits=2)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "qwen3moe"])
def test_ten_refits_on_two_ranks(family: str, tmp_path: Path) -> None:
    check_engine(checkpoints.make(tmp_path, family), 2, tmp_path, num_refits=10)
