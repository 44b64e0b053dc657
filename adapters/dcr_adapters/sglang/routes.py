"""What the plug-in adds to an SGLang server that takes deltas: the receiver's routes, and its lease.

SGLang's own route for weights wants pickled tensors. So one route takes the steps of ``EngineControl`` as
JSON and answers in JSON, and the control tensor is made here, in the server. SGLang's keys guard it as
they guard its own routes of control.
"""

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from dcr.errors import ConfigError, PayloadError, Unreachable
from dcr.model import from_json, to_json
from dcr.receiver.workers.serving_lease import ROUTE, ServingLease
from dcr_adapters.sglang.steering import Steering

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

Step = Literal["call_workers", "pause", "resume", "reset_caches", "set_version"]
LEASE = "DCR_SGLANG_SERVING_LEASE"
"""Variable of the server: 1 lets it answer under serving leases only."""


def path_of(step: Step) -> str:
    """Where the server takes ``step``."""
    return f"/dcr/engine/{step}"


CONTROL = frozenset({
    *map(path_of, get_args(Step)),
    "/abort_request", "/begin_weight_update", "/continue_generation", "/end_weight_update", "/flush_cache",
    "/freeze_gc", "/get_model_info", "/get_server_info", "/health", "/health_generate",
    "/hicache/storage-backend", "/hicache/storage-backend/clear", "/metrics", "/model_info",
    "/pause_generation", "/ping", "/ready", "/server_info", "/set_internal_state", "/update_weight_version",
    "/v1/loads", "/v1/models", "/weights_checker",
})  # fmt: skip
"""Routes that say nothing that the weights have computed."""


def add_routes(app: Any, steering: Steering) -> None:
    """Have SGLang's ``app`` take the steps of ``steering``; before it serves."""
    from starlette.responses import Response

    async def take(request: "Request") -> "Response":
        status, body = await answer(steering, request.path_params["step"], await request.body())
        return Response(body, status, media_type="application/json")

    _route(app, "/dcr/engine/{step}", ["POST"], take)


def serve_under_lease(app: Any) -> None:
    """Have ``app`` answer under serving leases only, behind its own checks of keys; before it serves."""
    from starlette.middleware import Middleware

    async def taken(_: "Request") -> "Response":
        raise AssertionError("the middleware answers this; SGLang looks here for who may ask")

    app.user_middleware.append(Middleware(ServingLease, CONTROL))
    _route(app, ROUTE, ["GET", "POST"], taken)


async def answer(steering: Steering, step: str, body: bytes) -> tuple[int, bytes]:
    """Status and JSON text: the results of ``call_workers``, nothing for other steps, or what went wrong."""
    try:
        done = await _done(steering, step, from_json(dict[str, str], body))
    except PayloadError as err:
        return 400, to_json({"message": str(err)})
    except Unreachable as err:
        return 503, to_json({"message": str(err)})
    return 200, to_json(done)


async def _done(steering: Steering, step: str, given: dict[str, str]) -> dict[str, Any]:
    match step, given:
        case "call_workers", {"calls": calls}:
            return {"results": await steering.call_workers(calls)}
        case "pause", {}:
            await steering.pause()
        case "resume", {}:
            await steering.resume()
        case "reset_caches", {}:
            await steering.reset_caches()
        case "set_version", {"version": version}:
            await steering.set_version(version)
        case _:
            raise PayloadError(f"no step {step} with {sorted(given)}")
    return {}


def extend_server() -> None:
    """In the server's process, once SGLang's app is complete and right before it listens.

    Raises:
        ConfigError: started like this, the server could not take deltas, or would not start.
    """
    from sglang.srt.entrypoints import http_server
    from sglang.srt.runtime_context import get_serving

    serving, manager = get_serving(), http_server.get_global_state().tokenizer_manager
    leased = os.environ.get(LEASE) == "1"
    require_servable(serving, leased=leased)
    add_routes(http_server.app, Steering(manager, manager.server_args, Path(tempfile.gettempdir())))
    if leased:
        serve_under_lease(http_server.app)


def require_servable(serving: Any, *, leased: bool) -> None:
    """Refuse what SGLang would serve without the receiver's routes. ``serving``: its settings of the front.

    Raises:
        ConfigError: names the argument.
    """
    if serving.tokenizer_worker_num != 1:
        raise ConfigError(
            "one process takes the receiver's calls: start SGLang with --tokenizer-worker-num 1"
        )
    if leased and serving.grpc_port is not None:
        raise ConfigError(
            f"{LEASE}=1: SGLang's gRPC server looks at no lease: start SGLang without --grpc-port"
        )
    if leased and not serving.skip_server_warmup:
        raise ConfigError(
            f"{LEASE}=1: nothing is answered before there is a lease, and SGLang's warm-up, which asks too, "
            "would end the server: start SGLang with --skip-server-warmup"
        )


def _route(app: Any, path: str, methods: list[str], take: Any) -> None:
    from sglang.srt.utils.auth import AuthLevel, auth_level
    from starlette.routing import Route

    app.router.routes.append(Route(path, auth_level(AuthLevel.ADMIN_OPTIONAL)(take), methods=methods))
