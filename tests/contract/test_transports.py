"""The Transport contract, for every transport of the core over every store."""

from pathlib import Path

import pytest

from dcr.testing.transport_suite import OpenEnd, TransportContract
from dcr.transport.directory import DirectoryStore
from dcr.transport.memory import MemoryStore
from dcr.transport.object_transport import ObjectTransport


class TestOverMemory(TransportContract):
    @pytest.fixture
    def open_end(self) -> OpenEnd:
        store = MemoryStore()
        return lambda run: ObjectTransport(store, run)


class TestOverDirectory(TransportContract):
    @pytest.fixture
    def open_end(self, tmp_path: Path) -> OpenEnd:
        return lambda run: ObjectTransport(DirectoryStore(tmp_path), run)


class TestAhead(TransportContract):
    """Several payloads are fetched while the receiver works on one."""

    @pytest.fixture
    def open_end(self, tmp_path: Path) -> OpenEnd:
        return lambda run: ObjectTransport(DirectoryStore(tmp_path), run, ahead=3)
