"""After many refits and aborted attempts over S3 nothing is left over: no thread, descriptor or object."""

import gc
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.lanes.services.refit_world import RUN, RefitWorld, descriptors, failing_at

from dcr.model import Manifest
from dcr.testing.s3_server import S3Server
from dcr.transport.chain import history
from dcr.transport.s3_client import S3Address, connect

FAULTS = ("receiver.item.before", "owner.publish.before", "owner.close.before", "receiver.finish.before")
"""Where attempts fail, in turn: while applying, while sending, when all is sent, and when it is checked."""
PATIENCE_S = 10.0
POOLED = 6
"""Connections, and threads that answer them, by which pools may grow when calls coincide once more."""


def settled(count: Callable[[], Counter[str]], known: Counter[str], most: int = 0) -> Counter[str]:
    """What there is beyond ``known``, if it stays more than ``most`` when things have had time to end."""
    end = time.monotonic() + PATIENCE_S
    while (found := count() - known).total() > most and time.monotonic() < end:
        time.sleep(0.1)
    return found if found.total() > most else Counter()


def threads() -> Counter[str]:
    """Living threads by name, numbers aside."""
    return Counter(re.sub(r"\d+", "N", thread.name) for thread in threading.enumerate())


def open_files() -> Counter[str]:
    """Descriptors by what they are of, numbers aside."""
    return Counter(re.sub(r"\d+", "N", name) for name in descriptors().values())


def exercise(world: RefitWorld, *, num_refits: int, num_aborted: int) -> None:
    """So many refits, evenly among them transitions whose first attempt fails."""
    every = max(1, num_refits // max(num_aborted, 1))
    aborted = 0
    for number in range(num_refits):
        if number % every == 0 and aborted < num_aborted:
            with failing_at(FAULTS[aborted % len(FAULTS)]) as failed:
                report = world.refit()
            assert failed
            assert report.num_attempts is not None
            assert report.num_attempts >= 2, FAULTS[aborted % len(FAULTS)]
            aborted += 1
        else:
            assert world.refit().num_attempts == 1
    assert aborted == num_aborted
    assert world.differing_bits() == 0


def strays(world: RefitWorld, manifests: list[Manifest], digests: dict[str, set[str]]) -> list[str]:
    """Objects of the run that no committed version needs."""
    payloads = {
        f"payload/{ref.attempt or manifest.attempt}/{ref.owner}/{ref.sequence}"
        for manifest in manifests
        for ref in manifest.payloads
    }
    closes = {f"close/{m.attempt}/{close.owner}" for m in manifests for close in m.owners}
    named = {f"{kind}/{digest}" for kind, known in digests.items() for digest in known}
    keys = {key.removeprefix(f"{RUN}/") for key in world.store.list(f"{RUN}/")}
    return sorted(keys - payloads - closes - named)


def unfinished(address: S3Address) -> list[str]:
    """Uploads that were begun and neither finished nor given up, and claims."""
    client = connect(address)
    uploads = client.list_multipart_uploads(Bucket=address.bucket).get("Uploads", [])
    claims = client.list_objects_v2(Bucket=address.bucket, Prefix=f"{address.root}.claim/").get(
        "Contents", []
    )
    client.close()
    return [each["Key"] for each in (*uploads, *claims)]


def nothing_is_left(folder: Path, address: S3Address, mode: str, num_refits: int, num_aborted: int) -> None:
    before = threads(), open_files()
    world = RefitWorld(folder, address, mode)
    with world.running():
        exercise(world, num_refits=4, num_aborted=len(FAULTS))  # pools fill, each fault was met once
        warm = threads(), open_files()
        exercise(world, num_refits=num_refits, num_aborted=num_aborted)
        assert not settled(threads, warm[0], POOLED)
        assert not settled(open_files, warm[1], POOLED)
        record = world.refits[0].record
        manifests = history(world.site.archive, record)
        digests = {
            "manifest": {record.manifest, *(m.parent[1] for m in manifests if m.parent)},
            "catalogue": {record.catalogue},
        }
        left = strays(world, manifests, digests)
        assert [key for key in left if not key.startswith("audit/")] == []
        assert len([key for key in left if key.startswith("audit/")]) <= len(manifests)
        assert unfinished(address) == []
    gc.collect()
    assert not settled(threads, before[0]), "threads of a closed run"
    assert not settled(open_files, before[1]), "descriptors of a closed run"


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_nothing_is_left_of_a_few_refits(
    tmp_path: Path, server: S3Server, address: S3Address, mode: str
) -> None:
    nothing_is_left(tmp_path, address, mode, 10, len(FAULTS))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_nothing_is_left_of_200_refits_and_50_aborted_attempts(
    tmp_path: Path, server: S3Server, address: S3Address, mode: str
) -> None:
    nothing_is_left(tmp_path, address, mode, 200, 50)
