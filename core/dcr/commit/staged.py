"""The attempt of asynchronous mode: receivers hold the delta before anything of it is applied (R19, P6).

While payloads are made and travel, every receiver goes on serving v. Storage is first touched, and the opened
mark first set, when all of them hold the closed manifest: what fails earlier has cost nothing, and its
payloads may be named again.
"""

from dataclasses import dataclass
from typing import Any

from dcr.commit.calls import ask, marked, to_all
from dcr.commit.context import Context
from dcr.commit.effects import Script
from dcr.commit.rules import check_staged
from dcr.config import CommitConfig
from dcr.model import ActiveAttempt, Classification, ControlState, Manifest, OwnerClose

STAGED_TRIES = 3
"""Failed attempts after which payloads are applied as they arrive: a receiver may lack room to hold them."""


@dataclass(frozen=True, slots=True)
class Manner:
    """How an attempt is carried out.

    ``dense``: every receiver starts from a restored v and every shard is sent whole. ``staged``: see above.
    """

    dense: bool = False
    staged: bool = False


def manner(config: CommitConfig, num_failed: int) -> Manner:
    """How to try after ``num_failed`` attempts. A dense one, the last, is not held: it is a whole model."""
    dense = num_failed == config.max_attempts
    return Manner(dense, staged=config.mode == "async" and not dense and num_failed < STAGED_TRIES)


def stage(
    context: Context, prepared: ControlState, active: ActiveAttempt, classes: Classification
) -> Script[list[OwnerClose]]:
    """Have the owners construct and the receivers hold what arrives; the closed lists by rank.

    The chain of attempts that ``active`` goes on with touched nobody's storage: its payloads may be named.
    """
    attempt, record, since = active.attempt, prepared.record, active.since
    holds = to_all(prepared.members, "stage", attempt=attempt, record=record, since=since)
    constructs = to_all(
        context.owners, "construct", attempt=attempt, record=record, overwrite_only=False,
        classification=classes, since=since,
    )  # fmt: skip
    inner = ask(context, (*holds, *constructs), context.config.construct_deadline_s)
    answers = yield from marked(["stage", "construct"], attempt, inner)
    return [answers[target] for target in context.owners]


def await_staged(context: Context, manifest: Manifest, digest: str) -> Script[None]:
    """Return when every required receiver holds exactly ``manifest``; nobody's gate is shut yet."""
    attempt = manifest.attempt
    calls = to_all(manifest.required, "staged", attempt=attempt, manifest=digest)
    inner = ask(context, calls, context.config.finish_deadline_s)
    acks: dict[str, Any] = yield from marked(["staged"], attempt, inner)
    check_staged(acks, manifest, digest)


def open_staged(context: Context, prepared: ControlState, manifest: Manifest, digest: str) -> Script[None]:
    """Shut every gate; from its own shutting on each receiver applies what it holds."""
    attempt, record = manifest.attempt, prepared.record
    calls = to_all(manifest.required, "open_apply", attempt=attempt, record=record, manifest=digest)
    inner = ask(context, calls, context.config.fence_deadline_s)
    yield from marked(["open_apply"], attempt, inner)
