"""A vLLM server that somebody else started, through its own control routes (DESIGN R19).

It must have been started with ``VLLM_SERVER_DEV_MODE=1``, which opens these routes, and with
``--worker-extension-cls dcr_adapters.vllm.worker.DcrWorkerExtension``; to serve under a lease also with
``--middleware dcr_adapters.vllm.serving_lease.ServingLease``.
"""

from collections.abc import Callable
from typing import Any

import httpx

from dcr.errors import ConfigError, Unreachable
from dcr_adapters.vllm.serving_lease import ROUTE

_UNKNOWN = (httpx.codes.NOT_FOUND, httpx.codes.METHOD_NOT_ALLOWED, httpx.codes.NOT_IMPLEMENTED)
_DEV_MODE = "VLLM_SERVER_DEV_MODE=1 and --worker-extension-cls dcr_adapters.vllm.worker.DcrWorkerExtension"
_MIDDLEWARE = "--middleware dcr_adapters.vllm.serving_lease.ServingLease"


class HttpControl:
    """Implements ``EngineControl`` for the server at ``url``."""

    def __init__(
        self, url: str, *, deadline_s: float = 600.0, external_cache: bool = False, token: str = ""
    ) -> None:
        """``external_cache``: the engine keeps KV in a connector too. ``token``: the server's API key."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._client = httpx.Client(base_url=url, timeout=deadline_s, headers=headers, trust_env=False)
        self._external = external_cache

    def close(self) -> None:
        """Drop the connections; idempotent."""
        self._client.close()

    def call_workers(self, calls: str) -> list[dict[str, Any]]:
        """See ``EngineControl``."""
        answer = self._post("/collective_rpc", body={"method": "dcr_call", "args": [calls]})
        results: list[dict[str, Any]] = answer.json()["results"]
        return results

    def pause(self) -> None:
        """See ``EngineControl``."""
        self._post("/pause", query={"mode": "keep", "clear_cache": "false"})

    def resume(self) -> None:
        """See ``EngineControl``."""
        self._post("/resume")

    def reset_caches(self) -> None:
        """See ``EngineControl``."""
        external = "true" if self._external else "false"
        answer = self._post(
            "/reset_prefix_cache", query={"reset_running_requests": "true", "reset_external": external}
        )
        if answer.content and answer.json().get("success") is False:
            raise Unreachable("the server did not reset its prefix cache; no request may see old KV")
        self._post("/reset_encoder_cache")

    def set_version(self, version: str) -> None:
        """See ``EngineControl``."""
        self._post("/update_weight_version", body={"new_version": version})

    def lend(self, left_s: Callable[[], float]) -> None:
        """See ``Lends``. The server's clock is asked first, so nothing is added while messages travel."""
        answer = self._sent("GET", ROUTE, needs=_MIDDLEWARE)
        try:
            clock = float(answer.json()["clock"])
        except (ValueError, TypeError, KeyError):
            raise Unreachable(f"GET {ROUTE}: no clock in {answer.text[:500]!r}") from None
        self._sent("POST", ROUTE, body={"until": clock + max(left_s(), 0.0)}, needs=_MIDDLEWARE)

    def _post(
        self, path: str, *, query: dict[str, str] | None = None, body: dict[str, Any] | None = None
    ) -> httpx.Response:
        return self._sent("POST", path, query=query, body=body)

    def _sent(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, str] | None = None,
        body: dict[str, Any] | None = None,
        needs: str = _DEV_MODE,
    ) -> httpx.Response:
        try:
            answer = self._client.request(method, path, params=query, json=body)
        except httpx.HTTPError as err:
            raise Unreachable(
                f"{self._client.base_url}: {method} {path}: {type(err).__name__}: {err}"
            ) from err
        if answer.status_code in _UNKNOWN:
            raise ConfigError(f"{self._client.base_url} has no {path}: start the server with {needs}")
        if answer.is_error:
            raise Unreachable(f"{method} {path}: {answer.status_code}: {answer.text[:500]}")
        return answer
