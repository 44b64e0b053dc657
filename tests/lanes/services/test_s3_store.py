"""The S3 store on a real server: the common contract, large objects, and everything that can go wrong."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from dcr.errors import ConfigError, Conflict, MissingObject, RefitError, StoreError
from dcr.testing.object_store_suite import ObjectStoreContract
from dcr.testing.s3_faults import Fault, FaultyProxy
from dcr.testing.s3_server import S3Server
from dcr.testing.transport_suite import OpenEnd, TransportContract
from dcr.transport.object_transport import ObjectTransport
from dcr.transport.s3 import S3Store
from dcr.transport.s3_client import S3Address, connect

MIB = 1 << 20
DATA = random.Random(0).randbytes(40 * MIB)


class TestContract(ObjectStoreContract):
    may_nest = True

    @pytest.fixture
    def open_store(self, address: S3Address) -> Iterator[Callable[[], S3Store]]:
        client = connect(address)
        yield lambda: S3Store(address, client=client)
        client.close()


class TestTransport(TransportContract):
    @pytest.fixture
    def open_end(self, address: S3Address) -> Iterator[OpenEnd]:
        client = connect(address)
        yield lambda run: ObjectTransport(S3Store(address, client=client), run)
        client.close()


@pytest.fixture
def store(address: S3Address) -> Iterator[S3Store]:
    yield from opened(S3Store(address))


@pytest.fixture
def behind(through: S3Address) -> Iterator[S3Store]:
    """The store by way of the proxy; objects above 12 MiB in parts of 8."""
    yield from opened(S3Store(through, multipart_bytes=12 * MIB, part_bytes=8 * MIB))


def opened(store: S3Store) -> Iterator[S3Store]:
    yield store
    store.close()


# ---- large objects --------------------------------------------------------------------------------


def test_large_objects_go_in_parts_and_ranges(behind: S3Store, proxy: FaultyProxy) -> None:
    behind.put("large", DATA)
    assert [seen.method for seen in proxy.seen].count("PUT") == 6, "a claim and five parts"
    assert behind.get("large") == DATA
    assert len([seen for seen in proxy.seen if seen.method == "GET" and seen.range]) == 3
    assert behind.traffic.downloaded_bytes == len(DATA)
    assert behind.traffic.uploaded_bytes - len(DATA) == 32, "the claim"
    behind.put("large", DATA)
    with pytest.raises(Conflict):
        behind.put("large", DATA[:-1] + b"\0")
    assert behind.sweep("") == 0, "an upload that lost left its parts behind"


def test_of_racing_large_writers_one_wins(address: S3Address) -> None:
    """This server lets several joins of parts at one moment succeed: a claim comes first."""
    store = S3Store(address, multipart_bytes=5 * MIB, part_bytes=5 * MIB)
    for turn in range(6):
        outcomes = race_to_write(store, f"k/{turn}")
        winners = [number for number, error in enumerate(outcomes) if error is None]
        assert len(winners) == 1, outcomes
        assert all(isinstance(error, Conflict) for error in outcomes if error is not None)
        assert store.get(f"k/{turn}") == bytes(winners) * (6 * MIB)
    assert store.list("") == [f"k/{turn}" for turn in range(6)]
    assert store.sweep("") == 0
    store.delete("k/0")
    store.put("k/0", b"x" * (6 * MIB))  # a deleted name is free
    store.close()


def test_what_a_dead_writer_left_is_swept(address: S3Address) -> None:
    """It claimed, began an upload and sent a part; then its attempt failed."""
    store = S3Store(address, multipart_bytes=5 * MIB, part_bytes=5 * MIB)
    client = connect(address)
    for key in ("run/payload/1-1/0/0", "run/payload/1-2/0/0"):
        name = {"Bucket": address.bucket, "Key": address.name(key)}
        client.put_object(Bucket=address.bucket, Key=f"{address.root}.claim/{key}", Body=b"digest")
        upload = client.create_multipart_upload(**name)["UploadId"]
        client.upload_part(**name, UploadId=upload, PartNumber=1, Body=b"x" * (5 * MIB))
    assert store.sweep("run/payload/1-1/") == 1
    store.put("run/payload/1-1/0/0", b"x" * (6 * MIB))
    with pytest.raises(Conflict, match="is being written"):
        store.put("run/payload/1-2/0/0", b"x" * (6 * MIB))
    assert store.sweep("run/payload/1-2/") == 1
    held = client.list_objects_v2(Bucket=address.bucket, Prefix=address.root)["Contents"]
    assert {entry["Key"].removeprefix(address.root) for entry in held} == {
        "run/payload/1-1/0/0", ".claim/run/payload/1-1/0/0"
    }  # fmt: skip
    client.close()
    store.close()


def race_to_write(store: S3Store, key: str) -> list[RefitError | None]:
    outcomes: list[RefitError | None] = [None] * 3

    def write(number: int) -> None:
        try:
            store.put(key, bytes([number]) * (6 * MIB))
        except RefitError as err:
            outcomes[number] = err

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


# ---- answers that are refused, slow, cut off, damaged or lost ---------------------------------------


@pytest.mark.parametrize("method", ["PUT", "GET"])
def test_a_store_that_asks_to_slow_down_is_asked_again(
    behind: S3Store, proxy: FaultyProxy, method: str
) -> None:
    proxy.add(Fault("refuse", method, count=3))
    behind.put("k", b"x" * 1000)
    assert behind.get("k") == b"x" * 1000
    assert [seen.method for seen in proxy.seen].count(method) == 4


def test_a_store_that_stays_overloaded_is_one_clear_error(through: S3Address, proxy: FaultyProxy) -> None:
    store = S3Store(replace(through, patience_s=0.0), client=connect(through, tries=3))
    proxy.add(Fault("refuse", "PUT", count=100))
    with pytest.raises(StoreError, match=r"is overloaded .*use fewer connections"):
        store.put("k", b"x")
    assert len(proxy.seen) == 3
    store.close()


def test_an_answer_that_does_not_come_in_time_is_asked_for_again(
    through: S3Address, proxy: FaultyProxy
) -> None:
    store = S3Store(through, client=connect(through, read_s=0.5))
    store.put("k", b"x" * 1000)
    proxy.add(Fault("delay", "GET", value=3.0), Fault("delay", "PUT", value=1.5))
    assert store.get("k") == b"x" * 1000
    store.put("late", b"y")  # it lands, and the second try finds it there
    assert store.get("late") == b"y"
    store.close()


@pytest.mark.parametrize("at", [0, 1, 5 * MIB])
def test_a_broken_download_goes_on_where_it_broke(behind: S3Store, proxy: FaultyProxy, at: int) -> None:
    behind.put("k", DATA[: 10 * MIB])
    proxy.add(Fault("truncate", "GET", value=at))
    assert behind.get("k") == DATA[: 10 * MIB]
    second = [seen.range for seen in proxy.seen if seen.method == "GET"][1]
    assert second is not None
    assert second.startswith(f"bytes={at // MIB * MIB if at > MIB else at}") or at > MIB
    assert behind.traffic.downloaded_bytes <= 10 * MIB + at


@pytest.mark.parametrize("kind", ["reset", "stall"])
@pytest.mark.parametrize("at", [0, 1, 5 * MIB + 7])
def test_a_download_goes_on_after_a_reset_or_a_stall(
    through: S3Address, proxy: FaultyProxy, kind: str, at: int
) -> None:
    store = S3Store(through, client=connect(through, read_s=0.5))
    store.put("k", DATA[: 10 * MIB])
    proxy.add(Fault(kind, "GET", value=at))
    assert store.get("k") == DATA[: 10 * MIB]
    gets = [seen.range for seen in proxy.seen if seen.method == "GET"]
    assert len(gets) == 2, "only what was missing is asked for again"
    assert (gets[1] or "").startswith(f"bytes={at // MIB * MIB}-") or at < MIB
    store.close()


@pytest.mark.parametrize("kind", ["truncate", "reset", "stall"])
def test_a_download_that_breaks_again_and_again_is_one_clear_error(
    through: S3Address, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("dcr.transport.s3_download._PAUSES_S", (0.0, 0.0, 0.0))
    store = S3Store(through, client=connect(through, read_s=0.5))
    store.put("k", b"x" * 1000)
    proxy.add(Fault(kind, "GET", count=100))
    with pytest.raises(StoreError, match="broke off object k at byte 0 of 1000"):
        store.get("k")
    store.close()


def test_a_large_download_that_fails_leaves_no_thread(behind: S3Store, proxy: FaultyProxy) -> None:
    behind.put("k", DATA)
    before = set(threading.enumerate())
    proxy.add(Fault("truncate", "GET", value=MIB, count=2))
    assert behind.get("k") == DATA
    left = set(threading.enumerate()) - before
    assert not [one for one in left if "process_request" not in one.name], "threads of the proxy aside"


def test_a_damaged_download_is_fetched_again(behind: S3Store, proxy: FaultyProxy) -> None:
    behind.put("k", DATA[: 20 * MIB])
    proxy.add(Fault("corrupt", "GET", value=12345))
    assert behind.get("k") == DATA[: 20 * MIB]
    assert behind.traffic.downloaded_bytes == 2 * 20 * MIB


def test_what_is_damaged_in_the_bucket_is_handed_over(store: S3Store, address: S3Address) -> None:
    """Whoever reads it holds its digest, and says which version it belongs to."""
    store.put("k", b"good")
    client = connect(address)
    held = client.head_object(Bucket=address.bucket, Key=address.name("k"))
    client.put_object(Bucket=address.bucket, Key=address.name("k"), Body=b"evil", Metadata=held["Metadata"])
    client.close()
    assert store.get("k") == b"evil"


@pytest.mark.parametrize("size", [1000, 20 * MIB], ids=["one request", "parts"])
def test_a_lost_answer_to_a_write_is_no_conflict(behind: S3Store, proxy: FaultyProxy, size: int) -> None:
    """The SDK asks again and is told that the name is taken: by itself."""
    proxy.add(Fault("lose", "PUT" if size < MIB else "POST", path="k?uploadId" if size > MIB else "k"))
    behind.put("k", DATA[:size])
    assert behind.get("k") == DATA[:size]
    assert behind.sweep("") == 0


def test_requests_that_never_arrive_are_sent_again(behind: S3Store, proxy: FaultyProxy) -> None:
    for method in ("PUT", "GET", "DELETE"):
        proxy.add(Fault("drop", method))
    behind.put("k", b"x")
    assert behind.get("k") == b"x"
    behind.delete("k")
    with pytest.raises(MissingObject, match="no object k in bucket"):
        behind.get("k")


# ---- a configuration that cannot work ---------------------------------------------------------------


def test_wrong_credentials_are_named(address: S3Address) -> None:
    for wrong in (replace(address, secret="wrong"), replace(address, key_id="nobody")):
        store = S3Store(wrong)
        with pytest.raises(ConfigError, match=r"refuses the credentials.*AWS_ACCESS_KEY_ID"):
            store.check()
        acts: list[Callable[[], object]] = [partial(store.put, "k", b"x"), partial(store.list, "")]
        acts += [partial(store.get, "k"), partial(store.delete, "k")]
        for act in acts:
            with pytest.raises(StoreError, match="refuses the credentials"):
                act()
        store.close()


def test_no_credentials_at_all_are_named(address: S3Address, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    store = S3Store(replace(address, key_id="", secret=""))
    with pytest.raises(ConfigError, match="set AWS_ACCESS_KEY_ID"):
        store.check()
    store.close()


def test_credentials_come_from_the_environment(address: S3Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", address.key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", address.secret)
    store = S3Store(replace(address, key_id="", secret=""))
    store.check()
    store.put("k", b"x")
    assert store.get("k") == b"x"
    store.close()


def test_a_missing_bucket_is_named(address: S3Address) -> None:
    store = S3Store(replace(address, bucket="nowhere"))
    with pytest.raises(
        ConfigError, match=r"'nowhere' does not exist.*create it or correct transport\.bucket"
    ):
        store.check()
    with pytest.raises(StoreError, match="'nowhere' does not exist") as caught:
        store.get("k")
    assert not isinstance(caught.value, MissingObject)
    with pytest.raises(StoreError, match="'nowhere' does not exist"):
        store.put("k", b"x")
    store.close()


def test_a_clock_that_is_off_is_named(address: S3Address, monkeypatch: pytest.MonkeyPatch) -> None:
    def skewed(*_: object, **__: object) -> datetime:
        return (datetime.now(UTC) + timedelta(hours=3)).replace(tzinfo=None)

    monkeypatch.setattr("botocore.auth.get_current_datetime", skewed)
    store = S3Store(address)
    with pytest.raises(RefitError, match=r"this host's clock is not that of .*set it"):
        store.check()
    store.close()


def test_nobody_listening_is_one_clear_error(address: S3Address) -> None:
    there = replace(address, endpoint="http://127.0.0.1:9", patience_s=0.0)
    store = S3Store(there, client=connect(there, tries=2))
    with pytest.raises(StoreError, match=r"does not answer .*is it running"):
        store.check()
    store.close()


@pytest.mark.parametrize("condition", ["If-None-Match", "If-Match"])
def test_a_store_that_ignores_conditions_is_refused_and_named(
    behind: S3Store, proxy: FaultyProxy, condition: str
) -> None:
    proxy.add(Fault("delay", "PUT", count=1 if condition == "If-None-Match" else 3), Fault("pretend", "PUT"))
    with pytest.raises(
        ConfigError, match=rf"cannot be the control plane.*ignores {condition}.*commit=sqlite"
    ):
        behind.check(as_control_plane=True)
    assert behind.list("") == []


def test_a_store_that_keeps_its_promises_is_accepted(store: S3Store) -> None:
    store.check()
    store.check(as_control_plane=True)
    assert store.list("") == []


# ---- kill -9 ----------------------------------------------------------------------------------------


def test_a_server_killed_in_the_midst_of_uploads_loses_nothing_acknowledged(server: S3Server) -> None:
    """Every put returns after the restart, and every object is whole."""
    store = S3Store(replace(server.address, prefix="killed"), multipart_bytes=6 * MIB, part_bytes=5 * MIB)
    acknowledged: list[int] = []

    def upload(first: int) -> None:
        for number in range(first, 40, 4):
            store.put(f"o/{number}", DATA[number * MIB // 2 :][: 8 * MIB])
            acknowledged.append(number)

    threads = [threading.Thread(target=upload, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    while len(acknowledged) < 5:
        time.sleep(0.01)
    server.kill()
    assert len(acknowledged) < 40, "it was not in the midst"
    server.start()
    for thread in threads:
        thread.join()
    assert sorted(acknowledged) == list(range(40))
    for number in range(40):
        assert store.get(f"o/{number}") == DATA[number * MIB // 2 :][: 8 * MIB]
    assert store.sweep("") == 0
    store.close()


def test_a_server_that_stays_away_is_one_clear_error_and_nothing_is_half_there(server: S3Server) -> None:
    address = replace(server.address, prefix="away", patience_s=0.0)
    store = S3Store(address, client=connect(address, tries=2), multipart_bytes=6 * MIB, part_bytes=5 * MIB)
    store.put("before", b"x")
    server.kill()
    try:
        for act in (
            lambda: store.put("small", b"x"),
            lambda: store.put("large", DATA),
            lambda: store.get("before"),
            lambda: store.list(""),
        ):
            with pytest.raises(StoreError, match="does not answer"):
                act()
    finally:
        server.start()
    assert store.list("") == ["before"]
    store.close()
