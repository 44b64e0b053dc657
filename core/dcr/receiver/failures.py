"""One exception for what went wrong on several ranks, or inside a runtime."""

from collections.abc import Mapping

from dcr.errors import AttemptFailed, IntegrityError, RefitError, UnsupportedPath

_GRAVEST = (UnsupportedPath, IntegrityError)
"""Retrying does not help against these, so one rank's decides for the instance."""


def as_refit_error(err: Exception, what: str) -> RefitError:
    """``err`` itself if it is one of this library's, else an AttemptFailed that quotes it."""
    return err if isinstance(err, RefitError) else AttemptFailed(f"{what}: {type(err).__name__}: {err}")


def joined_failure(failures: Mapping[int, BaseException]) -> BaseException:
    """The failure of an instance from those of its ranks: the gravest class, every rank's own words."""
    for err in failures.values():
        if not isinstance(err, Exception):
            return err  # this process is ending
    told = {rank: err for rank, err in failures.items() if isinstance(err, RefitError)}
    words = "; ".join(
        f"{err} (rank {rank})" if rank in told else f"{type(err).__name__}: {err} (rank {rank})"
        for rank, err in sorted(failures.items())
    )
    for kind in _GRAVEST:
        if any(isinstance(err, kind) for err in told.values()):
            return kind(words)
    return AttemptFailed(words)
