"""What the plug-in adds to a server, among SGLang's own parts but without an engine (DESIGN R19)."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import httpx
import pytest

from dcr.errors import ConfigError, Unreachable
from dcr.receiver.workers.serving_lease import Message, ServingLease
from dcr_adapters.sglang.messages import LOADER, SESSION
from dcr_adapters.sglang.routes import CONTROL, add_routes, serve_under_lease
from dcr_adapters.sglang.steering import Steering

if TYPE_CHECKING:
    from starlette.applications import Starlette

KEYS = {"neither": {}, "user": {"Authorization": "Bearer user"}, "admin": {"Authorization": "Bearer admin"}}


def guarded(steering: object) -> "Starlette":
    """An application with the routes, the lease, and SGLang's own checks of keys around them."""
    from sglang.srt.utils.auth import add_api_key_middleware
    from starlette.applications import Starlette
    from starlette.responses import Response
    from starlette.routing import Route

    app = Starlette(routes=[Route("/generate", lambda _: Response(), methods=["POST"])])
    add_routes(app, cast("Steering", steering))
    serve_under_lease(app)
    add_api_key_middleware(app, api_key="user", admin_api_key="admin")
    return app


def statuses(app: "Starlette", path: str, body: Any) -> dict[str, int]:
    """Of one request with each key."""

    async def ask() -> dict[str, int]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
            answers = {k: await client.post(path, json=body, headers=v) for k, v in KEYS.items()}
        return {key: answer.status_code for key, answer in answers.items()}

    return asyncio.run(ask())


def test_sglang_s_keys_guard_the_routes_and_the_lease() -> None:
    async def pause() -> None:
        pass

    app = guarded(SimpleNamespace(pause=pause))
    assert statuses(app, "/dcr/engine/pause", {}) == {"neither": 401, "user": 401, "admin": 200}
    assert statuses(app, "/generate", {}) == {"neither": 401, "user": 503, "admin": 401}
    assert statuses(app, "/dcr/lease", {}) == {"neither": 401, "user": 401, "admin": 400}


def test_routes_that_need_no_lease_are_sglang_s() -> None:
    from sglang.srt.entrypoints.http_server import app

    known = {getattr(route, "path", "") for route in app.routes}
    assert {path for path in CONTROL if not path.startswith("/dcr/")} - known == {"/metrics"}


def test_a_client_that_has_left_is_seen_through_the_lease() -> None:
    """SGLang aborts what nobody waits for any more: it polls each request for that, by Starlette's method."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    said: asyncio.Queue[Message] = asyncio.Queue()
    left: list[bool] = []

    async def generate(request: Request) -> Response:
        await request.body()
        for _ in range(2):
            left.append(await request.is_disconnected())
            said.put_nowait({"type": "http.disconnect"})
            await asyncio.sleep(0.01)
        return Response()

    async def send(_: Message) -> None:
        pass

    lease = ServingLease(Starlette(routes=[Route("/generate", generate, methods=["POST"])]), ())
    lease._until = float("inf")
    said.put_nowait({"type": "http.request", "body": b"{}"})
    scope = {"type": "http", "method": "POST", "path": "/generate", "query_string": b"", "headers": []}
    asyncio.run(lease(scope, said.get, send))
    assert left == [False, True]


class Manager:
    """SGLang's tokenizer manager, as far as a call needs it; ``events`` in order."""

    def __init__(self, success: bool = True) -> None:
        self.events: list[str] = []
        self.model_config = SimpleNamespace(quantization=None)
        self._success = success

    def auto_create_handle_loop(self) -> None:
        pass

    async def begin_weight_update_communicator(self, asked: Any) -> list[SimpleNamespace]:
        assert asked.rid == SESSION
        return await self._step("begin", True)

    async def update_weights_from_tensor_communicator(self, _: object) -> list[SimpleNamespace]:
        return await self._step("update", self._success)

    async def end_weight_update_communicator(self, asked: Any) -> list[SimpleNamespace]:
        assert asked.rid == SESSION
        return await self._step("end", True)

    async def _step(self, name: str, success: bool) -> list[SimpleNamespace]:
        self.events.append(name)
        await asyncio.sleep(0.01)
        return [SimpleNamespace(success=success, message="injected")]


def steering_of(manager: Manager, folder: Path) -> Steering:
    settings = {"custom_weight_loader": [LOADER], "weight_cache_mode": "off", "dp_size": 1, "pp_size": 1}
    return Steering(manager, SimpleNamespace(**settings, tp_size=2), folder)


def test_calls_that_meet_in_the_server_come_one_after_another(tmp_path: Path) -> None:
    manager = Manager()
    steering = steering_of(manager, tmp_path)

    async def both() -> None:
        assert await asyncio.gather(*(steering.call_workers("{}") for _ in range(2))) == [[], []]

    asyncio.run(both())
    assert manager.events == ["begin", "update", "end"] * 2


def test_a_session_that_sglang_refuses_an_update_in_is_closed(tmp_path: Path) -> None:
    manager = Manager(success=False)
    with pytest.raises(Unreachable, match="injected"):
        asyncio.run(steering_of(manager, tmp_path).call_workers("{}"))
    assert manager.events == ["begin", "update", "end"]


def test_a_quantized_checkpoint_is_refused_before_a_call(tmp_path: Path) -> None:
    """No argument names it; only the configuration that SGLang has made of the checkpoint does."""
    manager = Manager()
    manager.model_config = SimpleNamespace(quantization="fp8")
    with pytest.raises(ConfigError, match="quantized"):
        steering_of(manager, tmp_path)
