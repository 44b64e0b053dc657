"""Identifiers that order and fence work (paper Appendix B, DESIGN P1-P5)."""

import secrets
from dataclasses import dataclass
from typing import TypeAlias

RunId: TypeAlias = str
"""32 hexadecimal digits; everything of a run lives under it (P1)."""


@dataclass(frozen=True, slots=True, order=True)
class AttemptId:
    """The paper's tau: one try at the transition to ``version``.

    ``number`` is run-wide, raised by every prepare and never reset (P3), so it alone orders attempts.
    """

    number: int
    version: int

    def __str__(self) -> str:  # type: ignore[explicit-override]  # typing.override is newer than 3.11
        return f"{self.version}-{self.number}"


GENESIS = AttemptId(number=0, version=0)
"""The attempt under which v0's anchor is published; prepare never returns it."""


@dataclass(frozen=True, slots=True)
class CandidateId:
    """Which candidate weights a transition publishes (P5); equality decides whether a retry may go on.

    ``incarnations`` holds one nonce per trainer rank, in rank order; ``counters`` digests the
    parameters' version counters and is only an early warning.
    """

    step: int
    incarnations: tuple[str, ...]
    counters: str = ""


def new_nonce() -> str:
    """A fresh 64-bit identity for one incarnation of a process or one write, as 16 hex digits."""
    return secrets.token_hex(8)
