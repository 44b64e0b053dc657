"""Whether a server keeps the promises that we rest on: it is tried, not asked."""

from contextlib import suppress
from typing import Any

from dcr.errors import StoreError
from dcr.model import new_nonce
from dcr.transport.s3_client import S3Address, code_of, explained, status_of

_REFUSED = (404, 409, 412)


class Ignored(Exception):  # noqa: N818 -- an answer, not a fault
    """The server carried out what its condition forbade; the words name the condition."""


def probe_create(client: Any, address: S3Address) -> None:
    """Check that ``If-None-Match: *`` keeps an existing object.

    Raises:
        Ignored: it does not.
        ConfigError: the bucket refuses us.
        StoreError: the store failed.
    """
    with _Probe(client, address) as probe:
        probe.require_created()


def probe_replace(client: Any, address: S3Address) -> None:
    """Check that, and that ``If-Match`` replaces what it names and nothing else.

    Raises:
        Ignored: it does not.
        ConfigError: the bucket refuses us.
        StoreError: the store failed.
    """
    with _Probe(client, address) as probe:
        etag = probe.require_created()
        if not probe.put(b"second", IfMatch=etag):
            raise Ignored("If-Match: it refuses an ETag that holds")
        if probe.put(b"third", IfMatch=etag):
            raise Ignored("If-Match")
        if probe.read() != b"second":
            raise Ignored("If-Match or its own answers")


class _Probe:
    """One object that nobody else knows."""

    def __init__(self, client: Any, address: S3Address) -> None:
        self._client = client
        self._address = address
        self._name = {"Bucket": address.bucket, "Key": f"{address.root}.probe/{new_nonce()}"}

    def __enter__(self) -> "_Probe":
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(StoreError), explained(self._address):
            self._client.delete_object(**self._name)

    def require_created(self) -> str:
        """Create the object, see that it cannot be created again, and return its ETag."""
        if not self.put(b"first", IfNoneMatch="*"):
            raise Ignored("If-None-Match: it refuses a name that is free")
        if self.put(b"again", IfNoneMatch="*"):
            raise Ignored("If-None-Match")
        with explained(self._address, starting=True):
            return str(self._client.head_object(**self._name)["ETag"])

    def put(self, body: bytes, **condition: str) -> bool:
        """Whether the server wrote."""
        from botocore.exceptions import ClientError

        with explained(self._address, starting=True):
            try:
                self._client.put_object(**self._name, Body=body, **condition)
            except ClientError as err:
                if status_of(err) in _REFUSED and "Bucket" not in code_of(err):
                    return False
                raise
        return True

    def read(self) -> bytes:
        """What the object holds."""
        with explained(self._address, starting=True):
            body: bytes = self._client.get_object(**self._name)["Body"].read()
        return body
