"""Asking a dense copy what the instances were asked: a model that only the stock loader has ever filled."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Protocol

from dcr_recipes.chaos.answers import Answer, Replayed, is_mixed
from dcr_recipes.chaos.asker import NUM_TOKENS, TEMPERATURE
from dcr_recipes.config import RunConfig
from dcr_recipes.runtime.ports import Engine, Storage

_TOLD_APART_EVERY = 4
"""Every n-th answer is also asked of the version before: a check that sees no difference proves none."""


class Dense(Protocol):
    """One model, filled from dense files."""

    def fill(self, path: Path) -> None:
        """Load the whole safetensors file."""
        ...

    def answer(self, asked: Answer) -> Replayed:
        """Generate what ``asked`` asked for, with the weights that it holds."""
        ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """``mixed`` answers of ``num_replayed``; the other ``num_without_copy`` had no dense file.

    Of ``num_compared`` answers, the version before would have given ``num_told_apart`` otherwise.
    """

    mixed: list[Answer]
    num_replayed: int
    num_without_copy: int
    num_compared: int
    num_told_apart: int


@dataclass(frozen=True, slots=True)
class StockModel:
    """Implements ``Dense`` with a runtime's own engine and stock loader."""

    engine: Engine
    storage: Storage

    def fill(self, path: Path) -> None:
        """See ``Dense.fill``; what the engine remembers of other weights is forgotten."""
        self.storage.load(path)
        self.engine.clear()

    def answer(self, asked: Answer) -> Replayed:
        """See ``Dense.answer``."""
        made = self.engine.generate(
            asked.prompt, asked.seeds, max_new_tokens=NUM_TOKENS, temperature=TEMPERATURE
        )
        return Replayed(made.tokens, made.logprobs)


def stock_model(config: RunConfig) -> StockModel:
    """The runtime that ``config`` names, in this process, as a serving instance would build it.

    Raises:
        ConfigError: the model does not fit it.
    """
    from dcr_adapters.hf import loader as hf
    from dcr_recipes.models.build import served_config
    from dcr_recipes.runtime.hf import HfEngine, LoaderStorage

    built = hf.build(served_config(config.model), config.runtime.packed, "bfloat16")
    return StockModel(HfEngine(built.model, threads=config.runtime.threads), LoaderStorage(built))


def replay(
    sampled: Sequence[Answer],
    dense: Dense,
    copy_of: Callable[[int], Path | None],
    tell: Callable[[int], None] = lambda done: None,
) -> Verdict:
    """Ask ``dense`` every answer of ``sampled``, which is in order of version.

    ``tell`` is told how many are done.
    """
    total = Verdict([], 0, 0, 0, 0)
    for version, group in groupby(sampled, key=lambda answer: answer.version):
        answers, path = list(group), copy_of(version)
        if path is None:
            total = _sum(total, Verdict([], 0, len(answers), 0, 0))
        else:
            total = _sum(total, _replay_version(answers, dense, path, copy_of(version - 1)))
        tell(total.num_replayed + total.num_without_copy)
    return total


def _replay_version(answers: list[Answer], dense: Dense, path: Path, before: Path | None) -> Verdict:
    probes: list[Answer] = []
    if before is not None:
        probes = answers[::_TOLD_APART_EVERY]
        dense.fill(before)
    others = [is_mixed(answer, dense.answer(answer)) for answer in probes]
    dense.fill(path)
    mixed = [answer for answer in answers if is_mixed(answer, dense.answer(answer))]
    return Verdict(mixed, len(answers), 0, len(probes), sum(others))


def _sum(one: Verdict, other: Verdict) -> Verdict:
    return Verdict(
        one.mixed + other.mixed,
        one.num_replayed + other.num_replayed,
        one.num_without_copy + other.num_without_copy,
        one.num_compared + other.num_compared,
        one.num_told_apart + other.num_told_apart,
    )
