"""A TCP proxy of one server, which can refuse, cut, and swallow answers."""

import contextlib
import socket
import threading
import time

_CHUNK_BYTES = 1 << 16
_CONNECT_S = 5.0


class Proxy:
    """Forwards connections to ``(host, port)`` and back; its threads are daemons.

    ``cut`` ends all connections and refuses new ones for a while. ``lose_answers`` forwards requests
    but ends the connection where the answer would come: the caller cannot know what has happened (P4).
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._cut_until = self._silent_until = 0.0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    @property
    def url(self) -> str:
        """Where clients reach the server through it."""
        return f"http://127.0.0.1:{self.port}"

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
            server = socket.create_connection(self._target, timeout=_CONNECT_S)
        except OSError:  # the server is down: so is the connection to it
            client.close()
            return
        server.settimeout(None)
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
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK_BYTES):
                if is_answer and time.monotonic() < self._silent_until:
                    break
                sink.sendall(data)
        _end(source)
        _end(sink)

    def _end_all(self) -> None:
        with self._lock:
            for each in self._open:
                _end(each)


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
