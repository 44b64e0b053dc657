"""Ways a run ends early, beyond the core's errors."""

from dcr.errors import IntegrityError, RefitError

EXIT_INTERRUPTED = 130
"""Exit code of a command that Ctrl-C or SIGTERM ended."""


class RunFailed(RefitError):  # noqa: N818
    """Processes of the run died more often than the restart budget allows, or for good."""


class VerificationError(IntegrityError):
    """An instance's stored bits differ from those that a dense refit leaves."""
