"""The middleware under which an inference server answers (DESIGN P11), without one."""

import asyncio
import json
import threading
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import pytest
from typing_extensions import override

from dcr.errors import ConfigError, Unreachable
from dcr.receiver.lease import Lease
from dcr.receiver.workers.server import EngineServer, Needs
from dcr.receiver.workers.serving_lease import ROUTE, App, Message, Receive, Send, ServingLease
from dcr_adapters.vllm import serving_lease as vllm

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


NEEDS = Needs(control="--control", lease="--lease")


class Server:
    """An application that answers in three parts; ``between`` happens before each."""

    def __init__(self) -> None:
        self.now = 50.0
        self.between: Callable[[int], None] = lambda part: None
        self.heard: list[str] = []
        self.lease: App = ServingLease(self.app, {"/collective_rpc"}, clock=lambda: self.now)

    async def app(self, scope: Message, receive: Receive, send: Send) -> None:
        self.heard.append((await receive())["type"])
        if scope["type"] == "websocket":
            await send({"type": "websocket.accept"})
        for part in range(3):
            self.between(part)
            if scope["type"] == "websocket":
                await send({"type": "websocket.send", "text": str(part)})
            elif part == 0:
                await send({"type": "http.response.start", "status": 200, "headers": []})
            else:
                await send({"type": "http.response.body", "body": b"part", "more_body": part < 2})
        self.heard.append((await receive())["type"])

    def ask(self, path: str, body: Any = None, kind: str = "http") -> list[Message]:
        """What leaves for a request; the client then hangs up."""
        sent: list[Message] = []
        first = {"type": "http.request", "body": json.dumps(body).encode() if body else b""}
        queue = [first if kind == "http" else {"type": "websocket.connect"}]

        async def receive() -> Message:
            while not queue:
                await asyncio.sleep(0.05)  # a client that waits
                if sent[-1].get("more_body") is False:
                    return {"type": "http.disconnect"}
            return queue.pop(0)

        async def send(message: Message) -> None:
            sent.append(message)

        scope = {"type": kind, "path": path, "method": "POST" if body else "GET"}
        asyncio.run(asyncio.wait_for(self.lease(scope, receive, send), 30))
        return sent

    def lend(self, seconds: float) -> None:
        start = json.loads(self.ask(ROUTE)[-1]["body"])["start"]
        self.ask(ROUTE, {"until": self.now + seconds, "start": start})

    def lapse_before(self, part: int) -> None:
        self.between = lambda now: setattr(self, "now", self.now + 100) if now == part else None


def statuses(sent: list[Message]) -> list[int]:
    return [message["status"] for message in sent if message["type"] == "http.response.start"]


def test_nothing_is_computed_without_a_lease_but_control_is_heard() -> None:
    server = Server()
    assert statuses(server.ask("/v1/completions")) == [503]
    assert server.heard == []
    assert statuses(server.ask("/collective_rpc")) == [200]
    server.lend(10)
    assert statuses(server.ask("/v1/completions")) == [200]
    server.now += 10
    assert statuses(server.ask("/inference/v1/generate")) == [503]


def test_vllm_s_routes_of_control_are_heard() -> None:
    server = Server()
    server.lease = vllm.ServingLease(server.app)
    assert statuses(server.ask("/collective_rpc")) == [200]
    assert statuses(server.ask("/inference/v1/generate")) == [503]


def test_what_was_lent_last_counts() -> None:
    server = Server()
    server.lend(10)
    server.lend(0)
    assert statuses(server.ask("/v1/completions")) == [503]


def test_an_answer_that_is_late_is_refused() -> None:
    server = Server()
    server.lend(10)
    server.lapse_before(0)
    sent = server.ask("/v1/completions")
    assert statuses(sent) == [503]
    assert b"another instance" in sent[-1]["body"]
    assert server.heard[-1] == "http.disconnect", "so that the engine stops computing it"


def test_an_answer_that_has_begun_is_cut_off() -> None:
    server = Server()
    server.lend(10)
    server.lapse_before(2)
    sent = server.ask("/v1/completions")
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert sent[-1]["more_body"], "the client sees that the end is missing"
    assert server.heard[-1] == "http.disconnect"


