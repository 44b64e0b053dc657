"""The toy runtime keeps the native loader contract, in each of its moods."""

from functools import partial

import pytest

from dcr.testing.native_loader_suite import LoaderCase, NativeLoaderContract
from dcr.testing.toy_runtime import ToyRuntime


class TestToyRuntime(NativeLoaderContract):
    @pytest.fixture(
        params=[{}, {"tied": True}, {"batching": True}, {"tiny": True}],
        ids=["plain", "tied", "batching", "tiny"],
    )
    def case(self, request: pytest.FixtureRequest) -> LoaderCase:
        make = partial(ToyRuntime, **request.param)
        return LoaderCase(make, make().catalogue)
