"""The control routes of an inference server that somebody else started, as a client (DESIGN R19).

What every engine's ``HttpControl`` shares: one client and one classing of what goes wrong. Nothing is sent
twice; a call that may have happened is for the protocol to repeat.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

from dcr.errors import ConfigError, Unreachable
from dcr.receiver.workers.control import ControlClosed
from dcr.receiver.workers.serving_lease import ROUTE

_UNKNOWN = (httpx.codes.NOT_FOUND, httpx.codes.METHOD_NOT_ALLOWED, httpx.codes.NOT_IMPLEMENTED)
_REFUSED = (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN)
_CONNECT_S = 10.0
_IDLE_S = 1.0
"""Before the servers end connections that nobody uses: a call that meets the end of one would be lost."""
_LEND_S = 30.0
"""Half of a usual lease, for a message about one: whoever lends next waits until it is answered."""
_SHOWN = 500
"""Characters of an answer in a message."""


@dataclass(frozen=True, slots=True)
class Needs:
    """How a server must have been started, for messages: to be steered, and to serve under a lease."""

    control: str
    lease: str


class EngineServer:
    """One server at ``url``. Thread-safe.

    ``token``: its API key. ``deadline_s`` of each call but ``lend``. ``transport``: httpx's own by default.
    """

    def __init__(
        self,
        url: str,
        needs: Needs,
        *,
        deadline_s: float = 600.0,
        token: str = "",
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Nothing is sent yet.

        Raises:
            ConfigError: ``url`` is none.
        """
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._needs = needs
        self._deadline_s = deadline_s
        self._start = ""
        self._lending = threading.Lock()
        self._client = httpx.Client(
            base_url=_parsed(url),
            headers=headers,
            limits=httpx.Limits(keepalive_expiry=_IDLE_S),
            transport=transport,
            trust_env=False,
        )

    def close(self) -> None:
        """Drop the connections; idempotent. What is asked later raises ``ControlClosed``."""
        self._client.close()

    def post(
        self, path: str, *, query: dict[str, str] | None = None, body: dict[str, Any] | None = None
    ) -> httpx.Response:
        """The answer of success.

        Raises:
            ConfigError: the server has no such route, or refuses the key; the message says what it needs.
            Unreachable: anything else but success; what was asked may or may not have happened.
        """
        return self._sent("POST", path, self._deadline_s, query=query, body=body)

    def field(self, path: str, name: str, *, query: dict[str, str] | None = None) -> Any:
        """``name`` in what the server answers to GET ``path``; None if it has none. Raises as ``post``."""
        return _field(self._sent("GET", path, self._deadline_s, query=query), name)

    def results(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """What the workers answer to ``path``, under ``results``. Raises as ``post``."""
        answer = self.post(path, body=body)
        found = _field(answer, "results")
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            raise Unreachable(f"POST {path}: no results in {answer.text[:_SHOWN]!r}")
        return found

    def lend(self, left_s: Callable[[], float]) -> None:
        """See ``Lends``. The server's clock is asked first, so nothing is added while messages travel.

        One at a time: what is left is looked at last by whoever is heard last. Unreachable, too, once the
        server was started anew: nothing of what it serves is proven.
        """
        with self._lending:
            self._lend(left_s)

    def _lend(self, left_s: Callable[[], float]) -> None:
        answer = self._sent("GET", ROUTE, _LEND_S)
        clock, start = _field(answer, "clock"), _field(answer, "start")
        if not isinstance(clock, int | float) or not isinstance(start, str):
            raise Unreachable(f"GET {ROUTE}: no clock in {answer.text[:_SHOWN]!r}")
        if self._start not in ("", start):
            raise Unreachable(
                f"{self._client.base_url} was started anew and is lent nothing: admit it with another control"
            )
        self._start = start
        lent_s = max(left_s(), 0.0)
        # what was lent in vain is over when that is known: it may be heard later, even after what comes next
        self._sent("POST", ROUTE, max(_LEND_S, lent_s), body={"until": clock + lent_s, "start": start})

    def _sent(
        self,
        method: str,
        path: str,
        deadline_s: float,
        *,
        query: dict[str, str] | None = None,
        body: dict[str, Any] | None = None,
    ) -> httpx.Response:
        where = f"{self._client.base_url}: {method} {path}"
        timeout = httpx.Timeout(deadline_s, connect=min(deadline_s, _CONNECT_S))
        try:
            answer = self._client.request(method, path, params=query, json=body, timeout=timeout)
        except httpx.TimeoutException as err:
            raise Unreachable(f"{where}: {type(err).__name__}, deadline {deadline_s} s") from err
        except httpx.HTTPError as err:
            raise Unreachable(f"{where}: {type(err).__name__}: {err}") from err
        except RuntimeError as err:  # httpx has no other name for it
            if not self._client.is_closed:
                raise
            raise ControlClosed(f"{where}: this control was closed") from err
        if answer.status_code in _UNKNOWN:
            needs = self._needs.lease if path == ROUTE else self._needs.control
            raise ConfigError(f"{self._client.base_url} has no {path}: start the server with {needs}")
        said = f"{where}: {answer.status_code}: {answer.text[:_SHOWN]}"
        if answer.status_code in _REFUSED:
            raise ConfigError(f"{said}: {self._refused()}")
        if not answer.is_success:
            raise Unreachable(said)
        return answer

    def _refused(self) -> str:
        if "Authorization" not in self._client.headers:
            return "no token was given; pass the server's (admin) API key as token="
        return "the server refuses the key; its routes of control need its own"


def _parsed(url: str) -> httpx.URL:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as err:
        raise ConfigError(f"{url!r} is not the url of a server: {err}") from err
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigError(f"{url!r} is not the url of a server: expected http://host:port")
    return parsed


def _field(answer: httpx.Response, name: str) -> Any:
    """None if the answer is no JSON object, or has no such field."""
    try:
        content = answer.json()
    except ValueError:
        return None
    return content.get(name) if isinstance(content, dict) else None