def test_a_request_that_a_paused_engine_keeps_is_refused_when_the_lease_ends() -> None:
    server = Server()

    async def paused(scope: Message, receive: Receive, send: Send) -> None:
        await receive()
        server.now += 100
        server.heard.append((await receive())["type"])

    server.lease = ServingLease(paused, (), clock=lambda: server.now)
    server.lend(10)
    sent: list[Message] = []
    first = [{"type": "http.request", "body": b""}]

    async def receive() -> Message:
        while not first:
            await asyncio.sleep(3600)  # a client that waits for its answer
        return first.pop()

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "path": "/v1/completions", "method": "POST"}
    asyncio.run(asyncio.wait_for(server.lease(scope, receive, send), 30))
    assert statuses(sent) == [503]
    assert server.heard == ["http.disconnect"]


def test_what_the_client_says_is_heard() -> None:
    server = Server()
    server.lend(10)
    server.ask("/v1/completions")
    assert server.heard == ["http.request", "http.disconnect"]


def heard_by(asks: "Callable[[Receive, asyncio.Queue[Message]], Awaitable[list[str]]]") -> list[str]:
    """What an application under a lease hears that ``asks`` so; its client says what is put."""

    async def run() -> list[str]:
        said: asyncio.Queue[Message] = asyncio.Queue()
        heard: list[str] = []

        async def app(scope: Message, receive: Receive, send: Send) -> None:
            heard.extend(await asks(receive, said))

        async def send(_: Message) -> None:
            pass

        lease = ServingLease(app, (), clock=lambda: 0.0)
        lease._until = 100.0
        await lease({"type": "http", "path": "/v1/completions"}, said.get, send)
        return heard

    return asyncio.run(asyncio.wait_for(run(), 5))


async def poll(receive: Receive) -> str:
    """As Starlette's ``is_disconnected`` does: what is said without a pause, or nothing."""
    said: Message = {}
    with anyio.CancelScope() as scope:
        scope.cancel()
        said = await receive()
    return str(said.get("type", ""))


REQUEST: Message = {"type": "http.request", "body": b""}


def test_a_client_that_left_is_seen_by_whoever_polls() -> None:
    async def asks(receive: Receive, said: asyncio.Queue[Message]) -> list[str]:
        said.put_nowait(REQUEST)
        heard = [(await receive())["type"], await poll(receive)]
        said.put_nowait({"type": "http.disconnect"})
        await asyncio.sleep(0.01)
        return heard + [await poll(receive) for _ in range(3)]

    assert heard_by(asks) == ["http.request", ""] + ["http.disconnect"] * 3


def test_what_came_for_one_who_was_cancelled_is_heard_by_the_next() -> None:
    async def asks(receive: Receive, said: asyncio.Queue[Message]) -> list[str]:
        said.put_nowait(REQUEST)
        return [await poll(receive), (await receive())["type"]]

    assert heard_by(asks) == ["", "http.request"]


def test_the_end_of_the_lease_is_seen_by_whoever_polls() -> None:
    server = Server()

    async def late(scope: Message, receive: Receive, send: Send) -> None:
        server.now += 100
        await send({"type": "http.response.start", "status": 200, "headers": []})
        server.heard.append(await poll(receive))

    server.lease = ServingLease(late, (), clock=lambda: server.now)
    server.lend(10)
    assert statuses(server.ask("/v1/completions")) == [503]
    assert server.heard == ["http.disconnect"]


def test_websockets_too() -> None:
    server = Server()
    assert [message["type"] for message in server.ask("/v1/realtime", kind="websocket")] == [
        "websocket.close"
    ]
    server.lend(10)
    server.lapse_before(1)
    sent = [message["type"] for message in server.ask("/v1/realtime", kind="websocket")]
    assert sent == ["websocket.accept", "websocket.send", "websocket.close"]
    assert server.heard == ["websocket.connect", "websocket.disconnect"]


def test_a_lease_that_cannot_be_read_is_refused_and_changes_nothing() -> None:
    server = Server()
    server.lend(10)
    assert statuses(server.ask(ROUTE, {"until": "soon", "start": ""})) == [400]
    assert statuses(server.ask(ROUTE, {"until": 0.0})) == [400]
    for endless in (float("inf"), float("nan")):
        assert statuses(server.ask(ROUTE, {"until": endless, "start": ""})) == [400]
    assert statuses(server.ask(ROUTE, {"until": 0.0, "start": "another"})) == [409]
    assert statuses(server.ask("/v1/completions")) == [200]


