"""How scripts talk to the parties: one Gather, every answer or one clear failure."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from dcr.commit.context import Context
from dcr.commit.effects import Answer, Call, Gather, Script
from dcr.errors import (
    AttemptFailed,
    ConfigError,
    IntegrityError,
    RefitError,
    StoreError,
    Unreachable,
    UnsupportedPath,
)
from dcr.observe import point

R = TypeVar("R")
FATAL = (UnsupportedPath, IntegrityError, ConfigError)
"""A retry cannot repair these: the caller hears of them at once."""


class PartiesFailed(AttemptFailed):
    """Parties of an attempt did not do what they were asked.

    ``silent``: those that gave no answer in time -> when the call to them began, by the coordinator's clock.
    ``answered``: the others that were asked, whatever they answered.
    """

    def __init__(self, answers: Mapping[str, Answer], began: float) -> None:
        super().__init__(describe(failures(answers)))
        silent = [target for target, err in answers.items() if isinstance(err, Unreachable)]
        # one that answered that a store does not is not silent itself
        self.silent = {name: began for name in silent if not isinstance(answers[name], StoreError)}
        self.answered = frozenset(answers) - self.silent.keys()


def silent_in(err: RefitError) -> dict[str, float]:
    """``PartiesFailed.silent``; nobody, if ``err`` is another failure."""
    return err.silent if isinstance(err, PartiesFailed) else {}


def answered_in(err: RefitError) -> frozenset[str]:
    """``PartiesFailed.answered``; nobody, if ``err`` is another failure: it tells nothing about them."""
    return err.answered if isinstance(err, PartiesFailed) else frozenset()


def to_all(targets: Iterable[str], method: str, **params: object) -> tuple[Call, ...]:
    """The same call to each target."""
    return tuple(Call(target, method, params) for target in targets)


def ask(context: Context, calls: tuple[Call, ...], deadline_s: float) -> Script[dict[str, Any]]:
    """Make all calls and return every answer, by target.

    Raises:
        UnsupportedPath, IntegrityError, ConfigError: as a party raised it, with its name in front.
        PartiesFailed: a party failed or missed the deadline; the text names each with its cause.
    """
    began = context.clock()
    answers = yield from try_all(calls, deadline_s)
    failed = failures(answers)
    if failed:
        raise_fatal(failed)
        raise PartiesFailed(answers, began)
    return answers


def try_all(calls: tuple[Call, ...], deadline_s: float) -> Script[dict[str, Answer]]:
    """Make all calls; failures come back as answers."""
    if not calls:
        return {}
    answers: dict[str, Answer] = yield Gather(calls, deadline_s)
    return answers


def failures(answers: Mapping[str, Answer]) -> dict[str, RefitError]:
    """The parties that did not do what was asked."""
    return {target: answer for target, answer in answers.items() if isinstance(answer, RefitError)}


def raise_fatal(failed: Mapping[str, RefitError]) -> None:
    """Raise the first failure that no retry repairs, if there is one."""
    for target, err in sorted(failed.items()):
        if isinstance(err, FATAL):
            raise type(err)(f"{target}: {err}") from err


def describe(failed: Mapping[str, RefitError]) -> str:
    """One line that names each failed party with its cause."""
    return "; ".join(f"{target}: {type(err).__name__}: {err}" for target, err in sorted(failed.items()))


def marked(names: Iterable[str], attempt: object, inner: Script[R]) -> Script[R]:
    """Run ``inner`` between the points ``coordinator.<name>.before`` and ``.after`` of each name."""
    for name in names:
        point(f"coordinator.{name}.before", attempt=str(attempt))
    result = yield from inner
    for name in names:
        point(f"coordinator.{name}.after", attempt=str(attempt))
    return result
