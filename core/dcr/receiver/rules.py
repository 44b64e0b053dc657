"""The receiver's decisions, each a pure function of what it holds and what it is told (DESIGN P6, P8).

``ReceiverAgent`` calls them through this module; the simulation seeds bugs by replacing them here.
"""

from dataclasses import dataclass, replace

from dcr.audit import combine
from dcr.codec.head import PayloadId
from dcr.errors import AttemptFailed, Conflict
from dcr.model import AttemptId, AuditTable, CommitRecord, Manifest, PayloadRef, ReceiverState
from dcr.receiver.area import StagingArea


@dataclass(frozen=True, slots=True)
class Standing:
    """What resident storage holds.

    ``version`` and ``base`` (the attempt that made it) are those of the proven version in CLEAN,
    and of the one that writes started from in MIXED and COMPLETE. ``opened`` is the last attempt
    opened since it was last clean.
    """

    state: ReceiverState
    version: int = -1
    base: AttemptId | None = None
    opened: AttemptId | None = None


EMPTY = Standing(ReceiverState.EMPTY)


def clean(record: CommitRecord) -> Standing:
    """Standing of a receiver that holds exactly ``record``'s version."""
    return Standing(ReceiverState.CLEAN, record.version, record.attempt)


def check_not_replaced(attempt: AttemptId, obeyed: AttemptId | None) -> None:
    """The fence: an attempt below the obeyed one is over.

    Raises:
        Conflict: it is.
    """
    if obeyed is not None and attempt < obeyed:
        raise Conflict(f"attempt {attempt} was replaced by {obeyed}; stand down and read the record")


def check_fenced(attempt: AttemptId, fenced: AttemptId | None) -> None:
    """Nothing is done for an attempt whose fence was never acknowledged (P6).

    Raises:
        Conflict: ``attempt`` is not the fenced one.
    """
    if attempt != fenced:
        raise Conflict(f"attempt {attempt} is not the fenced one ({fenced}); fence it first")


def stands_on(standing: Standing, record: CommitRecord) -> bool:
    """Whether storage is, or was before it was torn, exactly ``record``'s version."""
    return (standing.version, standing.base) == (record.version, record.attempt)


def after_fence(standing: Standing, record: CommitRecord) -> Standing:
    """Settle complete(tau) by a record read after the fence; what does not stand on it is worthless (P8)."""
    if standing.state is ReceiverState.COMPLETE:
        if standing.opened == record.attempt:
            return clean(record)
        standing = replace(standing, state=ReceiverState.MIXED)
    return standing if stands_on(standing, record) else EMPTY


def after_settle(standing: Standing, record: CommitRecord) -> Standing:
    """End a transition: only a record that names what storage holds makes it clean.

    Raises:
        Conflict: the record does not; the gate must stay shut.
    """
    if standing.state is ReceiverState.COMPLETE and standing.opened == record.attempt:
        return clean(record)
    if standing.state is ReceiverState.CLEAN and stands_on(standing, record):
        return standing
    raise Conflict(
        f"cannot settle on version {record.version} of attempt {record.attempt}: this receiver is "
        f"{standing.state.value}, version {standing.version}, opened {standing.opened}"
    )


def check_not_acknowledged(standing: Standing, attempt: AttemptId, record: CommitRecord) -> None:
    """What was acknowledged for ``attempt`` may be committed at any time: it stays until another is fenced.

    Restores of an attempt come before it is opened, so this is a late copy of one; so is one of a version
    before that which is clean here, since records only grow.

    Raises:
        Conflict: ``attempt`` is complete here, or ``record`` has been followed by another.
    """
    if standing.state is ReceiverState.COMPLETE and standing.opened == attempt:
        raise Conflict(f"attempt {attempt} is complete here; nothing is restored under it")
    if standing.state is ReceiverState.CLEAN and record.version < standing.version:
        raise Conflict(f"version {standing.version} is clean here; version {record.version} was before it")


def after_open(standing: Standing, attempt: AttemptId, record: CommitRecord) -> Standing:
    """Storage counts as torn from the moment that an attempt is opened.

    Raises:
        AttemptFailed: storage does not stand on ``record``.
    """
    usable = standing.state in (ReceiverState.CLEAN, ReceiverState.MIXED)
    if not usable or not stands_on(standing, record):
        raise AttemptFailed(
            f"this receiver is {standing.state.value} at version {standing.version}, "
            f"the attempt starts from {record.version}; restore it first"
        )
    return replace(standing, state=ReceiverState.MIXED, opened=attempt)


