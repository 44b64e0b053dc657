"""Lost versions: what the control plane was seen to hold, against what the run's archive holds in the end."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Commit:
    """One committed version: the attempt that made it, as text, and the digest of its manifest."""

    version: int
    attempt: str
    manifest: str


def lost_versions(seen: Sequence[Commit], chain: Sequence[Commit]) -> dict[int, str]:
    """Every version that was lost, by number, and how that shows; empty if none was.

    ``seen`` are records in the order in which they were read, ``chain`` the versions that the last record
    leads back to, oldest first. A version is lost if it was seen committed and is not in the chain as it
    was seen, if a later read showed an older one, or if the chain skips it.
    """
    lost: dict[int, str] = {}
    for place, commit in enumerate(chain):
        if commit.version != place:
            lost.setdefault(place, f"the chain has v{commit.version} in its place")
            break
    held = {commit.version: commit for commit in chain}
    newest = -1
    for commit in seen:
        if commit.version < newest:
            lost.setdefault(newest, f"v{commit.version} was committed after it was seen")
        newest = max(newest, commit.version)
        if held.get(commit.version) != commit:
            lost.setdefault(commit.version, f"seen as {commit.attempt}, the archive has {_of(held, commit)}")
    return lost


def uncommitted(versions: Iterable[int], chain: Sequence[Commit]) -> list[int]:
    """Which of ``versions``, served or reported by anybody, were never committed; sorted."""
    return sorted(set(versions) - {commit.version for commit in chain})


def _of(held: dict[int, Commit], commit: Commit) -> str:
    found = held.get(commit.version)
    return "none" if found is None else found.attempt
