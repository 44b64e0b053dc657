"""What failed attempts stored is removed: after each commit, and when a run is taken over (DESIGN P1)."""

import logging

from dcr.errors import IntegrityError, StoreError
from dcr.model import AttemptId, CommitRecord
from dcr.refit.site import Site
from dcr.transport.chain import chain
from dcr.transport.collect import collect_attempts, collect_between

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
            found = collect_between(self._site.store, self._site.run, parent, record.attempt)
        except StoreError as err:
            _log.warning("objects of failed attempts stay until the run is resumed: %s", err)
            return 0
        return len(found)

    def at_start(self, record: CommitRecord) -> int:
        """Remove what failed attempts of any earlier version left; how many objects it was."""
        try:
            keep = [manifest.attempt for manifest in chain(self._site.archive, record)]
            return len(collect_attempts(self._site.store, self._site.run, keep))
        except (StoreError, IntegrityError) as err:  # whoever needs the chain says what is wrong with it
            _log.warning("objects of failed attempts stay: %s", err)
            return 0
