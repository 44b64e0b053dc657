"""One S3 endpoint: where it is, a client for it, and what its refusals mean to the caller.

Credentials come from the SDK's own chain (environment, profile, role) unless the address carries
them. Time is bounded: the SDK's ``standard`` retries repeat what was throttled (503), broken or late,
with growing pauses, ``tries`` times in all; ``ask`` goes on with that while the server is away or
overloaded, until the address's ``patience_s`` is over.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dcr.errors import ConfigError, MissingObject, StoreError, StoreUnreachable
from dcr.transport.keys import check_key

CONNECT_S, READ_S = 5.0, 30.0
"""Longest wait for a connection, and for the next byte of an answer."""
TRIES = 5
"""Tries of one request. Their pauses add up to 8 s on average."""
_PAUSE_S = 0.5

T = TypeVar("T")

_MISSING_BUCKET = "bucket {bucket!r} does not exist at {where}; create it or correct transport.bucket"
_DENIED = (
    "{where} refuses the credentials for bucket {bucket!r} ({reason}); set AWS_ACCESS_KEY_ID and"
    " AWS_SECRET_ACCESS_KEY, a profile or a role that may read, write, list and delete there"
)
_REGION = "bucket {bucket!r} lies in another region ({reason}); correct transport.region"
_THROTTLED = "{where} is overloaded ({reason}) and stayed so; use fewer connections or wait, then retry"
_ADVICE = {
    "NoSuchBucket": _MISSING_BUCKET,
    "AccessDenied": _DENIED,
    "InvalidAccessKeyId": _DENIED,
    "SignatureDoesNotMatch": _DENIED,
    "ExpiredToken": _DENIED,
    "403": _DENIED,
    "PermanentRedirect": _REGION,
    "AuthorizationHeaderMalformed": _REGION,
    "301": _REGION,
    "RequestTimeTooSkewed": "this host's clock is not that of {where} ({reason}); set it (NTP) and retry",
    "InvalidBucketName": "transport.bucket: {bucket!r} is no name of a bucket",
    "SlowDown": _THROTTLED,
    "ServiceUnavailable": _THROTTLED,
    "503": _THROTTLED,
}
_NOT_CONFIGURED = frozenset(_ADVICE) - {"SlowDown", "ServiceUnavailable", "503"}


@dataclass(frozen=True, slots=True)
class S3Address:
    """A bucket. ``endpoint`` and ``region`` are the SDK's own defaults when empty.

    Everything lies under ``prefix/`` there. ``path_style``: the bucket is part of the path, as nearly
    every server but AWS wants it. ``patience_s``: how long a server that restarts is waited for.
    ``key_id`` and ``secret`` are for servers that a run starts itself.
    """

    bucket: str
    endpoint: str = ""
    region: str = ""
    prefix: str = ""
    path_style: bool = True
    patience_s: float = 60.0
    key_id: str = ""
    secret: str = field(default="", repr=False)

    @property
    def where(self) -> str:
        """The endpoint in words."""
        return self.endpoint or "AWS"

    def name(self, key: str) -> str:
        """The whole name of an object.

        Raises:
            ConfigError: ``key`` is not usable.
        """
        return self.root + check_key(key)

    @property
    def root(self) -> str:
        """What every name begins with: ``prefix/`` or nothing."""
        return f"{self.prefix}/" if self.prefix else ""


def connect(
    address: S3Address, *, tries: int = TRIES, read_s: float = READ_S, num_connections: int = 16
) -> Any:
    """A client of the SDK, safe to share between threads; nothing is sent yet.

    Raises:
        ConfigError: the address cannot be used, or boto3 is not installed.
    """
    try:
        import boto3
        from botocore.config import Config
    except ImportError as err:
        raise ConfigError("transport=s3 needs boto3; install it with: pip install 'dcr[s3]'") from err
    if address.prefix:
        check_key(address.prefix)
    if not address.bucket:
        raise ConfigError("transport.bucket: name the bucket that the run's objects go to")
    config = Config(
        signature_version="s3v4",
        connect_timeout=CONNECT_S,
        read_timeout=read_s,
        retries={"mode": "standard", "total_max_attempts": tries},
        max_pool_connections=num_connections,
        s3={"addressing_style": "path" if address.path_style else "virtual"},
    )
    with explained(address, starting=True):
        session = boto3.session.Session(
            aws_access_key_id=address.key_id or None,
            aws_secret_access_key=address.secret or None,
            region_name=address.region or None,
        )
        region = None if session.region_name or not address.endpoint else "us-east-1"
        return session.client("s3", endpoint_url=address.endpoint or None, region_name=region, config=config)


class _Away(StoreUnreachable):
    """The server cannot be reached, is overloaded or failed; that may pass."""


def ask(address: S3Address, request: Callable[[], T], key: str = "", *, starting: bool = False) -> T:
    """What ``request`` returns; it is repeated while the server is away. See ``explained`` for the rest.

    Raises:
        MissingObject: there is no object ``key``.
        ConfigError: ``starting``, and the configuration must be corrected.
        StoreError: the store refused, or stayed away.
    """
    end = time.monotonic() + address.patience_s
    while True:
        try:
            with explained(address, key, starting=starting):
                return request()
        except _Away:
            if time.monotonic() >= end:
                raise
            time.sleep(_PAUSE_S)


def code_of(err: Exception) -> str:
    """S3's own code of a refusal; ``""`` if there was no answer."""
    response = getattr(err, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))


def status_of(err: Exception) -> int:
    """HTTP status of a refusal; 0 if there was no answer."""
    response = getattr(err, "response", None) or {}
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


@contextmanager
def explained(address: S3Address, key: str = "", *, starting: bool = False) -> Iterator[None]:
    """Turn any error of the SDK into one of ours; ``key`` is the object that the block is about.

    Raises:
        MissingObject: there is no such object.
        ConfigError: ``starting``, and the configuration must be corrected.
        StoreError: the store refused or did not answer; the message says what to do.
    """
    from botocore.exceptions import BotoCoreError, ClientError
    from urllib3.exceptions import HTTPError  # of a body that breaks off, if the SDK has no word for it

    try:
        yield
    except ClientError as err:
        raise _refused(address, key, err, starting=starting) from err
    except (BotoCoreError, HTTPError, ValueError) as err:
        raise _unanswered(address, err, starting=starting) from err


def _refused(address: S3Address, key: str, err: Exception, *, starting: bool) -> Exception:
    code = code_of(err)
    if key and code in ("NoSuchKey", "404"):
        return MissingObject(f"no object {key} in bucket {address.bucket} at {address.where}")
    if code == "404":
        code = "NoSuchBucket"
    advice = _ADVICE.get(code, "{where}, bucket {bucket!r}: {reason}; correct this and retry")
    message = advice.format(bucket=address.bucket, where=address.where, reason=_reason(err))
    if starting and code in _NOT_CONFIGURED:
        return ConfigError(message)
    return _Away(message) if status_of(err) >= 500 else StoreError(message)


def _unanswered(address: S3Address, err: Exception, *, starting: bool) -> Exception:
    name = type(err).__name__
    if isinstance(err, ValueError):
        return ConfigError(f"transport.endpoint: {address.endpoint!r} cannot be used: {err}")
    if name in ("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "NoRegionError"):
        message = (
            f"{err}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and transport.region), or a profile"
        )
        return ConfigError(message) if starting else StoreError(message)
    return _Away(
        f"{address.where} does not answer ({_reason(err)}); is it running, and is transport.endpoint right?"
        " Nothing was lost, retry"
    )


def _reason(err: Exception) -> str:
    return (str(err).splitlines() or [type(err).__name__])[0][:300]
