"""Objects of a bucket into memory: ranges in parallel, each resumed where it broke off.

B is the size of the object in bytes; a range is ``[start, stop)`` of it.
"""

import io
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from dcr.errors import StoreError
from dcr.transport.s3_client import S3Address, ask, code_of

PART_BYTES = 16 << 20
_CHUNK_BYTES = 1 << 20
_PAUSES_S = (0.0, 0.1, 0.3, 1.0, 2.0, 4.0, 4.0)
_NO_RANGE = ("InvalidRange", "416")


class Changed(Exception):  # noqa: N818 -- an answer, not a fault
    """The object was removed and created anew between two of its ranges."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where bytes come from; ``count`` is told how many have arrived, those of broken tries included."""

    client: Any
    address: S3Address
    count: Callable[[int], None]
    num_threads: int = 4
    sleep: Callable[[float], None] = time.sleep


def download(source: Source, key: str) -> tuple[bytes, dict[str, str]]:
    """The object's B bytes and its metadata.

    Raises:
        MissingObject: there is none.
        Changed: it was replaced meanwhile; download it again.
        StoreError: the store failed, or broke the connection off too often.
    """
    head = _open(source, key, 0, PART_BYTES)
    size = _total(head)
    if size == 0:
        head["Body"].close()
        return b"", head.get("Metadata", {})
    buffer = io.BytesIO()
    buffer.truncate(0)
    buffer.seek(size - 1)
    buffer.write(b"\0")  # the one allocation; getvalue() hands it over without a copy
    with buffer.getbuffer() as view:
        fill = _Filler(source, key, head["ETag"], view)
        ranges = [(start, min(start + PART_BYTES, size)) for start in range(0, size, PART_BYTES)]
        if len(ranges) == 1:
            fill(*ranges[0], head)
        else:
            _in_parallel(source.num_threads, fill, ranges, head)
    return buffer.getvalue(), head.get("Metadata", {})


def _in_parallel(num_threads: int, fill: "_Filler", ranges: list[tuple[int, int]], head: Any) -> None:
    with ThreadPoolExecutor(num_threads, thread_name_prefix="s3-get") as pool:
        first, *rest = ranges
        parts = [pool.submit(fill, *first, head), *(pool.submit(fill, *each) for each in rest)]
        try:
            for part in parts:
                part.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


@dataclass(frozen=True, slots=True)
class _Filler:
    """Reads ranges of one object into ``view`` [B]."""

    source: Source
    key: str
    etag: str
    view: memoryview

    def __call__(self, start: int, stop: int, body: Any = None) -> None:
        """Fill ``[start, stop)``; ``body`` is an answer that begins at ``start``, if there is one already."""
        position, reason = start, ""
        for pause_s in (*_PAUSES_S, None):
            if body is None:
                body = _open(self.source, self.key, position, stop, etag=self.etag)
            with closing(body["Body"]) as stream:  # entered, it is the stream below: its errors are others
                position, reason = self._read(stream, position, stop)
            body = None
            if position == stop:
                return
            if pause_s is not None:
                self.source.sleep(pause_s)
        raise StoreError(
            f"{self.source.address.where} broke off object {self.key} at byte {position} of"
            f" {len(self.view)}, again and again ({reason}); check the network, then retry"
        )

    def _read(self, stream: Any, position: int, stop: int) -> tuple[int, str]:
        """Read until ``stop`` or until the connection breaks; how far it came, and why not further."""
        from botocore.exceptions import BotoCoreError
        from urllib3.exceptions import HTTPError  # the SDK hands on what it has no word for

        try:
            while position < stop:
                num = stream.readinto(self.view[position : min(position + _CHUNK_BYTES, stop)])
                if not num:
                    return position, "the answer is too short"
                self.source.count(num)
                position += num
        except (BotoCoreError, HTTPError, OSError) as err:
            return position, str(err)[:200]
        return position, ""


def _open(source: Source, key: str, start: int, stop: int, *, etag: str | None = None) -> Any:
    """An answer that begins at ``start``; without ``etag`` of whatever object is there now."""
    from botocore.exceptions import ClientError

    address = source.address
    wanted = {"Bucket": address.bucket, "Key": address.name(key), "Range": f"bytes={start}-{stop - 1}"}
    if etag is not None:
        wanted["IfMatch"] = etag

    def request() -> Any:
        try:
            return source.client.get_object(**wanted)
        except ClientError as err:
            if etag is not None and code_of(err) in ("PreconditionFailed", "412", *_NO_RANGE):
                raise Changed(key) from err
            if code_of(err) not in _NO_RANGE:
                raise
        return source.client.get_object(Bucket=address.bucket, Key=address.name(key))  # an empty object

    return ask(address, request, key)


def _total(answer: Any) -> int:
    """B, from ``bytes 0-9/B``; an answer without a range is the whole object."""
    _, _, total = answer.get("ContentRange", "").rpartition("/")
    return int(total) if total.isdecimal() else int(answer["ContentLength"])
