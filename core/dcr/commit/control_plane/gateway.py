"""Requests to an etcd v3 cluster through its JSON gateway, whichever of its nodes answers."""

import base64
import random
import ssl
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeAlias

import httpx

from dcr.errors import ConfigError, OutcomeUnknown, StoreUnreachable

Answer: TypeAlias = dict[str, Any]
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
"""Failures before a byte of the request left: another node may be asked instead."""


class EtcdGateway:
    """Client URLs of one cluster. A node that cannot be reached is passed over.

    Every request opens its own connection, so one object may be used from any thread or process.

    Raises:
        ConfigError: no endpoint, or one that is no http(s) URL.
    """

    def __init__(self, endpoints: Sequence[str], *, timeout_s: float = 5.0) -> None:
        if not endpoints:
            raise ConfigError("control plane: etcd needs at least one endpoint, as http://host:2379")
        for endpoint in endpoints:
            if not endpoint.startswith(("http://", "https://")):
                raise ConfigError(
                    f"control plane: etcd endpoint {endpoint!r} must start with http:// or https://"
                )
        self._endpoints = tuple(endpoint.rstrip("/") for endpoint in endpoints)
        self._timeout_s = timeout_s
        self._first = random.randrange(len(endpoints))

    @property
    def where(self) -> str:
        """The cluster, for messages."""
        return ",".join(self._endpoints)

    def write(self, path: str, body: Answer) -> Answer:
        """Send once; only a node that was never reached is passed over.

        Raises:
            OutcomeUnknown: the answer was lost; etcd may have carried the request out, or may yet do so.
            StoreUnreachable: no node can be reached, so nothing was written.
        """
        refused = ""
        for endpoint in self._rotation():
            try:
                return self._post(f"{endpoint}{path}", body)
            except _NEVER_SENT as err:
                refused = f"{endpoint}: {_words(err)}"
                self._pass_over(endpoint)
            except (httpx.HTTPError, _Refused, ValueError) as err:
                self._pass_over(endpoint)
                raise OutcomeUnknown(f"etcd at {endpoint}: {_words(err)}") from err
        raise StoreUnreachable(f"no etcd node answers ({refused}); start it, or correct the endpoints")

    def read(self, path: str, body: Answer) -> Answer:
        """Ask one node after the other; a request that may be repeated.

        Raises:
            StoreUnreachable: none of them has an answer.
        """
        failed = ""
        for endpoint in self._rotation():
            try:
                return self._post(f"{endpoint}{path}", body)
            except (httpx.HTTPError, _Refused, ValueError) as err:
                failed = f"{endpoint}: {_words(err)}"
                self._pass_over(endpoint)
        raise StoreUnreachable(
            f"no etcd node answers a read ({failed}); is a majority of the cluster running?"
        )

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


class _Refused(Exception):  # noqa: N818 -- an answer, not a fault of this program
    """etcd answered with an error: no leader, a time-out inside the cluster, a bad request."""


def text(data: bytes) -> str:
    """Keys and values travel in base64."""
    return base64.b64encode(data).decode()


def _answer(response: httpx.Response) -> Answer:
    answer: Answer = response.json()
    if response.status_code != httpx.codes.OK or "error" in answer:
        raise _Refused(str(answer.get("error", f"HTTP {response.status_code}"))[:200])
    return answer


def _words(err: Exception) -> str:
    return str(err) or type(err).__name__


@cache
def _tls() -> ssl.SSLContext:
    """Reading the system's certificates takes longer than a commit does."""
    return ssl.create_default_context()
