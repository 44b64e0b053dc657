"""Audit of live receivers against the record (DESIGN B6): no weight is moved."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dcr.commit.control_plane.base import ControlPlane
from dcr.commit.remote import Caller
from dcr.errors import AttemptFailed, ConfigError, IntegrityError, RefitError, Unreachable
from dcr.model import (
    AuditDigest,
    AuditTable,
    Catalogue,
    CommitRecord,
    ReceiverAudit,
    ReceiverDiagnosis,
    from_json,
)
from dcr.receiver.rank import is_read_back
from dcr_recipes.commands.findings import Finding, failed, proven

if TYPE_CHECKING:
    from dcr.refit import Site

_ANSWER_S = 120.0
_SHOWN = 2


@dataclass(frozen=True, slots=True)
class Auditor:
    """Asks receivers until each was clean at the committed version, at most ``deadline_s`` each."""

    site: "Site"
    plane: ControlPlane
    caller: Caller
    deadline_s: float = 60.0
    pause_s: float = 0.2
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def check(self, name: str) -> list[Finding] | None:
        """Findings of one receiver; None if no receiver of this run answers to that name.

        Raises:
            MissingObject, StoreError: control plane or archive cannot be read.
        """
        end = self.clock() + self.deadline_s
        while True:
            try:
                audit: ReceiverAudit = self.caller(name, "audit", ReceiverAudit, _ANSWER_S, {})
            except (Unreachable, ConfigError):  # ConfigError: something else took over its old port
                return None
            except IntegrityError as err:
                return [failed(name, str(err), tensor=str(err).split(":")[0])]
            except AttemptFailed as err:
                reason = str(err)
            else:
                reason, record = self._not_comparable(audit)
                if not reason:
                    return self._compare(name, audit, record) if audit.catalogue == record.catalogue else None
            if self.clock() >= end:
                return [failed(name, f"not audited within {self.deadline_s:g} s: {reason}")]
            self.sleep(self.pause_s)

    def _not_comparable(self, audit: ReceiverAudit) -> tuple[str, CommitRecord]:
        """Why ``audit`` must be taken again, empty if it need not, and the record as it is now."""
        record = self.plane.read(self.site.run).record
        if audit.catalogue == record.catalogue and audit.attempt != record.attempt:
            return f"it holds version {audit.version}, committed is {record.version}", record
        return "", record

    def _compare(self, name: str, audit: ReceiverAudit, record: CommitRecord) -> list[Finding]:
        try:
            table = from_json(AuditTable, self.site.archive.get_object("audit", record.audit))
            catalogue = self.site.catalogue(record)
        except RefitError as err:
            return [failed(name, f"nothing to compare it with: {err}", version=record.version)]
        wrong = differing(audit.table, table, catalogue)
        if not wrong:
            indirect = self._not_read_back(name)
            return [proven(name, in_words(audit.table, indirect, catalogue, record.version))]
        return [failed(name, why, tensor=tensor, version=record.version) for tensor, why in wrong]

    def _not_read_back(self, name: str) -> dict[str, str] | None:
        """Tensor -> reason, of those whose host copy is read back and not storage; None: nobody says."""
        try:
            diagnosis: ReceiverDiagnosis = self.caller(name, "diagnose", ReceiverDiagnosis, _ANSWER_S, {})
        except RefitError:
            return None
        return {
            tensor: choice.reason
            for rank in diagnosis.ranks
            for tensor, choice in rank.tensors.items()
            if not is_read_back(choice.method, choice.reason)
        }


def in_words(
    names: Iterable[str], indirect: Mapping[str, str] | None, catalogue: Catalogue, version: int
) -> str:
    """What is proven of resident ``names``; of those in ``indirect``, not by reading storage back."""
    if indirect is None:
        digests = f"{counted(names, catalogue)} have the audit digests of version {version}"
        return f"{digests}; whether storage itself was read back is not known: no diagnosis"
    parts = []
    if plain := [name for name in names if name not in indirect]:
        are = "is" if len(plain) == 1 else "are"
        parts.append(f"{counted(plain, catalogue)} {are} version {version}, bit for bit")
    if rest := [name for name in names if name in indirect]:
        reasons = Counter(indirect[name] for name in rest).most_common()
        shown = "; ".join(reason for reason, _ in reasons[:_SHOWN])
        more = f"; and {len(reasons) - _SHOWN} more reasons" if len(reasons) > _SHOWN else ""
        copied = f"{counted(rest, catalogue)} by a host copy ({shown}{more})"
        parts.append(f"{copied}: storage holds what the loader makes of version {version}")
    return "; ".join(parts)


def counted(names: Iterable[str], catalogue: Catalogue) -> str:
    """How many tensors ``names`` are, tied names apart."""
    specs, found = catalogue.by_name(), set(names)
    num = len({specs[name].name for name in found})
    tied = len(found) - num
    words = "1 tensor" if num == 1 else f"{num} tensors"
    return words + (f" and {tied} tied name{'s' if tied > 1 else ''}" if tied else "")


def differing(found: AuditTable, wanted: AuditTable, catalogue: Catalogue) -> list[tuple[str, str]]:
    """(tensor, reason) of everything in ``found`` that is not as ``wanted``, or that ``found`` lacks.

    A tied tensor is placed if one of its names is.
    """
    wrong = [
        (name, f"{name} has the audit digest {tuple(digest)}, the record says {_plain(wanted.get(name))}")
        for name, digest in sorted(found.items())
        if digest != wanted.get(name)
    ]
    lacking = [
        (spec.name, f"{spec.name} cannot be read back from resident storage")
        for spec in catalogue.tensors
        if spec.num_elements and not found.keys() & {spec.name, *spec.aliases}
    ]
    return wrong + lacking


def _plain(digest: AuditDigest | None) -> object:
    return "nothing of it" if digest is None else tuple(digest)
