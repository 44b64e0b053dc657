"""Calls over loopback HTTP: types are checked, errors keep their class, lost servers are Unreachable."""

import logging
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import pytest

import dcr.errors
from dcr.errors import AttemptFailed, ConfigError, PayloadError, RefitError, Unreachable
from dcr.model import AttemptId, AuditDigest, OwnerClose, PathClass, PayloadRef
from dcr.transport import rpc
from dcr.transport.rpc import Client, serve

TAU = AttemptId(number=3, version=2)
CLOSE = OwnerClose(
    attempt=TAU,
    owner=1,
    payloads=(PayloadRef(1, 0, "ab" * 16, 99),),
    audit={"w": AuditDigest(2**60, 7)},
    num_changed=5,
    num_elements=7,
    candidate="c",
)


class Endpoint:
    """Handlers of every kind of parameter."""

    def __init__(self) -> None:
        self.meet = threading.Barrier(8, timeout=30)
        self.release = threading.Event()
        self.entered = threading.Event()

    def close_list(self, attempt: AttemptId, close: OwnerClose, classes: dict[str, PathClass]) -> OwnerClose:
        assert classes == {"w": PathClass.XOR}
        assert close.attempt == attempt
        return close

    def optional(self, step: int | None, tags: list[str], *, flag: bool = True) -> dict[str, object]:
        return {"step": step, "tags": tags, "flag": flag}

    def nothing(self) -> None:
        return None

    def fail(self, kind: str) -> None:
        errors: dict[str, type[Exception]] = {**vars(dcr.errors), "KeyError": KeyError, "Special": Special}
        raise errors[kind]("why it failed")

    def together(self) -> int:
        return self.meet.wait()

    def wait(self) -> str:
        self.entered.set()
        self.release.wait(30)
        return "done"

    def unserializable(self) -> object:
        return threading.Lock()

    def handlers(self) -> dict[str, Callable[..., object]]:
        names = ("close_list", "optional", "nothing", "fail", "together", "wait", "unserializable")
        return {name: getattr(self, name) for name in names}


class Special(dcr.errors.Conflict):
    """An error that the caller's process does not know."""


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()
    yield endpoint
    endpoint.release.set()


@pytest.fixture
def server(endpoint: Endpoint) -> Iterator[rpc.RpcServer]:
    with serve(endpoint.handlers()) as server:
        yield server


@pytest.fixture
def client(server: rpc.RpcServer) -> Iterator[Client]:
    with closing(Client(server.url, timeout_s=30)) as client:
        yield client


def test_model_values_travel_unchanged(client: Client) -> None:
    params: dict[str, Any] = {"attempt": TAU, "close": CLOSE, "classes": {"w": PathClass.XOR}}
    assert client.call("close_list", OwnerClose, **params) == CLOSE


def test_plain_values_defaults_and_none(client: Client) -> None:
    answer = client.call("optional", dict[str, Any], step=None, tags=["a"])
    assert answer == {"step": None, "tags": ["a"], "flag": True}
    assert client.call("optional", dict[str, Any], step=1, tags=[], flag=False)["flag"] is False
    assert client.call("nothing", type(None)) is None


@pytest.mark.parametrize(
    ("params", "named"),
    [
        ({"tags": []}, "step"),
        ({"step": None}, "tags"),
        ({"step": "1", "tags": []}, "step"),
        ({"step": 1.5, "tags": []}, "step"),
        ({"step": 1, "tags": [1]}, "tags.0"),
        ({"step": 1, "tags": [], "flag": 1}, "flag"),
        ({"step": 1, "tags": [], "other": 1}, "other"),
    ],
)
def test_wrong_parameters_are_named(client: Client, params: dict[str, Any], named: str) -> None:
    with pytest.raises(PayloadError, match=f"optional: {named}"):
        client.call("optional", dict[str, Any], **params)


@pytest.mark.parametrize("kind", [k.__name__ for k in vars(dcr.errors).values() if isinstance(k, type)])
def test_errors_keep_their_class_and_message(client: Client, kind: str) -> None:
    with pytest.raises(RefitError, match=r"^why it failed$") as caught:
        client.call("fail", type(None), kind=kind)
    assert type(caught.value).__name__ == kind


def test_a_private_error_travels_as_its_base(client: Client) -> None:
    with pytest.raises(dcr.errors.Conflict):
        client.call("fail", type(None), kind="Special")


def test_other_exceptions_are_logged_and_reported(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR), pytest.raises(AttemptFailed, match="KeyError in fail: 'why"):
        client.call("fail", type(None), kind="KeyError")
    assert "Traceback" in caplog.text
    with pytest.raises(AttemptFailed, match="in unserializable"):
        client.call("unserializable", type(None))
    assert client.call("nothing", type(None)) is None


def test_an_unknown_method_lists_the_known(client: Client) -> None:
    with pytest.raises(ConfigError, match="no method '/missing'; known: close_list, fail"):
        client.call("missing", type(None))


def test_a_result_of_another_type_is_refused(client: Client) -> None:
    with pytest.raises(PayloadError, match="AttemptId"):
        client.call("nothing", AttemptId)


def test_calls_run_at_the_same_time(client: Client) -> None:
    with ThreadPoolExecutor(8) as pool:
        waits = [pool.submit(client.call, "together", int) for _ in range(8)]
        assert sorted(wait.result() for wait in waits) == list(range(8))