def may_stage(identity: PayloadId, record: CommitRecord, attempt: AttemptId, since: int) -> bool:
    """Whether a payload may be of use to ``attempt``: of this run, parent version and chain of attempts."""
    own = (identity.run, identity.parent, identity.catalogue)
    in_chain = since <= identity.attempt.number <= attempt.number
    return own == (record.run, record.version, record.catalogue) and in_chain


def discard_unnamed(area: StagingArea, manifest: Manifest) -> None:
    """What the closed manifest does not name is not applied (P6)."""
    area.retain({ref.digest for ref in manifest.payloads})


def check_may_stage(standing: Standing, record: CommitRecord) -> None:
    """Only what serves v, or could, holds payloads for later.

    Raises:
        AttemptFailed: storage is not clean at ``record``'s version.
    """
    if standing.state is not ReceiverState.CLEAN or not stands_on(standing, record):
        raise AttemptFailed(
            f"this receiver is {standing.state.value} at version {standing.version}, the attempt starts "
            f"from {record.version}; restore it first"
        )


def check_not_lost(standing: Standing) -> None:
    """Who has taken itself out while it staged says so before all other gates are shut for it.

    Raises:
        AttemptFailed: storage is empty.
    """
    if standing.state is ReceiverState.EMPTY:
        raise AttemptFailed("this receiver has taken itself out since it was told to stage; restore it first")


def completed(standing: Standing) -> Standing:
    """Everything of the opened attempt is applied, synchronized and checked."""
    return replace(standing, state=ReceiverState.COMPLETE)


def may_xor(standing: Standing) -> bool:
    """Whether masks may be applied by an attempt that is opened now: never onto torn storage (P8)."""
    return standing.state is ReceiverState.CLEAN


def may_open_gate(standing: Standing) -> bool:
    """Whether requests may be served."""
    return standing.state is ReceiverState.CLEAN


def check_manifest(
    manifest: Manifest, attempt: AttemptId, record: CommitRecord, *, xor_allowed: bool
) -> None:
    """Whether ``manifest`` leads from ``record`` to ``attempt`` and may be applied here.

    Raises:
        AttemptFailed: names the field that does not fit.
    """
    wanted = {
        "run": (manifest.run, record.run),
        "attempt": (manifest.attempt, attempt),
        "parent version": (manifest.parent_version, record.version),
        "parent": (manifest.parent, (record.attempt, record.manifest)),
        "catalogue": (manifest.catalogue, record.catalogue),
    }
    for field, (found, expected) in wanted.items():
        if found != expected:
            raise AttemptFailed(f"the manifest's {field} is {found}, this attempt has {expected}")
    if not xor_allowed and not manifest.overwrite_only:
        raise AttemptFailed("storage may be torn: it takes a complete set of overwrites only (P8)")


def mismatch(manifest: Manifest, applied: dict[tuple[int, int], PayloadRef]) -> str:
    """Why the applied payloads are not exactly those of ``manifest``; empty if they are (P6)."""
    listed = {(ref.owner, ref.sequence): ref.digest for ref in manifest.payloads}
    got = {key: ref.digest for key, ref in applied.items()}
    if listed == got:
        return ""
    missing, extra = sorted(listed.keys() - got.keys()), sorted(got.keys() - listed.keys())
    other = sorted(key for key in listed.keys() & got.keys() if listed[key] != got[key])
    return f"(owner, sequence) missing: {missing[:8]}, not listed: {extra[:8]}, other content: {other[:8]}"


def holds_unlisted(manifest: Manifest, applied: dict[tuple[int, int], PayloadRef]) -> bool:
    """Whether payloads were applied that ``manifest`` does not list: a retry need not reach their bits."""
    listed = {(ref.owner, ref.sequence, ref.digest) for ref in manifest.payloads}
    return any((ref.owner, ref.sequence, ref.digest) not in listed for ref in applied.values())


def audits_whole(check: str, *, was_torn: bool) -> bool:
    """Whether all resident bits are proven, not only the written ones (R13).

    Torn storage holds payloads of an attempt that was never matched to a manifest, so what they
    wrote is not known to lie within this candidate's changes.
    """
    return check == "full" or (check == "written" and was_torn)


def check_whole(resident: AuditTable, manifest: Manifest) -> None:
    """Whether all resident bits, unchanged ones too, are those of the candidate by the owners' digests (B6).

    Raises:
        AttemptFailed: names the tensors that are not.
    """
    wrong = [
        name
        for name, digest in sorted(resident.items())
        if digest != combine(*(close.audit[name] for close in manifest.owners if name in close.audit))
    ]
    if wrong:
        raise AttemptFailed(
            f"{', '.join(wrong[:8])}: resident bits outside the delta are not the committed ones; "
            "this receiver must be restored"
        )
