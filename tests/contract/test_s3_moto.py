"""The S3 store and control plane against moto: fast and without a server (lanes/services has a real one)."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import MagicMock

import pytest
from botocore.exceptions import ConnectTimeoutError
from moto import mock_aws

from dcr.commit.control_plane.s3 import S3ControlPlane
from dcr.commit.leadership.s3 import S3Leadership
from dcr.errors import StoreError
from dcr.model import new_nonce
from dcr.testing.control_plane_suite import ControlPlaneContract, OpenPlane
from dcr.testing.leadership_suite import LeadershipContract, Race
from dcr.testing.object_store_suite import ObjectStoreContract
from dcr.transport.s3 import S3Store
from dcr.transport.s3_client import S3Address, connect
from dcr.transport.s3_download import Changed

BUCKET = S3Address("bucket", region="us-east-1", key_id="key", secret="secret")


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with mock_aws():
        made = connect(BUCKET)
        made.create_bucket(Bucket=BUCKET.bucket)
        yield OneAtATime(made)
        made.close()


class OneAtATime:
    """A client whose requests follow one another: moto looks and writes in two steps, a server in one."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        return found if name in ("meta", "get_paginator") else lambda **words: self._locked(found, words)

    def _locked(self, request: Callable[..., Any], words: dict[str, Any]) -> Any:
        with self._lock:
            return request(**words)


@pytest.fixture
def address() -> S3Address:
    return replace(BUCKET, prefix=f"some/{new_nonce()}")


class TestObjects(ObjectStoreContract):
    may_nest = True

    @pytest.fixture
    def open_store(self, client: Any, address: S3Address) -> Callable[[], S3Store]:
        return lambda: S3Store(address, client=client)


def test_an_object_that_is_replaced_all_the_time_is_never_taken_for_an_empty_one(
    client: Any, address: S3Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replaced(*_: object) -> None:
        raise Changed("k")

    monkeypatch.setattr("dcr.transport.s3.download", replaced)
    with pytest.raises(StoreError, match="object k is replaced again and again"):
        S3Store(address, client=client).get("k")


class TestControlPlane(ControlPlaneContract):
    @pytest.fixture
    def open_plane(self, client: Any, address: S3Address) -> OpenPlane:
        return lambda: S3ControlPlane(address, client=client)


class TestLeadership(LeadershipContract):
    """Time passes only where it is told to."""

    @pytest.fixture
    def race(self, client: Any, address: S3Address, monkeypatch: pytest.MonkeyPatch) -> Race:
        now = [0.0]

        def wait(seconds: float) -> None:
            now[0] += seconds

        monkeypatch.setattr("dcr.commit.leadership.s3.connect", lambda *_, **__: client)
        join = partial(S3Leadership, address, lease_s=8.0, clock=lambda: now[0])
        return Race(join, 8.0, wait)


class FakeTime:
    """Passes by sleeping."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds


def test_a_look_at_who_leads_does_not_wait_as_long_as_a_run_does(
    address: S3Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within its lease it must have looked or stood down."""
    time, client = FakeTime(), MagicMock()
    client.get_object.side_effect = ConnectTimeoutError(endpoint_url="http://away")
    monkeypatch.setattr("dcr.transport.s3_client.time", time)
    monkeypatch.setattr("dcr.commit.leadership.s3.connect", lambda *_, **__: client)
    with pytest.raises(StoreError, match="does not answer"):
        S3Leadership(address, "r" * 32, "a", lease_s=9.0).campaign()
    assert time.monotonic() == 3.0
