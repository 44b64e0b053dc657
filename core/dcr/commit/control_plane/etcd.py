"""Control plane in etcd v3, through its JSON gateway (DESIGN R16, P4).

One key a run holds the canonical JSON of its ControlState. Values never repeat (revision and
writer), so a transaction that compares the whole value is the compare-and-set; no revision of
etcd's own has to be carried along. Reads are linearizable.
"""

import base64
import random
import ssl
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeAlias

import httpx

from dcr.commit.control_plane.base import parse_state, require_same_run
from dcr.errors import (
    ConfigError,
    Conflict,
    MissingObject,
    OutcomeUnknown,
    StoreError,
)
from dcr.model import ControlState, RunId, to_json

Answer: TypeAlias = dict[str, Any]
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
"""Failures before a byte of the request left: another node may be asked instead."""


class EtcdControlPlane:
    """``ControlPlane`` under ``<prefix>/control/<run>`` of a cluster with the given client URLs.

    A node that cannot be reached is passed over; a write whose answer is lost is OutcomeUnknown,
    because etcd may still carry it out. Every operation opens its own connection, so one object may
    be used from any thread or process.

    Raises:
        ConfigError: no endpoint, or one that is no http(s) URL.
    """

    def __init__(self, endpoints: Sequence[str], *, prefix: str = "/dcr", timeout_s: float = 5.0) -> None:
        if not endpoints:
            raise ConfigError("control plane: etcd needs at least one endpoint, as http://host:2379")
        for endpoint in endpoints:
            if not endpoint.startswith(("http://", "https://")):
                raise ConfigError(
                    f"control plane: etcd endpoint {endpoint!r} must start with http:// or https://"
                )
        self._endpoints = tuple(endpoint.rstrip("/") for endpoint in endpoints)
        self._prefix = prefix.rstrip("/")
        self._timeout_s = timeout_s
        self._first = random.randrange(len(endpoints))

    def create(self, state: ControlState) -> None:
        """Create the run's value durably; raises Conflict if it exists."""
        absent = {"target": "CREATE", "result": "EQUAL", "create_revision": "0"}
        if not self._swap(state.run, absent, state):
            raise Conflict(f"run {state.run} exists already in etcd at {self._where()}")

    def read(self, run: RunId) -> ControlState:
        """Return the value as a majority holds it; raises MissingObject without one."""
        found = self._read({"key": self._key(run)}).get("kvs", [])
        if not found:
            raise MissingObject(f"no run {run} in etcd at {self._where()}")
        return parse_state(run, base64.b64decode(found[0].get("value", "")), f"etcd at {self._where()}")

    def compare_and_set(self, expected: ControlState, state: ControlState) -> None:
        """Replace ``expected`` by ``state`` durably; raises Conflict if the value is another."""
        require_same_run(expected, state)
        unchanged = {"target": "VALUE", "result": "EQUAL", "value": _text(to_json(expected))}
        if not self._swap(expected.run, unchanged, state):
            raise Conflict(f"run {expected.run}: the value is no longer revision {expected.revision}")

    def _swap(self, run: RunId, condition: dict[str, str], state: ControlState) -> bool:
        """One transaction; whether its condition held. The gateway leaves ``succeeded`` out when false."""
        key = self._key(run)
        body = {
            "compare": [{"key": key, **condition}],
            "success": [{"requestPut": {"key": key, "value": _text(to_json(state))}}],
            "failure": [],
        }
        return bool(self._write(body).get("succeeded", False))

    def _write(self, body: Answer) -> Answer:
        """Send once; only a node that was never reached is passed over."""
        refused = ""
        for endpoint in self._rotation():
            try:
                return self._post(f"{endpoint}/v3/kv/txn", body)
            except _NEVER_SENT as err:
                refused = f"{endpoint}: {err}"
                self._pass_over(endpoint)
            except (httpx.HTTPError, _Refused, ValueError) as err:
                self._pass_over(endpoint)
                raise OutcomeUnknown(f"etcd at {endpoint}: {_words(err)}") from err
        raise StoreError(f"no etcd node answers ({refused}); start it, or correct the endpoints")

    def _read(self, body: Answer) -> Answer:
        failed = ""
        for endpoint in self._rotation():
            try:
                return self._post(f"{endpoint}/v3/kv/range", body)
            except (httpx.HTTPError, _Refused, ValueError) as err:
                failed = f"{endpoint}: {_words(err)}"
                self._pass_over(endpoint)
        raise StoreError(f"no etcd node answers a read ({failed}); is a majority of the cluster running?")

    def _post(self, url: str, body: Answer) -> Answer:
        with httpx.Client(timeout=self._timeout_s, trust_env=False, verify=_tls()) as client:
            return _answer(client.post(url, json=body))

    def _rotation(self) -> tuple[str, ...]:
        """Every endpoint once, the one that answered last in front."""
        first = self._first
        return (*self._endpoints[first:], *self._endpoints[:first])

    def _pass_over(self, endpoint: str) -> None:
        """Begin with the next node from now on; threads may race here, any result is fine."""
        self._first = (self._endpoints.index(endpoint) + 1) % len(self._endpoints)

    def _key(self, run: RunId) -> str:
        return _text(f"{self._prefix}/control/{run}".encode())

    def _where(self) -> str:
        return ",".join(self._endpoints)


class _Refused(Exception):  # noqa: N818 -- an answer, not a fault of this program
    """etcd answered with an error: no leader, a time-out inside the cluster, a bad request."""


def _answer(response: httpx.Response) -> Answer:
    answer: Answer = response.json()
    if response.status_code != httpx.codes.OK or "error" in answer:
        raise _Refused(str(answer.get("error", f"HTTP {response.status_code}"))[:200])
    return answer


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _words(err: Exception) -> str:
    return str(err) or type(err).__name__


@cache
def _tls() -> ssl.SSLContext:
    """Reading the system's certificates takes longer than a commit does."""
    return ssl.create_default_context()
