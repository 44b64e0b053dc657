"""A vLLM server answers under a serving lease: middleware for ``vllm serve`` (DESIGN P11, R19).

``--middleware dcr_adapters.vllm.serving_lease.ServingLease``.
"""

from dcr.receiver.workers import serving_lease
from dcr.receiver.workers.serving_lease import App, Message, Receive, Send

_CONTROL = (
    "/abort_requests", "/collective_rpc", "/get_world_size", "/health", "/is_paused", "/is_sleeping",
    "/load", "/metrics", "/pause", "/ping", "/reset_encoder_cache", "/reset_mm_cache",
    "/reset_prefix_cache", "/resume", "/server_info", "/sleep", "/update_weight_version", "/v1/models",
    "/version", "/wake_up", "/weight_info",
)  # fmt: skip


class ServingLease:
    """ASGI middleware, as vLLM makes it; see ``dcr.receiver.workers.serving_lease``."""

    def __init__(self, app: App) -> None:
        self._lease = serving_lease.ServingLease(app, _CONTROL)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Entry point of ASGI."""
        await self._lease(scope, receive, send)
