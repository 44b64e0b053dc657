"""What a verification found, in words and for programs."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """UNCHECKED is no fault: there was nothing to check, or it could not be reached."""

    PROVEN = "proven"
    FAILED = "failed"
    UNCHECKED = "not checked"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. ``tensor`` and ``version`` say where a failure is, if that is known."""

    what: str
    verdict: Verdict
    detail: str
    tensor: str | None = None
    version: int | None = None

    def as_json(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self)


def proven(what: str, detail: str) -> Finding:
    """It is as committed."""
    return Finding(what, Verdict.PROVEN, detail)


def failed(what: str, detail: str, *, tensor: str | None = None, version: int | None = None) -> Finding:
    """It is not as committed, or could not be proven to be."""
    return Finding(what, Verdict.FAILED, detail, tensor, version)


def unchecked(what: str, detail: str) -> Finding:
    """Nothing can be said about it."""
    return Finding(what, Verdict.UNCHECKED, detail)


def any_failed(findings: Iterable[Finding]) -> bool:
    """Whether something is wrong or unproven that should be proven."""
    return any(finding.verdict is Verdict.FAILED for finding in findings)
