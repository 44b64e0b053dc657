"""What failed attempts stored is removed: after each commit, and when a run is taken over (DESIGN P1)."""

import logging
from collections.abc import Sequence

from dcr.errors import IntegrityError, PayloadError, StoreError
from dcr.model import AttemptId, CommitRecord, Manifest, from_json
from dcr.refit.site import Site
from dcr.transport.chain import history, older
from dcr.transport.collect import collect_attempts, collect_between, named_earlier
from dcr.transport.leftovers import Manifests
from dcr.transport.retention import Pruner

_log = logging.getLogger(__name__)


class Collector:
    """One process of a run has one. A store that fails for now is no error: what stays is removed later."""

    def __init__(self, site: Site, keep_versions: int = 0) -> None:
        """``keep_versions``: see ``dcr.config.ChainConfig``."""
        self._site = site
        self._keep_versions = keep_versions
        self._pruner: Pruner | None = None
        self._manifests = Manifests(site.store, site.archive, site.run)

    def after_commit(self, parent: AttemptId, record: CommitRecord) -> int:
        """Remove what the attempts between ``parent`` and ``record``'s left; how many objects it was.

        Most transitions take one attempt: then nothing is asked of the store.
        """
        try:
            found = self._between(parent, record)
        except (StoreError, PayloadError) as err:
            _log.warning("objects of failed attempts stay until the run is resumed: %s", err)
            return 0
        return len(found)

    def at_start(self, record: CommitRecord) -> int:
        """Remove what failed attempts of any earlier version left; how many objects it was."""
        try:
            manifests = history(self._site.archive, record)
            # what was announced to go may be read still: that is for pruning
            manifests += [manifest for _, manifest in older(self._site.archive, manifests[0])]
            keep, named = [manifest.attempt for manifest in manifests], named_earlier(manifests)
            found = collect_attempts(self._site.store, self._site.run, keep, named)
            found += self._manifests.remove(lambda attempt: _has_failed(attempt, keep))
            found += self._pruning(record).collect_unlinked(record)
            return len(found)
        except (StoreError, IntegrityError) as err:  # whoever needs the chain says what is wrong with it
            _log.warning("objects of failed attempts stay: %s", err)
            return 0

    def prune(self, record: CommitRecord) -> int:
        """Remove versions that need not be kept, and finish what was begun; how many objects it was."""
        try:
            found = self._pruning(record).prune(record, self._keep_versions)
        except (StoreError, IntegrityError) as err:
            _log.warning("versions that need not be kept stay: %s", err)
            return 0
        if found:
            _log.info("version %d: %d objects of older ones are removed", record.version, len(found))
        return len(found)

    def _pruning(self, record: CommitRecord) -> Pruner:
        if self._pruner is None:
            catalogue = self._site.catalogue(record)
            self._pruner = Pruner(self._site.store, self._site.archive, catalogue)
        return self._pruner

    def _between(self, parent: AttemptId, record: CommitRecord) -> list[str]:
        if record.attempt.number <= parent.number + 1:
            return []
        manifest = from_json(Manifest, self._site.archive.get_object("manifest", record.manifest))
        named = named_earlier([manifest])
        found = collect_between(self._site.store, self._site.run, parent, record.attempt, named=named)
        both = [parent, record.attempt]
        return found + self._manifests.remove(lambda attempt: _has_failed(attempt, both))


def _has_failed(attempt: AttemptId, committed: Sequence[AttemptId]) -> bool:
    """Whether ``attempt`` lies between ``committed`` ones, of successive versions, and is none of them."""
    numbers = [each.number for each in committed]
    return min(numbers) < attempt.number < max(numbers) and attempt.number not in numbers
