"""Proof of what a run's archive holds: manifests, payload digests, and the bits rebuilt from them."""

from collections.abc import Callable
from dataclasses import dataclass

from dcr import observe
from dcr.codec import read_head
from dcr.errors import IntegrityError, MissingObject, PayloadError
from dcr.model import Catalogue, CommitRecord, Manifest, PayloadRef
from dcr.transport.base import Archive
from dcr.transport.chain import chain, history, planes
from dcr.transport.replay import replay
from dcr_recipes.commands.findings import Finding, failed, proven, unchecked

Advance = Callable[[str, int, int], None]
"""Told (what is done, payloads done, of how many)."""


@dataclass(frozen=True, slots=True)
class ArchiveCheck:
    """Checks the archive behind ``record``; ``advance`` hears of the progress."""

    archive: Archive
    record: CommitRecord
    catalogue: Catalogue
    advance: Advance

    def run(self) -> list[Finding]:
        """Every finding, from the cheapest check to the dearest; a failure makes later ones meaningless.

        Raises:
            StoreError: the store failed for now.
        """
        try:
            with self.archive.reading(self.archive.retained().floor) as keep:
                return self._findings(keep)
        except IntegrityError as err:  # pruned in this very moment
            return [failed("manifests", str(err))]

    def _findings(self, keep: Callable[[], None]) -> list[Finding]:
        """As ``run``; ``keep`` is called before each payload, so that none is pruned meanwhile."""
        try:
            retained, manifests = self.archive.retained(), history(self.archive, self.record)
            beside = {str(manifest.attempt): manifest for manifest in manifests}
            anchors = [
                planes(self.archive, beside[str(anchor.attempt)], anchor)
                for anchor in retained.anchors
                if str(anchor.attempt) in beside
            ]
            begin = chain(self.archive, self.record)
        except IntegrityError as err:
            return [failed("manifests", str(err))]
        found = [proven("manifests", f"{len(manifests)}, each names its parent, back to the anchor")]
        deltas = [each for each in manifests if each.attempt.version > retained.floor or not retained.floor]
        damaged = self._payloads([*anchors[::-1], *deltas], keep)
        if damaged:
            return [*found, *damaged, unchecked("rebuilt tensors", "payloads are damaged")]
        num_payloads, num_bytes = _extent([*anchors, *deltas])
        found.append(proven("payloads", f"{num_payloads} with {num_bytes} bytes have their digests"))
        return [*found, self._rebuild(_extent(begin)[0])]

    def _payloads(self, manifests: list[Manifest], keep: Callable[[], None]) -> list[Finding]:
        """One finding for each damaged payload."""
        damaged, (total, _), done = [], _extent(manifests), 0
        for manifest in manifests:
            for ref in manifest.payloads:
                keep()
                if fault := self._fault(manifest, ref):
                    version = manifest.attempt.version
                    where = f"payload {ref.sequence} of owner {ref.owner}, attempt {manifest.attempt}"
                    damaged.append(failed("payloads", f"{where} {fault}", version=version))
                done += 1
                self.advance("payload digests", done, total)
        return damaged

    def _fault(self, manifest: Manifest, ref: PayloadRef) -> str:
        try:
            data = self.archive.get_payload(manifest, ref)
            digest = read_head(data).digest
        except MissingObject as err:
            return f"is missing: {err}"
        except PayloadError as err:
            return f"is damaged: {err}"
        return "" if digest == ref.digest else f"is another one, {digest}; the manifest lists {ref.digest}"

    def _rebuild(self, total: int) -> Finding:
        what, done = "rebuilt tensors", 0

        def listen(event: observe.Event) -> None:
            nonlocal done
            if event.name == "replay.payload" and event.start_ns != event.end_ns:
                done += 1
                self.advance("rebuilding", done, total)

        try:
            with observe.listening(listen):
                tensors = replay(self.archive, self.record, self.catalogue)
        except IntegrityError as err:
            return failed(what, str(err), version=self.record.version)
        return proven(what, f"{len(tensors)} from anchor and payloads have the record's audit digests")


def _extent(manifests: list[Manifest]) -> tuple[int, int]:
    refs = [ref for manifest in manifests for ref in manifest.payloads]
    return len(refs), sum(ref.num_bytes for ref in refs)
