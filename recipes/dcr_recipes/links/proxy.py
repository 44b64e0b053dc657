"""A TCP proxy of one server: a link with a rate, a delay and losses, which can also be cut on order.

User space: the rate is that of payload bytes above TCP. Buffers of both sockets are kept small, so that a
sender feels the rate and not the memory of the host.
"""

import contextlib
import queue
import socket
import threading
import time

from dcr_recipes.links.shape import Shape

_CHUNK_BYTES = 1 << 16
_BUFFER_BYTES = 1 << 17
_CONNECT_S = 5.0
_MOST_LATE = 4096
"""Pieces that may be on their way in one direction of one connection: 256 MiB, more than any link holds."""


class Proxy:
    """Forwards connections to ``(host, port)`` and back; its threads are daemons.

    ``up`` shapes what goes to the server, ``down`` what comes back. ``cut`` ends all connections and
    refuses new ones for a while. ``lose_answers`` forwards requests but ends the connection where the
    answer would come: the caller cannot know what has happened (P4).
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        up: Shape | None = None,
        down: Shape | None = None,
        listen: str = "127.0.0.1",
    ) -> None:
        self._target = (host, port)
        self._host = listen
        self.up, self.down = up or Shape(), down or Shape()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._cut_until = self._silent_until = 0.0
        self._listener = socket.create_server((listen, 0), backlog=128)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._accept, name="proxy", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where clients reach the server through it."""
        return f"http://{self._host}:{self.port}"

    def cut(self, seconds: float) -> None:
        """End every connection now, and every new one for ``seconds``."""
        self._cut_until = time.monotonic() + seconds
        self._end_all()

    def lose_answers(self, seconds: float) -> None:
        """For ``seconds``, let requests through and no answer back."""
        self._silent_until = time.monotonic() + seconds

    def close(self) -> None:
        """Accept no connection any more and end those that there are."""
        with contextlib.suppress(OSError):  # wakes the thread that accepts
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        self._end_all()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            if time.monotonic() < self._cut_until:
                client.close()
                continue
            threading.Thread(target=self._serve, args=(client,), name="proxied", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = _connect(self._target)
        except OSError:  # the server is down: so is the connection to it
            client.close()
            return
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._open |= {client, server}
        back = threading.Thread(target=self._pump, args=(server, client, True), name="proxied", daemon=True)
        back.start()
        self._pump(client, server, False)
        back.join()
        with self._lock:
            self._open -= {client, server}
        client.close()
        server.close()

    def _pump(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        """Copy until one side ends; then end both, so that the other direction's thread ends too."""
        shape = self.down if is_answer else self.up
        way = _Late(sink, shape) if shape.delay_s else _Prompt(sink)
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK_BYTES):
                if (is_answer and time.monotonic() < self._silent_until) or shape.loses():
                    break
                shape.bucket.take(len(data))
                way.send(data)
        way.close()
        _end(source)
        _end(sink)

    def _end_all(self) -> None:
        with self._lock:
            for each in self._open:
                _end(each)


class _Prompt:
    """Pieces go on at once."""

    def __init__(self, sink: socket.socket) -> None:
        self._sink = sink

    def send(self, data: bytes) -> None:
        """Pass it on; raises OSError when the other side is gone."""
        self._sink.sendall(data)

    def close(self) -> None:
        """Nothing is under way."""


class _Late:
    """Pieces go on ``shape.delay_s`` later, in order, from a thread of their own."""

    def __init__(self, sink: socket.socket, shape: Shape) -> None:
        self._sink = sink
        self._shape = shape
        self._under_way: queue.Queue[tuple[float, bytes]] = queue.Queue(_MOST_LATE)
        self._gone = threading.Event()
        self._thread = threading.Thread(target=self._run, name="delayed", daemon=True)
        self._thread.start()

    def send(self, data: bytes) -> None:
        """Let it arrive later; raises OSError when the other side is gone."""
        if self._gone.is_set():
            raise BrokenPipeError
        self._under_way.put((self._shape.clock() + self._shape.delay_s, data))

    def close(self) -> None:
        """Return when what was sent has arrived."""
        self._under_way.put((0.0, b""))
        self._thread.join()

    def _run(self) -> None:
        while True:
            due, data = self._under_way.get()
            if not data:
                return
            if (wait_s := due - self._shape.clock()) > 0:
                time.sleep(wait_s)
            if not self._gone.is_set():
                try:
                    self._sink.sendall(data)
                except OSError:  # what comes behind it is dropped
                    self._gone.set()


def _connect(target: tuple[str, int]) -> socket.socket:
    server = socket.socket()
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server.settimeout(_CONNECT_S)
        server.connect(target)
        server.settimeout(None)
    except OSError:
        server.close()
        raise
    return server


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
