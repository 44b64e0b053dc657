"""Leadership by conditional writes to one object of a bucket, beside the control plane there.

The active one counts a beat upwards. A candidate that saw the same beat for a whole lease, by its own
monotonic clock, takes its place: no clocks are compared, and nothing in the bucket expires.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from dcr.errors import MissingObject, PayloadError, StoreError
from dcr.model import RunId, from_json, new_nonce, to_json
from dcr.transport.keys import check_segment
from dcr.transport.s3_client import S3Address, ask, connect, status_of

_REFUSED = (404, 409, 412)


@dataclass(frozen=True, slots=True)
class _Beat:
    """What the object says. ``holder`` is empty once somebody resigned; no two beats are equal."""

    holder: str
    beat: int
    nonce: str


@dataclass(frozen=True, slots=True)
class _Seen:
    """A beat of another one, and since when this process has seen it."""

    beat: _Beat
    since: float


class S3Leadership:
    """``Leadership`` of ``run`` for the candidate ``name``, in the bucket of an ``S3ControlPlane``.

    Raises:
        ConfigError: the address cannot be used.
    """

    def __init__(
        self,
        address: S3Address,
        run: RunId,
        name: str,
        *,
        lease_s: float,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        # who cannot look stands down by its lease: it must not wait for a server as long as a run does
        self._address = replace(address, patience_s=min(address.patience_s, lease_s / 3))
        self._where = {
            "Bucket": address.bucket,
            "Key": address.name(f"{check_segment(run, 'run id')}/leader"),
        }
        self._name = name
        self._lease_s = lease_s
        self._clock = clock
        self._client = connect(address, tries=2, read_s=max(lease_s / 3, 1.0))
        self._seen: _Seen | None = None

    def campaign(self) -> bool:
        """See ``Leadership.campaign``."""
        now, etag = self._read()
        if now is not None and now.holder not in ("", self._name) and not self._is_stale(now):
            return False
        beat = _Beat(self._name, 1 if now is None else now.beat + 1, new_nonce())
        if not self._write(beat, etag):
            return False
        self._seen = None
        return True

    def resign(self) -> None:
        """See ``Leadership.resign``."""
        now, etag = self._read()
        if now is not None and now.holder == self._name:
            self._write(_Beat("", now.beat + 1, new_nonce()), etag)

    def holder(self) -> str:
        """See ``Leadership.holder``."""
        now, _ = self._read()
        return "" if now is None else now.holder

    def _is_stale(self, now: _Beat) -> bool:
        seen = self._seen
        if seen is None or seen.beat != now:
            self._seen = _Seen(now, self._clock())
            return False
        return self._clock() - seen.since >= self._lease_s

    def _read(self) -> tuple[_Beat | None, str]:
        """What the object says, and its ETag; nothing if there is none."""

        def request() -> tuple[bytes, str]:
            answer = self._client.get_object(**self._where)
            return answer["Body"].read(), str(answer["ETag"])

        try:
            data, etag = ask(self._address, request, self._where["Key"])
        except MissingObject:
            return None, ""
        try:
            return from_json(_Beat, data), etag
        except PayloadError as err:
            raise StoreError(
                f"{self._where['Key']} at {self._address.where} is damaged: {err}; delete it"
            ) from err

    def _write(self, beat: _Beat, etag: str) -> bool:
        """Whether it was written in the place of what has ``etag``, or of nothing.

        A repeated try may find its own first landing: that is no success, and the next campaign tells.
        """
        from botocore.exceptions import ClientError

        condition: dict[str, Any] = {"IfMatch": etag} if etag else {"IfNoneMatch": "*"}

        def request() -> bool:
            try:
                self._client.put_object(**self._where, Body=to_json(beat), **condition)
            except ClientError as err:
                if status_of(err) in _REFUSED:
                    return False
                raise
            return True

        return ask(self._address, request)
