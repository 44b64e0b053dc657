"""Control plane by conditional writes to one object of a bucket (DESIGN R16, P3, P4).

``<prefix>/<run>/control`` holds the canonical JSON of the run's ControlState. A write names the ETag
that was read with the value it replaces. ETags are often digests of the contents, so an equal ETag is
no proof that nothing was written in between; here it is, because no two values are equal: each
carries a new revision and its writer's nonce.

Requests are sent once. After one whose answer is lost or is a server's failure, the same request is
sent again: it lands, or is refused because the first one had, or because another writer came first.
Which of these it was is told by reading back who wrote; where that cannot be told, it is OutcomeUnknown.
"""

import enum
import time
from typing import Any

from dcr.commit.control_plane.base import parse_state, require_same_run
from dcr.errors import ConfigError, Conflict, MissingObject, OutcomeUnknown, StoreError, StoreUnreachable
from dcr.model import ControlState, RunId, to_json
from dcr.transport.keys import check_segment
from dcr.transport.s3_client import S3Address, code_of, connect, explained, status_of
from dcr.transport.s3_probe import Ignored, probe_replace

_PAUSES_S = (0.1, 0.3, 1.0, 2.0, 4.0, 4.0, 4.0)
"""Before each further try of a write that was not carried out, or whose fate is not known."""


class S3ControlPlane:
    """``ControlPlane`` over a bucket that exists. Thread-safe; pickled by its address alone.

    Raises:
        ConfigError: the address cannot be used.
    """

    def __init__(self, address: S3Address, *, client: Any = None, timeout_s: float = 5.0) -> None:
        self._address = address
        self._timeout_s = timeout_s
        # A try that the SDK repeats by itself would take its own first landing for another writer's.
        self._writer = connect(address, tries=1, read_s=timeout_s) if client is None else client
        self._reader = connect(address, read_s=timeout_s) if client is None else client
        self._sleep = time.sleep

    def check(self) -> None:
        """See whether the server keeps what conditional writes promise; call it once at the start.

        Raises:
            ConfigError: it ignores If-None-Match or If-Match, or the bucket refuses us.
            StoreError: it does not answer.
        """
        try:
            probe_replace(self._reader, self._address)
        except Ignored as err:
            raise ConfigError(
                f"{self._address.where} cannot be a control plane: it ignores {err};"
                " use another server, or commit=sqlite"
            ) from None

    def create(self, state: ControlState) -> None:
        """Create the run's value durably; raises Conflict if it exists."""
        if not self._write(state, {"IfNoneMatch": "*"}):
            raise Conflict(f"run {state.run} exists already in {self._where()}")

    def read(self, run: RunId) -> ControlState:
        """Return the value; raises MissingObject without one."""
        return self._read(run)[0]

    def compare_and_set(self, expected: ControlState, state: ControlState) -> None:
        """Replace ``expected`` by ``state`` durably; raises Conflict if the value is another."""
        require_same_run(expected, state)
        stale = Conflict(f"run {expected.run}: the value is no longer revision {expected.revision}")
        try:
            found, etag = self._read(expected.run)
        except MissingObject:
            raise stale from None
        if found != expected or not self._write(state, {"IfMatch": etag}):
            raise stale

    def _read(self, run: RunId) -> tuple[ControlState, str]:
        """The value and the ETag of the object that held it."""
        with explained(self._address, self._key(run)):
            answer = self._reader.get_object(**self._name(run))
            body = answer["Body"].read()
        return parse_state(run, body, self._where()), str(answer["ETag"])

    def _write(self, state: ControlState, condition: dict[str, str]) -> bool:
        """Whether the condition held and the value was written.

        Raises:
            OutcomeUnknown: it may have been, or may yet be.
            StoreError: it was not, and will not be.
        """
        doubt = reason = ""
        for pause_s in (*_PAUSES_S, None):
            try:
                fate, reason = self._put(state, condition)
            except StoreError as err:
                if doubt:
                    raise OutcomeUnknown(f"{self._where()}: {doubt}, then {err}") from err
                raise
            if fate is _Fate.WRITTEN:
                return True
            if fate is _Fate.REFUSED:
                return bool(doubt) and self._was_ours(state, doubt)
            doubt = reason if fate is _Fate.LOST else doubt
            if pause_s is not None:
                self._sleep(pause_s)
        if doubt:
            raise OutcomeUnknown(f"{self._where()}: {doubt}")
        raise StoreUnreachable(f"{self._where()}: nothing was written: {reason}; is it running? Retry")

    def _was_ours(self, state: ControlState, doubt: str) -> bool:
        """Whether an earlier try made the condition false; a value is one revision after its predecessor."""
        try:
            now = self.read(state.run)
        except StoreError as err:
            raise OutcomeUnknown(f"{self._where()}: {doubt}, then {err}") from err
        if now.revision > state.revision:
            raise OutcomeUnknown(f"{self._where()}: {doubt}; other writers have gone on since")
        return now.writer == state.writer

    def _put(self, state: ControlState, condition: dict[str, str]) -> "tuple[_Fate, str]":
        """One request and what became of it.

        Raises:
            StoreError: it was refused for another reason than its condition.
        """
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            ConnectTimeoutError,
            EndpointConnectionError,
        )

        with explained(self._address):
            try:
                self._writer.put_object(**self._name(state.run), Body=to_json(state), **condition)
            except ClientError as err:
                fate = _fate(err)
                if fate is None:
                    raise
                return fate, str(err)
            except (EndpointConnectionError, ConnectTimeoutError) as err:
                return _Fate.NOT_DONE, str(err)
            except BotoCoreError as err:
                return _Fate.LOST, str(err)
        return _Fate.WRITTEN, ""

    def _key(self, run: RunId) -> str:
        return f"{check_segment(run, 'run id')}/control"

    def _name(self, run: RunId) -> dict[str, Any]:
        return {"Bucket": self._address.bucket, "Key": self._address.name(self._key(run))}

    def _where(self) -> str:
        return f"bucket {self._address.bucket} at {self._address.where}"


class _Fate(enum.Enum):
    """What became of one conditional write."""

    WRITTEN = enum.auto()
    REFUSED = enum.auto()
    """Its condition does not hold."""
    NOT_DONE = enum.auto()
    """It never reached the server, or was turned away because another one was under way."""
    LOST = enum.auto()
    """Nobody knows."""


def _fate(err: Exception) -> _Fate | None:
    status = status_of(err)
    if status >= 500 or status == 0:
        return _Fate.LOST
    if "Bucket" in code_of(err):
        return None
    return {404: _Fate.REFUSED, 412: _Fate.REFUSED, 409: _Fate.NOT_DONE}.get(status)
