"""Bytes into a bucket, created if and only if the name is free: one request, or parts in parallel.

Whether parts are joined only under a free name is not left to the server: SeaweedFS 4.48 lets several
joins at the same moment all succeed. So the name is claimed first, by one small conditional write of the
digest of the bytes to come; who brings other bytes than were claimed is refused.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from dcr.errors import Conflict, StoreError
from dcr.transport.keys import check_key
from dcr.transport.s3_client import S3Address, ask, code_of, explained

MULTIPART_BYTES = 64 << 20
"""Larger objects go up in parts."""
PART_BYTES = 16 << 20
DIGEST = "dcr-digest"
"""Metadata of every object: the digest of its bytes."""
CLAIMS = ".claim/"
_TAKEN = ("PreconditionFailed", "412", "ConditionalRequestConflict", "409", "NoSuchUpload")
"""Somebody holds the name or is creating it, or an earlier try of this very request has done it."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where bytes go; objects above ``multipart_bytes`` in parts of ``part_bytes``, some at once."""

    client: Any
    address: S3Address
    num_threads: int = 4
    multipart_bytes: int = MULTIPART_BYTES
    part_bytes: int = PART_BYTES


def create(target: Target, key: str, data: bytes, digest: str) -> bool:
    """Create the object; false if the name may be taken, which the caller must look into.

    A lost answer that the SDK asked again for looks like a taken name, too. The SDK sends checksums
    along; the server refuses bytes that do not arrive as they were.

    Raises:
        Conflict: other bytes than these have been claimed for a large object.
        StoreError: the store failed; nothing is visible, or all of it.
    """
    metadata = {DIGEST: digest}
    if len(data) > target.multipart_bytes:
        _claim(target, key, digest)
        return _create_of_parts(target, key, data, metadata)
    name = _name(target, key)
    return _created(
        target.address,
        key,
        lambda: target.client.put_object(**name, Body=data, Metadata=metadata, IfNoneMatch="*"),
    )


def claim_name(address: S3Address, key: str) -> str:
    """Name of the claim on a large object; no key has a segment that begins with a dot."""
    return f"{address.root}{CLAIMS}{check_key(key)}"


def _claim(target: Target, key: str, digest: str) -> None:
    """Claim ``key`` for the bytes with ``digest``, unless that was done before."""
    address, client = target.address, target.client
    name = {"Bucket": address.bucket, "Key": claim_name(address, key)}
    body = digest.encode()
    if _created(address, key, lambda: client.put_object(**name, Body=body, IfNoneMatch="*")):
        return
    if ask(address, lambda: client.get_object(**name)["Body"].read(), key) != body:
        raise Conflict(f"object {key} exists, or is being written, with other bytes; it keeps them")


def _create_of_parts(target: Target, key: str, data: bytes, metadata: dict[str, str]) -> bool:
    address, client, name = target.address, target.client, _name(target, key)
    began = ask(
        address,
        lambda: client.create_multipart_upload(**name, Metadata=metadata, ChecksumAlgorithm="CRC32"),
        key,
    )
    upload = {**name, "UploadId": began["UploadId"]}
    done = False
    try:
        parts = _send_parts(target, key, data, upload)
        whole = {"MultipartUpload": {"Parts": parts}, "IfNoneMatch": "*"}
        done = _created(address, key, lambda: client.complete_multipart_upload(**upload, **whole))
    finally:
        if not done:
            abort(target, key, upload["UploadId"])
    return done


def _send_parts(target: Target, key: str, data: bytes, upload: dict[str, Any]) -> list[dict[str, Any]]:
    view = memoryview(data)

    def send(number: int) -> dict[str, Any]:
        start = (number - 1) * target.part_bytes
        body = bytes(view[start : start + target.part_bytes])
        part = {**upload, "PartNumber": number, "Body": body, "ChecksumAlgorithm": "CRC32"}
        answer = ask(target.address, lambda: target.client.upload_part(**part), key)
        sums = {name: answer[name] for name in ("ChecksumCRC32",) if name in answer}
        return {"PartNumber": number, "ETag": answer["ETag"], **sums}

    num_parts = -(-len(data) // target.part_bytes)
    with ThreadPoolExecutor(target.num_threads, thread_name_prefix="s3-put") as pool:
        parts = [pool.submit(send, number) for number in range(1, num_parts + 1)]
        try:
            return [part.result() for part in parts]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def abort(target: Target, key: str, upload_id: str) -> None:
    """Give the parts of an upload back, as far as the store answers; what stays is swept later."""
    name = _name(target, key)
    with suppress(StoreError), explained(target.address, key):
        target.client.abort_multipart_upload(**name, UploadId=upload_id)


def _created(address: S3Address, key: str, request: Callable[[], object]) -> bool:
    from botocore.exceptions import ClientError

    def unless_taken() -> bool:
        try:
            request()
        except ClientError as err:
            if code_of(err) in _TAKEN:
                return False
            raise
        return True

    return ask(address, unless_taken, key)


def _name(target: Target, key: str) -> dict[str, Any]:
    return {"Bucket": target.address.bucket, "Key": target.address.name(key)}
