"""What failed attempts stored is removed: after each commit, and when a run is taken over (DESIGN P1)."""

import logging

from dcr.errors import IntegrityError, PayloadError, StoreError
from dcr.model import AttemptId, CommitRecord, Manifest, from_json
from dcr.refit.site import Site
from dcr.transport.chain import chain
from dcr.transport.collect import collect_attempts, collect_between, named_earlier

_log = logging.getLogger(__name__)


class Collector:
    """One process of a run has one. A store that fails for now is no error: what stays is removed later."""

    def __init__(self, site: Site) -> None:
        self._site = site

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
            manifests = chain(self._site.archive, record)
            keep, named = [manifest.attempt for manifest in manifests], named_earlier(manifests)
            return len(collect_attempts(self._site.store, self._site.run, keep, named))
        except (StoreError, IntegrityError) as err:  # whoever needs the chain says what is wrong with it
            _log.warning("objects of failed attempts stay: %s", err)
            return 0

    def _between(self, parent: AttemptId, record: CommitRecord) -> list[str]:
        if record.attempt.number <= parent.number + 1:
            return []
        manifest = from_json(Manifest, self._site.archive.get_object("manifest", record.manifest))
        named = named_earlier([manifest])
        return collect_between(self._site.store, self._site.run, parent, record.attempt, named=named)
