"""The calling side."""

import ssl
from functools import cache
from typing import TypeVar

import httpx

from dcr.errors import ConfigError, PayloadError, Unreachable
from dcr.model import from_json, to_json
from dcr.transport.rpc.wire import MAX_BODY_BYTES, error_of

T = TypeVar("T")


def _reason(err: httpx.TransportError, timeout_s: float) -> str:
    if isinstance(err, httpx.TimeoutException):
        return f"{type(err).__name__} after {timeout_s} s"
    return f"{type(err).__name__}: {err}"


@cache
def _tls() -> ssl.SSLContext:
    """One for all clients: reading the system's certificates takes longer than most calls."""
    return ssl.create_default_context()


class Client:
    """Calls the methods of one server; safe to share between threads. A bad url is a ConfigError."""

    def __init__(self, url: str, timeout_s: float = 60.0) -> None:
        self.url = url
        self._timeout_s = timeout_s
        # the environment's proxies are for the outside world, not for the processes of a run
        limits = httpx.Limits(max_connections=None)
        try:
            self._http = httpx.Client(
                base_url=url, trust_env=False, limits=limits, follow_redirects=False, verify=_tls()
            )
        except httpx.InvalidURL as err:
            raise ConfigError(f"{url!r} is not the url of a process: {err}") from err

    def call(
        self, method: str, result_type: type[T], /, *, deadline_s: float | None = None, **params: object
    ) -> T:
        """Call ``method`` with ``params`` and return its answer as ``result_type`` (``type(None)`` for none).

        ``deadline_s`` bounds the wait for the answer; by default it is the client's ``timeout_s``.

        Raises:
            Unreachable: refused, reset, or no answer in time; the call may or may not have happened.
            PayloadError: too large to send, or the answer is not what it should be.
            RefitError: whatever the handler raised, by class.
        """
        body = to_json(params)
        if len(body) > MAX_BODY_BYTES:
            raise PayloadError(
                f"{method}: parameters of {len(body)} bytes; at most {MAX_BODY_BYTES} are sent"
            )
        timeout_s = self._timeout_s if deadline_s is None else deadline_s
        try:
            answer = self._http.post(f"/{method}", content=body, timeout=timeout_s)
        except httpx.TransportError as err:
            raise Unreachable(f"{self.url} did not answer {method}: {_reason(err, timeout_s)}") from err
        except httpx.DecodingError as err:
            raise PayloadError(f"{self.url} answered {method} with a body of unknown coding: {err}") from err
        if answer.status_code != 200:
            raise error_of(answer.content, f"{self.url} answered {method} with status {answer.status_code}")
        return from_json(result_type, answer.content)

    def close(self) -> None:
        """Close idle connections."""
        self._http.close()
