"""An SGLang server's routes for the receiver and the control that takes them, without SGLang (DESIGN R19)."""

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import httpx
import pytest

from dcr.errors import ConfigError, PayloadError, Unreachable
from dcr_adapters.sglang.http_control import HttpControl
from dcr_adapters.sglang.routes import answer, require_servable

if TYPE_CHECKING:
    from dcr_adapters.sglang.steering import Steering


class Steps:
    """As ``Steering``; remembers what was asked, and raises ``failure``."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.asked: list[str] = []
        self._failure = failure

    async def call_workers(self, calls: str) -> list[dict[str, Any]]:
        await self._step(f"call {calls}")
        return [{"rank": 0}, {"rank": 1}]

    async def pause(self) -> None:
        await self._step("pause")

    async def resume(self) -> None:
        await self._step("resume")

    async def reset_caches(self) -> None:
        await self._step("reset")

    async def set_version(self, version: str) -> None:
        await self._step(f"version {version}")

    async def _step(self, name: str) -> None:
        self.asked.append(name)
        if self._failure is not None:
            raise self._failure


def control_of(steps: Steps) -> HttpControl:
    """Through ``answer``, as the route does."""

    def transport(request: httpx.Request) -> httpx.Response:
        folder, step = request.url.path.rsplit("/", 1)
        assert folder == "/dcr/engine"
        status, body = asyncio.run(answer(cast("Steering", steps), step, request.content))
        return httpx.Response(status, content=body)

    return HttpControl("http://server", transport=httpx.MockTransport(transport))


def test_every_step_reaches_the_engine() -> None:
    steps = Steps()
    control = control_of(steps)
    control.pause()
    assert control.call_workers('{"0": {}}') == [{"rank": 0}, {"rank": 1}]
    control.reset_caches()
    control.set_version("7")
    control.resume()
    control.close()
    assert steps.asked == ["pause", 'call {"0": {}}', "reset", "version 7", "resume"]


@pytest.mark.parametrize("failure", [Unreachable("SGLang refuses"), PayloadError("not calls")])
def test_what_goes_wrong_in_the_server_arrives(failure: Exception) -> None:
    control = control_of(Steps(failure))
    with pytest.raises(Unreachable, match=str(failure)):
        control.call_workers("{}")
    control.close()


@pytest.mark.parametrize(
    ("step", "body"),
    [("call_workers", b"{}"), ("set_version", b'{"version": 7}'), ("pause", b""), ("other", b"{}")],
)
def test_what_is_no_step_does_nothing(step: str, body: bytes) -> None:
    steps = Steps()
    status, _ = asyncio.run(answer(cast("Steering", steps), step, body))
    assert status == 400
    assert steps.asked == []


def test_a_server_without_the_routes_is_told_what_is_missing() -> None:
    control = HttpControl("http://server", transport=httpx.MockTransport(lambda _: httpx.Response(404)))
    with pytest.raises(
        ConfigError, match=r"--custom-weight-loader dcr_adapters\.sglang\.worker\.dcr_call, DCR"
    ):
        control.call_workers("{}")
    with pytest.raises(ConfigError, match="DCR_SGLANG_SERVING_LEASE=1"):
        control.lend(lambda: 1.0)
    control.close()


@pytest.mark.parametrize(
    ("change", "leased", "needs"),
    [
        ({"tokenizer_worker_num": 2}, False, "--tokenizer-worker-num 1"),
        ({"skip_server_warmup": False}, True, "--skip-server-warmup"),
        ({"grpc_port": 1}, True, "without --grpc-port"),
    ],
)
def test_a_server_that_would_answer_beside_its_receiver_does_not_start(
    change: dict[str, object], leased: bool, needs: str
) -> None:
    fitting = {"tokenizer_worker_num": 1, "skip_server_warmup": True, "grpc_port": None}
    require_servable(SimpleNamespace(**fitting), leased=leased)
    with pytest.raises(ConfigError, match=needs):
        require_servable(SimpleNamespace(**{**fitting, **change}), leased=leased)
