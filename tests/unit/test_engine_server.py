"""What every control over HTTP shares: how a server's answers, and its silence, are classed (DESIGN R19)."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import httpx
import pytest

from dcr.errors import ConfigError, Unreachable
from dcr.receiver.workers.control import ControlClosed
from dcr.receiver.workers.server import EngineServer, Needs
from dcr_adapters.vllm.http_control import HttpControl

NEEDS = Needs(control="--control", lease="--lease")


class App:
    """Answers everything with ``status`` and ``content``, and remembers what it was asked."""

    def __init__(self, status: int = 200, content: Any = None) -> None:
        self.status = status
        self.content = content
        self.asked: list[tuple[str, str, Any]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content) if request.content else None
        self.asked.append((request.method, request.url.raw_path.decode(), body))
        self.key = request.headers.get("Authorization")
        return httpx.Response(self.status, json=self.content)


def client(answer: Callable[[httpx.Request], httpx.Response], **options: Any) -> EngineServer:
    return EngineServer("http://server:1", NEEDS, transport=httpx.MockTransport(answer), **options)


@pytest.mark.parametrize("status", [404, 405, 501])
def test_a_server_that_lacks_the_route_is_told_how_to_start(status: int) -> None:
    with (
        closing(client(App(status))) as server,
        pytest.raises(ConfigError, match=r"http://server:1 has no /there: start the server with --control"),
    ):
        server.post("/there")


@pytest.mark.parametrize("status", [401, 403])
def test_a_wrong_key_is_the_configuration(status: int) -> None:
    app = App(status)
    with closing(client(app, token="mine")) as server, pytest.raises(ConfigError, match="refuses the key"):
        server.post("/there")
    assert app.key == "Bearer mine"
    with (
        closing(client(app)) as server,
        pytest.raises(ConfigError, match=r"no token was given; pass .*token="),
    ):
        server.post("/there")
    assert app.key is None


@pytest.mark.parametrize("status", [307, 400, 500, 503])
def test_anything_else_but_success_is_a_party_that_does_not_answer(status: int) -> None:
    app = App(status, {"message": "why"})
    with (
        closing(client(app)) as server,
        pytest.raises(Unreachable, match=f"POST /there: {status}: .*why"),
    ):
        server.post("/there")
    assert len(app.asked) == 1, "nothing is sent twice"


@pytest.mark.parametrize("url", ["", "server", "localhost:8000", "ftp://server", "http://", "http://[::1"])
def test_what_is_no_url_of_a_server_is_refused_before_a_call(url: str) -> None:
    with pytest.raises(ConfigError, match="is not the url of a server"):
        EngineServer(url, NEEDS)


def test_a_server_that_is_not_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with (
            closing(EngineServer(url, NEEDS)) as server,
            pytest.raises(Unreachable, match=r"POST /there: ConnectError"),
        ):
            server.post("/there")


def test_a_server_that_dies_in_the_midst_of_a_call() -> None:
    with (
        dying() as (url, died),
        closing(EngineServer(url, NEEDS)) as server,
        pytest.raises(Unreachable, match=r"POST /there: (RemoteProtocolError|ReadError)"),
    ):
        server.post("/there", body={"calls": "{}"})
    assert died == [1], "nothing is sent twice"


def test_a_server_that_is_late() -> None:
    with (
        dying(after_s=1.0) as (url, _),
        closing(EngineServer(url, NEEDS, deadline_s=0.2)) as server,
        pytest.raises(Unreachable, match=r"POST /there: ReadTimeout, deadline 0.2 s"),
    ):
        server.post("/there")


@contextmanager
def dying(after_s: float = 0.0) -> Iterator[tuple[str, list[int]]]:
    """A server that hangs up on what it is asked; its address, and how many calls came."""
    came = [0]
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while not stop.is_set():
                connection, _ = listening.accept()
                with connection:
                    if connection.recv(1 << 16):
                        came[0] += 1
                        stop.wait(after_s)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}", came
        finally:
            stop.set()
            socket.create_connection(listening.getsockname()).close()
            thread.join()


@pytest.mark.parametrize("content", [None, [], {}, {"results": {}}, {"results": ["one"]}])
def test_an_answer_without_results_is_no_answer(content: Any) -> None:
    with closing(client(App(200, content))) as server, pytest.raises(Unreachable, match="no results in"):
        server.results("/there", {})


def test_how_a_vllm_server_is_steered() -> None:
    app = App(200, {"world_size": 1, "results": [{"rank": 0}]})
    control = HttpControl("http://server", transport=httpx.MockTransport(app))
    assert control.call_workers("{}") == control.call_workers("{}") == [{"rank": 0}]
    control.pause()
    control.reset_caches()
    control.set_version("7")
    control.resume()
    control.close()
    called = ("POST", "/collective_rpc", {"method": "dcr_call", "args": ["{}"]})
    assert app.asked == [
        ("GET", "/get_world_size?include_dp=true", None),
        called,
        called,
        ("POST", "/pause?mode=keep&clear_cache=false", None),
        ("POST", "/reset_prefix_cache?reset_running_requests=true&reset_external=true", None),
        ("POST", "/reset_encoder_cache", None),
        ("POST", "/update_weight_version", {"new_version": "7"}),
        ("POST", "/resume", None),
    ]


def test_a_vllm_server_that_keeps_its_cache_is_not_served_from() -> None:
    control = HttpControl("http://server", transport=httpx.MockTransport(App(200, {"success": False})))
    with pytest.raises(Unreachable, match="no request may see old KV"):
        control.reset_caches()
    control.close()


def test_a_vllm_server_of_several_replicas_is_refused_at_every_call() -> None:
    """It lets all replicas do what is asked, and answers for the first."""
    app = App(200, {"world_size": 4, "results": [{"rank": 0}, {"rank": 1}]})
    control = HttpControl("http://server", transport=httpx.MockTransport(app))
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"2 of 4 workers of the server answer: .*an engine of its own"):
            control.call_workers("{}")
    control.close()


@pytest.mark.parametrize("content", [None, {"results": [{}]}, {"world_size": "1", "results": [{}]}])
def test_a_vllm_server_that_does_not_count_its_workers_is_asked_nothing(content: Any) -> None:
    app = App(200, content)
    control = HttpControl("http://server", transport=httpx.MockTransport(app))
    with pytest.raises(Unreachable, match="no world_size"):
        control.call_workers("{}")
    control.close()
    assert [path for _, path, _ in app.asked] == ["/get_world_size?include_dp=true"]


def test_a_control_that_was_closed_asks_nothing() -> None:
    app = App()
    server = client(app)
    server.close()
    for ask in (lambda: server.post("/there"), lambda: server.lend(lambda: 1.0)):
        with pytest.raises(ControlClosed, match="was closed"):
            ask()
    assert not app.asked