def test_the_client_sends_no_oversized_body(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dcr.transport.rpc.client.MAX_BODY_BYTES", 100)
    with pytest.raises(PayloadError, match="at most 100"):
        client.call("optional", dict[str, Any], step=1, tags=["x" * 100])
    assert client.call("nothing", type(None)) is None


@pytest.mark.parametrize("length", [str(rpc.MAX_BODY_BYTES + 1), "9" * 30, "-1", "x", "²", ""])
def test_the_server_reads_no_body_of_doubtful_size(server: rpc.RpcServer, length: str) -> None:
    answer = raw_request(server, f"POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"type":"PayloadError"' in answer


@pytest.mark.parametrize("body", ["", "[]", "{", "null", '{"a":1}', '{"step":1}'])
def test_bodies_that_are_no_parameters(server: rpc.RpcServer, body: str) -> None:
    head = f"POST /nothing HTTP/1.1\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    answer = raw_request(server, head + body)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"type":"PayloadError"' in answer


def test_a_caller_that_dies_within_its_request_harms_nobody(server: rpc.RpcServer, client: Client) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"POST /nothing HTTP/1.1\r\nContent-Length: 50\r\n\r\n{")
    assert client.call("nothing", type(None)) is None


def raw_request(server: rpc.RpcServer, request: str) -> bytes:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(request.encode("latin-1"))
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def test_a_closed_server_is_unreachable_also_on_an_open_connection(endpoint: Endpoint) -> None:
    server = serve(endpoint.handlers())
    with closing(Client(server.url)) as client:
        client.call("nothing", type(None))
        server.close()
        server.close()
        with pytest.raises(Unreachable, match=f"{server.url} did not answer nothing"):
            client.call("nothing", type(None))


def test_closing_lets_calls_in_flight_finish(endpoint: Endpoint) -> None:
    server = serve(endpoint.handlers())
    with closing(Client(server.url, timeout_s=30)) as client, ThreadPoolExecutor(1) as pool:
        call = pool.submit(client.call, "wait", str)
        assert endpoint.entered.wait(30)
        server.close()
        endpoint.release.set()
        assert call.result() == "done"


def test_a_missed_deadline_is_unreachable(client: Client) -> None:
    with pytest.raises(Unreachable, match=r"did not answer wait: ReadTimeout after 0\.05 s"):
        client.call("wait", str, deadline_s=0.05)


def test_a_refused_connection_is_unreachable() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with closing(Client(url)) as client, pytest.raises(Unreachable, match=f"{url} did not answer fence"):
            client.call("fence", type(None))


def test_a_url_that_is_none() -> None:
    with pytest.raises(ConfigError, match="not the url"):
        Client("http://127.0.0.1:port")
    with closing(Client("")) as client, pytest.raises(Unreachable):
        client.call("fence", type(None))


_DYING_SERVER = """
import os, signal, threading
from dcr.transport.rpc import serve
def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
print(serve({"die": die}).url, flush=True)
threading.Event().wait()
"""


def test_a_server_killed_within_a_call_is_unreachable() -> None:
    command = [sys.executable, "-c", _DYING_SERVER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        with closing(Client(process.stdout.readline().strip())) as client, pytest.raises(Unreachable):
            client.call("die", type(None))
        assert process.wait(30) == -signal.SIGKILL


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """A server that gives one fixed answer to its first request."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def once() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(answer)

        thread = threading.Thread(target=once)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


def http(status: str, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (http("200 OK", b"nonsense"), PayloadError),
        (http("200 OK", b""), PayloadError),
        (http("200 OK", b"null", "Content-Encoding: gzip"), PayloadError),
        (http("302 Found", b"", "Location: /elsewhere"), PayloadError),
        (http("500 Internal Server Error", b"<html>"), PayloadError),
        (http("500 X", b'{"error":{"type":"KeyboardInterrupt","message":""}}'), PayloadError),
        (http("500 X", b'{"error":{"type":"MissingObject","message":"m"}}'), dcr.errors.MissingObject),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{", Unreachable),
        (b"SSH-2.0\r\n", Unreachable),
        (b"", Unreachable),
    ],
    ids=["text", "empty", "gzip", "redirect", "html", "foreign", "ours", "cut", "ssh", "silent"],
)
def test_strange_answers(answer: bytes, kind: type[RefitError]) -> None:
    with answering(answer) as url, closing(Client(url)) as client:
        with pytest.raises(RefitError) as caught:
            client.call("fence", AttemptId)
        assert type(caught.value) is kind


def test_a_port_in_use_is_a_configuration_error(server: rpc.RpcServer) -> None:
    port = int(server.url.rsplit(":", 1)[1])
    with pytest.raises(ConfigError, match=f"port {port} is in use on 127.0.0.1; choose another or 0"):
        serve({}, port=port)


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 70_000), ("host.invalid", 0), ("203.0.113.1", 0)])
def test_an_address_that_cannot_be_ours(host: str, port: int) -> None:
    with pytest.raises(ConfigError, match=f"{port}"):
        serve({}, host=host, port=port)


def test_a_port_can_be_taken_again_after_close(endpoint: Endpoint) -> None:
    first = serve(endpoint.handlers())
    with closing(Client(first.url)) as client:
        client.call("nothing", type(None))
        first.close()
        with serve(endpoint.handlers(), port=int(first.url.rsplit(":", 1)[1])) as second:
            assert second.url == first.url
            _call_again(client)


def _call_again(client: Client) -> None:
    """The connection to who was closed may not have ended yet; a call that meets its end is made again."""
    try:
        client.call("nothing", type(None))
    except Unreachable:
        client.call("nothing", type(None))


def test_handlers_must_be_callable_by_name() -> None:
    def any_number(*numbers: int) -> None: ...

    def bare(number) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001

    def unknown(number: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    for handler, message in ((any_number, "by name"), (bare, "no annotation"), (unknown, "Nowhere")):
        with pytest.raises(ConfigError, match=message):
            serve({"method": handler})
