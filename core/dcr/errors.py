"""Every error of this library, grouped by what the caller should do about it.

RefitError
|-- ConfigError          fix the configuration; raised before any weight is touched
|-- UnsupportedPath      the loader path breaks a required condition; use a dense refit
|-- PayloadError         the bytes are not what they claim to be; fetch again, then fail the attempt
|-- AttemptFailed        stop, wait, retry every record as an absolute overwrite
|   `-- TransitionAbandoned  retries and a dense refit failed; repair the receivers, or dcr rollback
|-- Conflict             the record moved or a later prepare replaced us; stand down and re-read
|-- OutcomeUnknown       a write may or may not have happened; fence with a new prepare, then read
|-- StoreError           the store failed (full disk, missing bucket); nothing is lost, try again
|   |-- MissingObject    no object has that key
|   `-- StoreUnreachable no server of it answers for now; it is Unreachable too
|-- Unreachable          a party did not answer within its deadline; treat it as lost (P12)
`-- IntegrityError       committed state cannot be proven or rebuilt; stop, an operator must look
"""


class RefitError(Exception):
    """Base of every error that this library raises on purpose."""


class ConfigError(RefitError, ValueError):
    """The configuration asks for something that cannot work."""


class UnsupportedPath(RefitError):  # noqa: N818  -- named after the paper's term
    """A loader path fails a required condition of Table A.2."""


class PayloadError(RefitError, ValueError):
    """Bytes that are not a payload, manifest or record of this format version."""


class AttemptFailed(RefitError):  # noqa: N818
    """This attempt cannot finish; the committed version is untouched."""


class TransitionAbandoned(AttemptFailed):
    """Every retry failed, and so did a dense refit: v stays committed, gates that shut stay shut (P12)."""


class Conflict(RefitError):  # noqa: N818
    """The commit record moved, or a later prepare replaced this coordinator."""


class OutcomeUnknown(RefitError):  # noqa: N818
    """The answer to a compare-and-set was lost: it may have taken effect, or may yet do so."""


class StoreError(RefitError):
    """The object store or the disk under it failed."""


class MissingObject(StoreError):  # noqa: N818
    """No object has the key that was asked for."""


class Unreachable(RefitError):  # noqa: N818
    """An endpoint did not answer within its deadline."""


class StoreUnreachable(StoreError, Unreachable):  # noqa: N818
    """The servers of a store or control plane do not answer: nothing was done, so ask again later."""


class IntegrityError(RefitError):
    """Committed bits can neither be proven nor rebuilt."""
