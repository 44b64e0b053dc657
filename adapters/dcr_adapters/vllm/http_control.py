"""A vLLM server that somebody else started, through its own control routes (DESIGN R19).

It must have been started with ``VLLM_SERVER_DEV_MODE=1``, which opens these routes, and with
``--worker-extension-cls dcr_adapters.vllm.worker.DcrWorkerExtension``; to serve under a lease also with
``--middleware dcr_adapters.vllm.serving_lease.ServingLease``.
"""

from collections.abc import Callable
from typing import Any

import httpx

from dcr.errors import Unreachable
from dcr.receiver.workers.server import EngineServer, Needs
from dcr_adapters.vllm import settings

_NEEDS = Needs(
    control="VLLM_SERVER_DEV_MODE=1 and --worker-extension-cls dcr_adapters.vllm.worker.DcrWorkerExtension",
    lease="--middleware dcr_adapters.vllm.serving_lease.ServingLease",
)


class HttpControl:
    """Implements ``EngineControl`` and ``Lends`` for the server at ``url``."""

    def __init__(
        self,
        url: str,
        *,
        deadline_s: float = 600.0,
        token: str = "",
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """See ``EngineServer``."""
        self._server = EngineServer(url, _NEEDS, deadline_s=deadline_s, token=token, transport=transport)
        self._world: int | None = None
        """Workers of all replicas; None until as many have answered."""

    def close(self) -> None:
        """Drop the connections; idempotent."""
        self._server.close()

    def call_workers(self, calls: str) -> list[dict[str, Any]]:
        """See ``EngineControl``.

        Raises:
            ConfigError: only one of several data parallel replicas answers.
        """
        world = self._world if self._world is not None else self._asked_world()
        answers = self._server.results("/collective_rpc", {"method": "dcr_call", "args": [calls]})
        settings.require_whole(len(answers), world)
        self._world = world
        return answers

    def pause(self) -> None:
        """See ``EngineControl``."""
        self._server.post("/pause", query={"mode": "keep", "clear_cache": "false"})

    def resume(self) -> None:
        """See ``EngineControl``."""
        self._server.post("/resume")

    def reset_caches(self) -> None:
        """See ``EngineControl``."""
        answer = self._server.post(
            "/reset_prefix_cache", query={"reset_running_requests": "true", "reset_external": "true"}
        )
        if answer.content and answer.json().get("success") is False:
            raise Unreachable("the server did not reset its prefix cache; no request may see old KV")
        self._server.post("/reset_encoder_cache")

    def set_version(self, version: str) -> None:
        """See ``EngineControl``."""
        self._server.post("/update_weight_version", body={"new_version": version})

    def lend(self, left_s: Callable[[], float]) -> None:
        """See ``Lends``."""
        self._server.lend(left_s)

    def _asked_world(self) -> int:
        route = "/get_world_size"
        world = self._server.field(route, "world_size", query={"include_dp": "true"})
        if not isinstance(world, int):
            raise Unreachable(f"GET {route}: no world_size, but {world!r}")
        return world
