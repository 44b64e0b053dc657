"""An HTTP proxy before an S3 server that misbehaves on order: it refuses, is slow, cuts off, flips bits."""

import http.client
import socket
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
_STALL_S = 60.0
_RESET_AFTER_S = 0.2
_OUR_OWN = ("connection", "transfer-encoding", "keep-alive")


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to the next ``count`` requests of ``method`` whose path contains ``path``.

    ``kind``: ``refuse`` (503), ``delay`` by ``value`` seconds, ``truncate`` the answer's body after ``value``
    bytes and hang up, ``reset`` the connection there or ``stall`` for as long as the client stays,
    ``corrupt`` its byte number ``value``, ``lose`` the answer after the server has given it, ``drop`` the
    request before it, or ``pretend`` to have done it.
    """

    kind: str
    method: str = "GET"
    path: str = ""
    count: int = 1
    value: float = 0.0


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as it arrived."""

    method: str
    path: str
    range: str | None


class FaultyProxy:
    """Forwards to ``127.0.0.1:port`` until ``close``. ``seen`` holds every request, in order of arrival."""

    def __init__(self, port: int) -> None:
        self.upstream = port
        self.seen: list[Seen] = []
        self._faults: list[list[Any]] = []  # [fault, how often still]
        self._lock = threading.Lock()
        proxy = self

        class Handler(_Handler):
            """Bound to this proxy."""

            owner = proxy

        self._server = _Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def endpoint(self) -> str:
        """Where clients reach it."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def add(self, *faults: Fault) -> None:
        """Let these happen, the first that matches a request first."""
        with self._lock:
            self._faults += [[fault, fault.count] for fault in faults]

    def take(self, seen: Seen) -> Fault | None:
        """The fault that is due for this request."""
        with self._lock:
            self.seen.append(seen)
            for entry in self._faults:
                fault, left = entry
                if left and fault.method == seen.method and fault.path in seen.path:
                    entry[1] -= 1
                    return fault if isinstance(fault, Fault) else None
        return None

    def close(self) -> None:
        """Accept nothing any more."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:  # type: ignore[explicit-override]
        """A client that gave up is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    owner: FaultyProxy

    def _serve(self) -> None:
        fault = self.owner.take(Seen(self.command, self.path, self.headers.get("Range")))
        kind = fault.kind if fault else ""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if kind == "drop":
            self.close_connection = True
            return
        if kind == "refuse":
            self._answer(503, {"Content-Type": "application/xml"}, _SLOW_DOWN)
            return
        if kind == "pretend":
            self._answer(200, {"ETag": '"0"'}, b"")
            return
        if kind == "delay" and fault:
            time.sleep(fault.value)
        status, headers, data = self._forward(body)
        if kind == "lose":
            self.close_connection = True
        elif kind in ("truncate", "reset", "stall") and fault:
            self._answer(status, headers, data, upto=int(fault.value))
            self._break_off(kind)
        else:
            if kind == "corrupt" and fault:
                at = int(fault.value)
                data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
            self._answer(status, headers, data)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _serve  # noqa: N815 -- the names that http.server calls

    def _break_off(self, kind: str) -> None:
        self.close_connection = True
        if kind == "stall":
            self.connection.settimeout(_STALL_S)
            with suppress(OSError):
                self.connection.recv(1)  # ends when the client has had enough
        elif kind == "reset":
            time.sleep(_RESET_AFTER_S)  # what was sent arrives before
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()

    def _forward(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.owner.upstream, timeout=60)
        headers = {name: value for name, value in self.headers.items() if name.lower() != "expect"}
        connection.request(self.command, self.path, body=body, headers=headers)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        return answer.status, dict(answer.getheaders()), data

    def _answer(self, status: int, headers: dict[str, str], data: bytes, upto: int | None = None) -> None:
        self.send_response_only(status)
        kept = {name: value for name, value in headers.items() if name.lower() not in _OUR_OWN}
        lengths = [name for name in kept if name.lower() == "content-length"]
        if not lengths:
            kept["Content-Length"] = str(len(data))
        for name, value in kept.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data[:upto])
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:  # type: ignore[explicit-override]
        """Nothing: ``seen`` is the log."""