class Line(httpx.BaseTransport):
    """From an ``EngineServer`` to a ``Server``; each message takes ``seconds``, on both clocks."""

    def __init__(self, server: Server, seconds: float) -> None:
        self.server = server
        self.seconds = seconds

    @override
    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.server.now += self.seconds
        sent = self.server.ask(request.url.path, json.loads(request.content) if request.content else None)
        self.server.now += self.seconds
        return httpx.Response(statuses(sent)[0], content=sent[-1]["body"])


@pytest.mark.parametrize("away", [0.0, 1.0])
def test_nothing_is_added_on_the_way(away: float) -> None:
    server = Server()
    client = EngineServer("http://server", NEEDS, transport=Line(server, away))
    end = server.now + 20
    client.lend(lambda: end - server.now)
    server.now = end - 3 * away - 0.1
    assert statuses(server.ask("/v1/completions")) == [200]
    server.now = end
    assert statuses(server.ask("/v1/completions")) == [503]
    client.close()


def test_a_lease_that_has_ended_is_heard_of_last() -> None:
    """It ends while another thread's message, with what was left before, is on its way."""
    lease = Lease(lambda: 1000.0)
    lease.extend(1060.0)
    under_way, heard_of_the_end = threading.Event(), threading.Event()
    until: list[float] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            if not under_way.is_set():
                under_way.set()
                heard_of_the_end.wait(0.3)
            until.append(json.loads(request.content)["until"])
            if len(until) == 1:
                heard_of_the_end.set()
        return httpx.Response(200, json={"clock": 50.0, "start": "first"})

    client = EngineServer("http://server", NEEDS, transport=httpx.MockTransport(answer))
    watching = threading.Thread(target=client.lend, args=(lease.left_s,))
    watching.start()
    assert under_way.wait(30)
    lease.end()
    client.lend(lease.left_s)
    watching.join()
    client.close()
    assert until == [110.0, 50.0]


def test_what_is_lent_in_vain_is_over_when_that_is_known() -> None:
    deadlines: list[float] = []

    def answer(request: httpx.Request) -> httpx.Response:
        deadlines.append(request.extensions["timeout"]["read"])
        return httpx.Response(200, json={"clock": 50.0, "start": "first"})

    client = EngineServer("http://server", NEEDS, transport=httpx.MockTransport(answer))
    client.lend(lambda: 90.0)
    client.close()
    assert deadlines[0] < 60, "the next one to lend waits"
    assert deadlines[1] >= 90.0


def test_a_server_that_was_started_anew_is_lent_nothing() -> None:
    server = Server()
    client = EngineServer("http://server", NEEDS, transport=Line(server, 0.0))
    client.lend(lambda: 20.0)
    client.lend(lambda: 20.0)
    assert statuses(server.ask("/v1/completions")) == [200]
    server.lease = Server().lease
    with pytest.raises(Unreachable, match="http://server was started anew and is lent nothing"):
        client.lend(lambda: 20.0)
    assert statuses(server.ask("/v1/completions")) == [503]
    client.close()


def test_a_server_that_is_started_anew_between_two_messages_is_lent_nothing() -> None:
    server = Server()
    client = EngineServer("http://server", NEEDS, transport=Line(server, 0.0))

    def restarting() -> float:
        server.lease = Server().lease
        return 20.0

    with pytest.raises(Unreachable, match="409"):
        client.lend(restarting)
    assert statuses(server.ask("/v1/completions")) == [503]
    client.close()


def test_a_server_without_the_middleware_is_told_what_is_missing() -> None:
    client = EngineServer(
        "http://server", NEEDS, transport=httpx.MockTransport(lambda _: httpx.Response(404))
    )
    with pytest.raises(ConfigError, match="has no /dcr/lease: start the server with --lease"):
        client.lend(lambda: 1.0)
    client.close()


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"{}", b'{"clock": null, "start": ""}'])
def test_an_answer_without_a_clock_is_no_answer(body: bytes) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=body))
    client = EngineServer("http://server", NEEDS, transport=transport)
    with pytest.raises(Unreachable, match="no clock in"):
        client.lend(lambda: 1.0)
    client.close()
