import os
from collections.abc import Iterator

import pytest

from dcr.source.tracker_file import TrackerFile


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk() -> Iterator[None]:
    """Simulated processes crash, the machine does not: what was written is there without a sync."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        patch.setattr(TrackerFile, "sync", lambda self: None)
        yield
