"""What the askers got, and which of it is wrong: mixed answers and stale ones (P8, P11)."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from dcr.model import from_json
from dcr_recipes.grpo.seeds import derived_seed
from dcr_recipes.runtime.answers import bits


@dataclass(frozen=True, slots=True)
class Answer:
    """One request as its asker saw it: ``asked_at`` and ``got_at`` are seconds since the run's start.

    ``prompt`` [L] token ids; one of ``seeds`` [G] for each response of ``tokens`` [G][T] and its
    ``logprobs`` [G][T]. ``version`` is what the instance says that the whole answer was made with.
    """

    asked_at: float
    got_at: float
    instance: str
    version: int
    prompt: list[int]
    seeds: list[int]
    tokens: list[list[int]]
    logprobs: list[list[float]]


@dataclass(frozen=True, slots=True)
class Replayed:
    """What the dense copy of a version answers: ``tokens`` [G][T] and ``logprobs`` [G][T]."""

    tokens: list[list[int]]
    logprobs: list[list[float]]


def is_mixed(answer: Answer, replayed: Replayed) -> bool:
    """Whether ``answer`` is not wholly its version's.

    Log probabilities count bit for bit: few weights change in a step, and the tokens often stay.
    """
    got, made = (list(map(bits, each.logprobs)) for each in (answer, replayed))
    return answer.tokens != replayed.tokens or got != made


def stale(answers: Sequence[Answer]) -> list[Answer]:
    """Answers that were asked for after an answer of a newer version was got, from whomever.

    A version is served only when no receiver serves an older one (P11), so there should be none.
    """
    gots = sorted((answer.got_at, answer.version) for answer in answers)
    found, newest, place = [], -1, 0
    for answer in sorted(answers, key=lambda answer: answer.asked_at):
        while place < len(gots) and gots[place][0] < answer.asked_at:
            newest = max(newest, gots[place][1])
            place += 1
        if answer.version < newest:
            found.append(answer)
    return found


def sample(answers: Sequence[Answer], num: int, seed: int) -> list[Answer]:
    """At most ``num`` of them, chosen by ``seed``, in order of version."""
    order = sorted(range(len(answers)), key=lambda place: derived_seed(seed, "sample", place))
    return sorted((answers[place] for place in order[:num]), key=lambda answer: answer.version)


def write_line(answer: Answer) -> str:
    """One line of ``answers.jsonl``."""
    return json.dumps(asdict(answer)) + "\n"


def read_lines(path: Path) -> list[Answer]:
    """Every complete line of ``answers.jsonl``; one that was cut short is left out."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [from_json(Answer, line.encode()) for line in lines]
