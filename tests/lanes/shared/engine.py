"""Real engines over refits: tokens of a fresh engine, no stale prefix, kept requests (DESIGN R19).

What a lane gives: ``Serve``, which starts an engine that takes deltas.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from tests.lanes.shared import checkpoints
from tests.lanes.shared.run import Run, Version

from dcr.receiver.agent import ReceiverAgent

if TYPE_CHECKING:
    from concurrent.futures import Future

LONG_PROMPT = [(i * 37) % 1000 for i in range(150)]
"""Longer than a block of any engine's prefix cache here, at most 128 tokens."""
PROMPTS = ([1, 2, 3, 4, 5], list(range(40, 80)), LONG_PROMPT)
_FLYING = [1001, 3, 5, 7]
"""Of the request in flight: it begins like no other, so that no prompt meets what is cached of it."""
LEAST_CACHED = 128
PATIENCE_S = 900
"""For an engine to start, and for an answer: ranks that wait for one another are slow on busy cores."""


@dataclass(frozen=True, slots=True)
class Said:
    """Tokens of one answer; ``spans`` are (version, first token, end) as the engine names them."""

    tokens: list[int]
    num_cached: int
    spans: list[tuple[str, int, int]]


class Served(Protocol):
    """A running engine. ``counts[name]`` follows how many tokens of a request have come."""

    counts: dict[str, int]

    def ask(self, prompt: Sequence[int], num_tokens: int = 12) -> Said:
        """The greedy answer to ``prompt``."""
        ...

    def begin(self, prompt: Sequence[int], num_tokens: int, name: str = "") -> "Future[Said]":
        """The same, later."""
        ...

    def receiver(self, run: Run, folder: Path) -> ReceiverAgent:
        """This engine as an instance of ``run``."""
        ...


Serve: TypeAlias = Callable[[Path, int], AbstractContextManager[Served]]
"""Start an engine on a checkpoint, at a tensor parallel size."""


def tokens(answers: list[Said]) -> list[list[int]]:
    """Of each answer."""
    return [answer.tokens for answer in answers]


@dataclass(frozen=True, slots=True)
class Further:
    """What one lane checks beyond the others. ``between`` makes transitions of its own before the refits.

    ``evidence`` of an engine after its refits must equal that of a fresh engine with the last checkpoint.
    """

    between: Callable[[Any, Run, ReceiverAgent], None] = lambda *_: None
    evidence: Callable[[Any], object] = lambda _: None


def check_engine(
    serve: Serve, old: Path, folder: Path, *, tp: int, num_refits: int, rate: float = 0.2,
    further: Further | None = None,
) -> None:  # fmt: skip
    """``num_refits`` refits of one engine; the last one meets a request in flight."""
    more = further or Further()
    run = Run(folder, checkpoints.catalogue(old), checkpoints.version(old))
    with serve(old, tp) as engine:
        stock = [engine.ask(prompt) for prompt in PROMPTS]
        receiver = engine.receiver(run, folder)
        run.admit(receiver)
        assert tokens([engine.ask(prompt) for prompt in PROMPTS]) == tokens(stock)
        assert engine.ask(LONG_PROMPT).num_cached >= LEAST_CACHED, "the prefix is cached before a refit"
        more.between(engine, run, receiver)
        classes = receiver.report().classification
        for seed in range(num_refits - 1):
            run.refit(receiver, following(run, rate, seed), classes)
        kept = _refit_under_request(engine, run, receiver, following(run, rate, num_refits))
        after = engine.ask(LONG_PROMPT)
        assert after.num_cached == 0, "no key or value of the old version survives"
        answers = [engine.ask(prompt) for prompt in PROMPTS]
        evidence = more.evidence(engine)
    _check_spans(kept, answers, run.records[-1].version)
    with serve(checkpoints.write(folder / "last", run.newest, like=old), tp) as fresh:
        expected = tokens([fresh.ask(prompt) for prompt in PROMPTS])
        said = kept.spans[0][2]
        going_on = fresh.ask(_FLYING + kept.tokens[:said]).tokens
        assert more.evidence(fresh) == evidence
    assert tokens(answers) == expected
    assert after.tokens == expected[2]
    assert kept.tokens[said : said + len(going_on)] == going_on, (
        "a kept request is computed by the new weights alone"
    )
    assert tokens(stock) != expected, "the refits change what is said"


def _refit_under_request(engine: Served, run: Run, receiver: ReceiverAgent, newest: Version) -> Said:
    """What a request says that was in flight all the time."""
    flying = engine.begin(_FLYING, 800, "flying")
    while engine.counts.get("flying", 0) < 5:
        assert not flying.done()
    run.refit(receiver, newest, receiver.report().classification)
    return flying.result(300)


def following(run: Run, rate: float, seed: int) -> Version:
    """Another version, which differs in ``rate`` of the elements."""
    return checkpoints.flipped(run.newest, rate=rate, seed=seed)


def _check_spans(kept: Said, answers: list[Said], version: int) -> None:
    last, before = str(version), str(version - 1)
    assert [span[0] for span in kept.spans] == [before, last]
    assert kept.spans[0][1] == 0
    assert kept.spans[-1][2] == len(kept.tokens) == 800
    assert all(answer.spans == [(last, 0, len(answer.tokens))] for answer in answers)


def pretrained() -> Path:
    """SmolLM2-135M, nine attention heads: one rank or three. ``make grpo`` makes and caches it."""
    from dcr_recipes.models.cache import models_folder

    found = sorted(models_folder().glob("smollm2*/model.safetensors"))
    assert found, f"no converted SmolLM2 in {models_folder()}; make grpo makes it"
    return found[0].parent
