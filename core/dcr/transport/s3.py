"""Objects of one S3 bucket (paper section 7, DESIGN R18, P1).

An object is created by a conditional write (``If-None-Match: *``), so it never changes, and appears
whole or not at all. Each carries the digest of its bytes as metadata: by it a repeated write is
recognised without reading the object back, and a download that was damaged on its way is noticed and
repeated. What is damaged in the bucket itself is handed over; every reader of ours checks digests.
"""

import logging
import threading
from dataclasses import dataclass
from functools import partial
from typing import Any

from dcr import observe
from dcr.errors import ConfigError, Conflict, MissingObject, StoreError
from dcr.model import digest_hex
from dcr.transport.keys import check_key, check_prefix
from dcr.transport.s3_client import S3Address, ask, connect
from dcr.transport.s3_download import Changed, Source, download
from dcr.transport.s3_probe import Ignored, probe_create, probe_replace
from dcr.transport.s3_upload import (
    CLAIMS,
    DIGEST,
    MULTIPART_BYTES,
    PART_BYTES,
    Target,
    abort,
    claim_name,
    create,
)

_MAX_TRIES = 3
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Traffic:
    """Bytes of objects that left and reached this process, those of failed and repeated tries included."""

    uploaded_bytes: int = 0
    downloaded_bytes: int = 0
    num_gets: int = 0


class S3Store:
    """ObjectStore over a bucket that exists. Thread-safe; any number of processes may share the bucket.

    ``num_threads`` ranges or parts of one large object travel at once.

    Raises:
        ConfigError: the address cannot be used, or boto3 is missing.
    """

    def __init__(
        self,
        address: S3Address,
        *,
        client: Any = None,
        num_threads: int = 4,
        multipart_bytes: int = MULTIPART_BYTES,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self.address = address
        self.traffic = Traffic()
        self._client = connect(address) if client is None else client
        self._lock = threading.Lock()
        self._target = Target(self._client, address, num_threads, multipart_bytes, part_bytes)
        self._source = Source(self._client, address, self._count_down, num_threads)
        self._client.meta.events.register_first("before-send.s3", self._count_up)

    def check(self, *, as_control_plane: bool = False) -> None:
        """Write, compare, read and remove one small object under ``.probe``; call it once at the start.

        Raises:
            ConfigError: the bucket is missing or refuses us, or the server ignores conditional
                writes, which objects (and a control plane) rest on.
            StoreError: the store does not answer.
        """
        bucket = self.address.bucket  # listed, not looked at by HEAD: its refusals have no words
        ask(self.address, lambda: self._client.list_objects_v2(Bucket=bucket, MaxKeys=1), starting=True)
        try:
            (probe_replace if as_control_plane else probe_create)(self._client, self.address)
        except Ignored as err:
            role = "control plane" if as_control_plane else "object store"
            raise ConfigError(
                f"{self.address.where} cannot be the {role} of a run: it ignores {err}; use another server"
                + (" or commit=sqlite" if as_control_plane else " or transport=directory")
            ) from None

    def put(self, key: str, data: bytes) -> None:
        """Create the object durably; see ``ObjectStore.put``."""
        check_key(key)
        digest = digest_hex(data)
        for _ in range(_MAX_TRIES):
            if create(self._target, key, data, digest) or self._holds(key, data, digest):
                observe.point("store.put", key=key, num_bytes=len(data))
                return
        if self.list(f"{key}/"):
            raise ConfigError(f"object key {key!r} is a folder of keys here; a key cannot also be an object")
        raise StoreError(f"object {key} keeps appearing and vanishing; retry when nobody collects it")

    def get(self, key: str) -> bytes:
        """Return the whole object; see ``ObjectStore.get``."""
        check_key(key)
        data = self._download(key)
        with self._lock:
            self.traffic.num_gets += 1
        observe.point("store.get", key=key, num_bytes=len(data))
        return data

    def list(self, prefix: str) -> list[str]:
        """Keys that start with ``prefix``, sorted. Objects of others that are no keys are left out."""
        check_prefix(prefix)
        return sorted(name for name in self._names(prefix) if _is_key(name))

    def delete(self, key: str) -> None:
        """Remove the object; a missing one is no error."""
        bucket = self.address.bucket  # the claim goes last: it guards the name
        for name in (self.address.name(key), claim_name(self.address, key)):
            ask(self.address, partial(self._client.delete_object, Bucket=bucket, Key=name))

    def sweep(self, prefix: str) -> int:
        """Give back the parts of unfinished uploads under ``prefix`` and all claims; how many uploads it was.

        Uploads of live writers fail: name a prefix that nobody writes to any more, its objects deleted.
        """
        check_prefix(prefix)
        root, bucket = self.address.root, self.address.bucket

        def request() -> Any:
            pages = self._client.get_paginator("list_multipart_uploads")
            found = pages.paginate(Bucket=bucket, Prefix=root + prefix)
            return [entry for page in found for entry in page.get("Uploads", ())]

        found = ask(self.address, request)
        for entry in found:
            abort(self._target, entry["Key"].removeprefix(root), entry["UploadId"])
        for name in self._names(f"{CLAIMS}{prefix}"):
            ask(self.address, partial(self._client.delete_object, Bucket=bucket, Key=f"{root}{name}"))
        return len(found)

    def close(self) -> None:
        """Close idle connections."""
        self._client.close()

    def _names(self, prefix: str) -> tuple[str, ...]:
        """What objects under ``prefix`` are called below the root, whoever wrote them."""
        root, bucket = self.address.root, self.address.bucket

        def request() -> Any:
            pages = self._client.get_paginator("list_objects_v2")
            found = pages.paginate(Bucket=bucket, Prefix=root + prefix)
            return [entry["Key"].removeprefix(root) for page in found for entry in page.get("Contents", ())]

        return tuple(ask(self.address, request))

    def _download(self, key: str) -> bytes:
        """The object's bytes; those of the last try, should they arrive damaged each time."""
        data: bytes | None = None
        for _ in range(_MAX_TRIES):
            try:
                data, metadata = download(self._source, key)
            except Changed:
                continue
            if metadata.get(DIGEST) in (None, digest_hex(data)):
                return data
            _log.warning("object %s arrived damaged", key)
        if data is None:
            raise StoreError(f"object {key} is replaced again and again; see who writes to this bucket")
        return data

    def _holds(self, key: str, data: bytes, digest: str) -> bool:
        """Whether the object exists with these bytes; false if it does not exist.

        Raises:
            Conflict: it exists with other bytes.
        """
        name = {"Bucket": self.address.bucket, "Key": self.address.name(key)}
        try:
            found = ask(self.address, lambda: self._client.head_object(**name), key)
        except MissingObject:
            return False
        same = found["ContentLength"] == len(data)
        known = found.get("Metadata", {}).get(DIGEST)
        if same and (known == digest if known else self.get(key) == data):
            return True
        raise Conflict(f"object {key} exists with other bytes; it keeps them")

    def _count_up(self, request: Any, **_: object) -> None:
        if request.method == "PUT":  # an object or a part of one, at each try
            headers = request.headers
            length = headers.get("X-Amz-Decoded-Content-Length") or headers.get("Content-Length") or 0
            with self._lock:
                self.traffic.uploaded_bytes += int(length)

    def _count_down(self, num_bytes: int) -> None:
        with self._lock:
            self.traffic.downloaded_bytes += num_bytes


def _is_key(name: str) -> bool:
    try:
        check_key(name)
    except ConfigError:
        return False
    return True
