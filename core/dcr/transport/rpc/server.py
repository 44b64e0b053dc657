"""The answering side: every call in a thread of its own."""

import dataclasses
import errno
import inspect
import logging
import socket
import socketserver
import threading
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from dcr.errors import AttemptFailed, ConfigError, PayloadError, RefitError
from dcr.model import from_json, to_json
from dcr.transport.rpc.wire import MAX_BODY_BYTES, refusal

Handlers = Mapping[str, Callable[..., object]]
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Method:
    handler: Callable[..., object]
    parameters: type[Any]  # a dataclass with one field for each parameter

    def call(self, body: bytes) -> bytes:
        values = from_json(self.parameters, body)
        named = {field.name: getattr(values, field.name) for field in dataclasses.fields(values)}
        return to_json(self.handler(**named))


def _method(name: str, handler: Callable[..., object]) -> _Method:
    try:
        hints = typing.get_type_hints(handler)
    except NameError as err:
        raise ConfigError(f"handler {name!r}: an annotation cannot be resolved: {err}") from err
    fields: list[tuple[str, Any, Any]] = []
    for parameter in inspect.signature(handler).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f"handler {name!r}: parameter {parameter.name!r} cannot be given by name")
        if parameter.name not in hints:
            raise ConfigError(f"handler {name!r}: parameter {parameter.name!r} has no annotation")
        field: Any = dataclasses.field()
        if parameter.default is not parameter.empty:
            field = dataclasses.field(default=parameter.default)
        fields.append((parameter.name, hints[parameter.name], field))
    parameters = dataclasses.make_dataclass("parameters", fields, kw_only=True)
    parameters.__name__ = f"call of {name}"  # how from_json names it in errors
    return _Method(handler, parameters)


class _HttpServer(ThreadingHTTPServer):
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], methods: dict[str, _Method]) -> None:
        self.methods = methods
        self.closing = False
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__(address, _Handler)

    def server_bind(self) -> None:  # type: ignore[explicit-override]
        """Bind without the reverse name lookup of HTTPServer, which can take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:  # type: ignore[explicit-override]
        with self._lock:
            self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:  # type: ignore[explicit-override]
        with self._lock:
            self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # type: ignore[explicit-override]
        _log.debug("connection from %s broke", client_address, exc_info=True)

    def hang_up(self) -> None:
        """Let idle connections see their end; calls in flight still send their answer."""
        with self._lock:
            for connection in self._connections:
                try:
                    connection.shutdown(socket.SHUT_RD)
                except OSError:  # the caller left first
                    continue

    def answer(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Return status and body; never raises an Exception."""
        method = self.methods.get(path.removeprefix("/"))
        if method is None:
            known = ", ".join(sorted(self.methods))
            return refusal(ConfigError(f"no method {path!r}; known: {known}"), status=404)
        try:
            return 200, method.call(body)
        except RefitError as err:
            return refusal(err)
        except Exception as err:  # noqa: BLE001 -- the border: recorded here, reported to the caller
            _log.exception("handler of %s failed", path)
            return refusal(AttemptFailed(f"{type(err).__name__} in {path.removeprefix('/')}: {err}"))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body leave in one segment
    disable_nagle_algorithm = True
    server: _HttpServer

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MAX_BODY_BYTES:
            self.close_connection = True  # what follows is not read, so the next request is not found
            message = f"Content-Length is {length!r}; a call has a body of at most {MAX_BODY_BYTES} bytes"
            self._send(*refusal(PayloadError(message), status=413))
            return
        body = self.rfile.read(int(length))
        if len(body) < int(length) or self.server.closing:  # the caller died, or came after close()
            self.close_connection = True
            return
        self._send(*self.server.answer(self.path, body))

    def _send(self, status: int, body: bytes) -> None:
        self.close_connection |= self.server.closing
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # type: ignore[explicit-override]
        _log.debug(format, *args)


class RpcServer:
    """A listening server; its threads are daemons. Also a context manager that closes."""

    def __init__(self, server: _HttpServer) -> None:
        self._server = server
        self._thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.05}, name="rpc", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """Where other processes reach it, for example ``http://127.0.0.1:40123``."""
        host = self._server.server_name
        return f"http://{socket.gethostname() if host == '0.0.0.0' else host}:{self._server.server_port}"

    def close(self) -> None:
        """Accept no further call. Those in flight go on and are answered. Idempotent."""
        if not self._server.closing:
            self._server.closing = True
            self._server.shutdown()
            self._server.server_close()
            self._server.hang_up()
            self._thread.join()

    def __enter__(self) -> "RpcServer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def serve(handlers: Handlers, *, host: str = "127.0.0.1", port: int = 0) -> RpcServer:
    """Answer calls of ``handlers`` (method name -> callable), each in its own thread.

    Parameters need annotations that ``from_json`` can parse; those with defaults may be left out.
    A RefitError of a handler travels by class; anything else is logged and travels as AttemptFailed.
    ``port`` 0 takes any free one.

    Raises:
        ConfigError: the port is in use, the address is not ours, or a handler cannot be called by name.
    """
    methods = {name: _method(name, handler) for name, handler in handlers.items()}
    try:
        return RpcServer(_HttpServer((host, port), methods))
    except OSError as err:
        if err.errno == errno.EADDRINUSE:
            message = f"port {port} is in use on {host}; choose another or 0 for any free one"
            raise ConfigError(message) from err
        raise ConfigError(f"cannot listen on {host}:{port}: {err.strerror or err}") from err
    except OverflowError as err:
        raise ConfigError(f"port {port} is not in 0 .. 65535") from err
