"""The coordinator's decisions as pure functions: each is one rule that the simulation can break."""

import logging
from collections.abc import Mapping, Sequence

from dcr.commit.context import Context, Request
from dcr.errors import AttemptFailed, ConfigError, Conflict, IntegrityError, UnsupportedPath
from dcr.model import (
    GENESIS,
    ActiveAttempt,
    ApplyAck,
    AttemptId,
    CandidateId,
    Catalogue,
    Classification,
    CommitRecord,
    Manifest,
    OwnerClose,
    OwnerReport,
    PathClass,
    ReceiverReport,
    ReceiverState,
    StagedAck,
    digest_hex,
)
from dcr.transport.tables import joined_audit

logger = logging.getLogger(__name__)
_ORDER = (PathClass.SKIP, PathClass.XOR, PathClass.OVERWRITE, PathClass.REFUSED)


def candidate_of(step: int, reports: Sequence[OwnerReport]) -> CandidateId:
    """Identity of the candidate that all owners hold together (P5).

    Raises:
        ConfigError: an owner answers under another rank's name.
        AttemptFailed: an owner holds no candidate of ``step``.
    """
    for rank, report in enumerate(reports):
        if report.owner != rank:
            raise ConfigError(f"owner-{rank} says it is rank {report.owner}; check the endpoints")
        if report.step != step:
            raise AttemptFailed(f"owner-{rank} holds a candidate of step {report.step}, not {step}")
    counters = digest_hex("/".join(report.counters for report in reports).encode())
    return CandidateId(step, tuple(report.incarnation for report in reports), counters)


def check_requester(request: Request, reports: Sequence[OwnerReport]) -> None:
    """Raise Conflict once the trainer that asked is gone: its successor must not wait behind its request."""
    if request.requester and reports[0].incarnation != request.requester:
        raise Conflict(f"the trainer restarted; its request for step {request.step} is void")


def not_presented(request: Request, targets: Sequence[str], reports: Sequence[OwnerReport]) -> list[str]:
    """Owners that neither hold the candidate nor have folded it in already."""
    return [
        target
        for target, report in zip(targets, reports, strict=True)
        if report.step != request.step and report.baseline_version <= request.parent_version
    ]


def committed_already(request: Request, record: CommitRecord, reports: Sequence[OwnerReport]) -> bool:
    """Whether ``record`` is the commit of this very request (P10): an owner closed its attempt."""
    if record.version != request.parent_version + 1 or record.step != request.step:
        return False
    return any(r.close is not None and r.close.attempt == record.attempt for r in reports)


def check_parent(request: Request, record: CommitRecord) -> None:
    """Raise Conflict unless the committed version is the one that the caller builds on."""
    if record.version != request.parent_version:
        raise Conflict(
            f"version {record.version} (step {record.step}) is committed, but the request for step "
            f"{request.step} builds on {request.parent_version}; read the record again"
        )


def lagging(targets: Sequence[str], reports: Sequence[OwnerReport], record: CommitRecord) -> list[str]:
    """Owners whose trackers still miss ``record`` (P9); one that is ahead was told by a later coordinator."""
    pairs = zip(targets, reports, strict=True)
    return [target for target, report in pairs if report.baseline_version < record.version]


def check_not_ahead(reports: Sequence[OwnerReport], record: CommitRecord) -> None:
    """``record`` was read after ``reports``; raises IntegrityError if trackers hold what it does not name."""
    for report in reports:
        if report.baseline_version > record.version:
            raise IntegrityError(
                f"owner-{report.owner}: trackers are at {report.baseline_version}, "
                f"but {record.version} is committed"
            )


def check_owners(active: ActiveAttempt, record: CommitRecord, reports: Sequence[OwnerReport]) -> None:
    """After the fence: the candidate is still the prepared one and every tracker holds v (P5, P9).

    Raises:
        AttemptFailed: an owner restarted, lost its candidate or lags.
    """
    if candidate_of(active.candidate.step, reports) != active.candidate:
        raise AttemptFailed("an owner restarted or its weights were written since the candidate was named")
    for report in reports:
        if report.baseline_version != record.version:
            raise AttemptFailed(f"owner-{report.owner}: trackers are at {report.baseline_version}")


