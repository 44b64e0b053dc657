import logging
import os
from collections.abc import Iterator

import pytest

from dcr.source import tracker_index
from dcr.source.tracker_file import TrackerFile
from dcr.testing.in_turn import decoding_in_turn
from tests.simulation.stores import TRACKER_DISKS


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk() -> Iterator[None]:
    """Simulated processes crash, the machine does not: what was written is there without a sync."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        patch.setattr(TrackerFile, "sync", lambda self: None)
        patch.setattr(tracker_index, "replace_durably", TRACKER_DISKS.replace)
        logging.disable(logging.CRITICAL)  # every fault is warned of
        yield
        logging.disable(logging.NOTSET)


@pytest.fixture(autouse=True)
def _one_thread_at_a_time() -> Iterator[None]:
    """What happens follows from the seed alone."""
    with decoding_in_turn():
        yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What the simulation did, also when it ran in another process."""
    for report in terminalreporter.stats.get("passed", []):
        for name, line in getattr(report, "user_properties", []):
            if name == "simulation":
                terminalreporter.write_line(f"simulation: {line}")
