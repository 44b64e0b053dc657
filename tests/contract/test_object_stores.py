"""The ObjectStore contract, for every store of the core."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dcr.testing.object_store_suite import ObjectStoreContract
from dcr.transport.directory import DirectoryStore
from dcr.transport.memory import MemoryStore


class TestMemoryStore(ObjectStoreContract):
    @pytest.fixture
    def open_store(self) -> Callable[[], MemoryStore]:
        store = MemoryStore()
        return lambda: store


class TestDirectoryStore(ObjectStoreContract):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> Callable[[], DirectoryStore]:
        return lambda: DirectoryStore(tmp_path)