def needs_restore(report: ReceiverReport, version: int, active: ActiveAttempt | None = None) -> bool:
    """Whether a fenced receiver cannot take ``active`` (None: serve) as it is (P5, P8, P11).

    mixed(v) is fine only under the opened mark, and only if the last attempt that it opened belongs to
    the unbroken chain of attempts at this candidate: then it was clean when it first opened one of them,
    so it holds bits of v and of this candidate only, which the complete overwrite set repairs.
    """
    if report.version != version:
        return True
    if report.state is ReceiverState.MIXED and active is not None and active.opened:
        return report.opened is None or report.opened.number < active.since
    return report.state is not ReceiverState.CLEAN


def overwrites_only(active: ActiveAttempt) -> bool:
    """Only absolute values may be sent once receivers may hold part of the transition (P3, P6)."""
    return active.opened


def may_name_earlier(active: ActiveAttempt) -> bool:
    """Whether payloads of earlier attempts of the chain may be named: nobody's storage was touched (P6)."""
    return not active.opened


def combine_classes(catalogue: Catalogue, reports: Mapping[str, ReceiverReport]) -> Classification:
    """Most restrictive class over all receivers, for every name and alias (R6).

    Raises:
        UnsupportedPath: a receiver refuses a tensor.
    """
    combined: Classification = {}
    for name in catalogue.by_name():
        classes = {target: r.classification.get(name, PathClass.OVERWRITE) for target, r in reports.items()}
        refusing = sorted(target for target, path in classes.items() if path is PathClass.REFUSED)
        if refusing:
            raise UnsupportedPath(
                f"tensor {name!r}: {', '.join(refusing)} cannot be refitted; use refit=dense"
            )
        combined[name] = max(classes.values(), key=_ORDER.index, default=PathClass.OVERWRITE)
    return combined


def join_manifest(
    context: Context, attempt: AttemptId, parent: CommitRecord | None, closes: Sequence[OwnerClose], *,
    overwrite_only: bool, required: tuple[str, ...] = (),
) -> Manifest:  # fmt: skip
    """The complete list of the attempt: every owner of the table has closed it (P7).

    ``required`` are the receivers that must acknowledge it.

    Raises:
        AttemptFailed: a list belongs to another attempt or owner.
    """
    for rank, close in enumerate(closes):
        if close.attempt != attempt or close.owner != rank:
            raise AttemptFailed(f"owner-{rank} closed {close.attempt} as owner {close.owner}, not {attempt}")
    link = None if parent is None else (parent.attempt, parent.manifest)
    version = GENESIS.version - 1 if parent is None else parent.version
    owners = tuple(closes)
    digest = context.catalogue.digest()
    return Manifest(context.run, attempt, version, link, digest, overwrite_only, owners, required)


join_audit = joined_audit
"""Digest of every whole candidate tensor from the owners' partial sums (B6)."""


def check_acks(acks: Mapping[str, ApplyAck], manifest: Manifest, digest: str) -> None:
    """Every receiver finished exactly this manifest under this attempt (P6); raises AttemptFailed."""
    for target, ack in acks.items():
        mine = ack.attempt == manifest.attempt and ack.manifest == digest
        if not mine or ack.num_payloads != len(manifest.payloads):
            raise AttemptFailed(
                f"{target} finished {ack.num_payloads} payloads of {ack.attempt}, "
                f"not {len(manifest.payloads)} of {manifest.attempt}"
            )


def check_staged(acks: Mapping[str, StagedAck], manifest: Manifest, digest: str) -> None:
    """Every receiver holds exactly this manifest under this attempt (P6); raises AttemptFailed."""
    for target, ack in acks.items():
        mine = ack.attempt == manifest.attempt and ack.manifest == digest
        if not mine or ack.num_payloads != len(manifest.payloads):
            raise AttemptFailed(
                f"{target} holds {ack.num_payloads} payloads of {ack.attempt}, "
                f"not {len(manifest.payloads)} of {manifest.attempt}"
            )


def warn_if_unchanged(manifest: Manifest) -> None:
    """A transition without changes commits all the same, but it is seldom what one meant (P15)."""
    if not any(close.num_changed for close in manifest.owners):
        logger.warning("version %d changes no value: is training running?", manifest.attempt.version)
