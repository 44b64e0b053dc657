"""An SGLang server that somebody else started (DESIGN R19).

DCR's plug-in gave it routes for the receiver (``routes``), as it was started with ``--custom-weight-loader
dcr_adapters.sglang.worker.dcr_call``; to serve under a lease also with ``DCR_SGLANG_SERVING_LEASE=1``.
"""

from collections.abc import Callable
from typing import Any

import httpx

from dcr.receiver.workers.server import EngineServer, Needs
from dcr_adapters.sglang.messages import LOADER
from dcr_adapters.sglang.routes import LEASE, path_of

_NEEDS = Needs(
    control=f"--custom-weight-loader {LOADER}, DCR in its environment, SGLANG_PLUGINS unset or naming dcr",
    lease=f"{LEASE}=1",
)


class HttpControl:
    """Implements ``EngineControl`` and ``Lends`` for the server at ``url``.

    ``token``: the server's admin API key, or its API key where it has no other.
    """

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

    def close(self) -> None:
        """Drop the connections; idempotent."""
        self._server.close()

    def call_workers(self, calls: str) -> list[dict[str, Any]]:
        """See ``EngineControl``."""
        return self._server.results(path_of("call_workers"), {"calls": calls})

    def pause(self) -> None:
        """See ``EngineControl``; requests in flight go back to the queue, without their keys and values."""
        self._server.post(path_of("pause"), body={})

    def resume(self) -> None:
        """See ``EngineControl``."""
        self._server.post(path_of("resume"), body={})

    def reset_caches(self) -> None:
        """See ``EngineControl``."""
        self._server.post(path_of("reset_caches"), body={})

    def set_version(self, version: str) -> None:
        """See ``EngineControl``."""
        self._server.post(path_of("set_version"), body={"version": version})

    def lend(self, left_s: Callable[[], float]) -> None:
        """See ``Lends``."""
        self._server.lend(left_s)
