"""Links: the rate of token buckets on a clock of their own, delays, losses, and the kernel's if allowed."""

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from dcr.errors import ConfigError
from dcr_recipes.links import kernel, node
from dcr_recipes.links.bucket import TokenBucket
from dcr_recipes.links.node import NodeLink, choose
from dcr_recipes.links.proxy import Proxy
from dcr_recipes.links.shape import Shape


class Clock:
    """Time passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def read(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def bucket(clock: Clock, rate: float, burst: int) -> TokenBucket:
    return TokenBucket(rate, burst, clock=clock.read, sleep=clock.sleep)


def test_a_burst_passes_at_once_and_the_rest_at_the_rate(clock: Clock) -> None:
    made = bucket(clock, 100.0, 50)
    made.take(50)
    assert clock.now == 0
    for _ in range(10):
        made.take(100)
    assert clock.now == pytest.approx(10.0)
    clock.now += 1000
    made.take(50)
    made.take(50)
    assert clock.now == pytest.approx(1010.5), "a pause fills the bucket once, no more"


def test_more_than_a_burst_waits_for_what_is_missing(clock: Clock) -> None:
    bucket(clock, 10.0, 5).take(105)
    assert clock.now == pytest.approx(10.0)


def test_a_rate_of_none_is_no_limit_and_can_be_given_later(clock: Clock) -> None:
    made = bucket(clock, 0.0, 10)
    made.take(10**12)
    made.set_rate(10.0)
    made.take(20)
    assert clock.now == pytest.approx(1.0)
    made.set_rate(0.0)
    made.take(10**12)
    assert clock.now == pytest.approx(1.0)


@contextlib.contextmanager
def echo() -> Iterator[int]:
    """A server that sends back what it gets; its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:  # closed
                    return
                with connection, contextlib.suppress(OSError):  # a lost one is followed by others
                    while data := connection.recv(1 << 16):
                        connection.sendall(data)

        threading.Thread(target=serve, daemon=True).start()
        yield int(listener.getsockname()[1])
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)


def send(client: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):  # the link was lost
        client.sendall(data)


def ask(port: int, data: bytes, host: str = "127.0.0.1") -> bytes:
    """What comes back before the connection ends."""
    with socket.create_connection((host, port)) as client, contextlib.suppress(OSError):
        threading.Thread(target=send, args=(client, data), daemon=True).start()
        found = bytearray()
        while len(found) < len(data) and (piece := client.recv(1 << 16)):
            found += piece
        return bytes(found)
    return b""


def test_each_direction_has_its_own_bucket(clock: Clock) -> None:
    other = Clock()
    up, down = Shape(bucket(clock, 1000.0, 0)), Shape(bucket(other, 500.0, 0))
    with echo() as port:
        proxy = Proxy("127.0.0.1", port, up=up, down=down)
        assert ask(proxy.port, b"x" * 5000) == b"x" * 5000
        assert ask(proxy.port, b"y" * 5000) == b"y" * 5000
        proxy.close()
    assert clock.now == pytest.approx(10.0), "both connections share it"
    assert other.now == pytest.approx(20.0)


def test_a_delay_keeps_order_and_lets_many_pieces_travel_at_once() -> None:
    """Each way takes at least its delay; pieces do not wait for one another."""
    seen: list[float] = []

    def late() -> float:
        seen.append(0.0)
        return 0.0

    shape = Shape(delay_s=0.02, clock=late)
    data = bytes(range(256)) * 4096
    with echo() as port:
        proxy = Proxy("127.0.0.1", port, up=shape)
        assert ask(proxy.port, data) == data
        proxy.close()
    assert len(seen) >= 2 * (len(data) >> 16), "every piece was stamped when it came and looked at again"


def test_a_loss_ends_the_connection_in_the_midst_and_the_next_one_gets_through() -> None:
    lossy = Shape(loss=0.5, seed=3)
    with echo() as port:
        proxy = Proxy("127.0.0.1", port, down=lossy)
        lengths = [len(ask(proxy.port, b"x" * (1 << 20))) for _ in range(8)]
        proxy.close()
    assert min(lengths) < 1 << 20
    assert [Shape(loss=0.0).loses() for _ in range(3)] == [False] * 3
    again, same = Shape(loss=0.5, seed=4), Shape(loss=0.5, seed=4)
    assert [again.loses() for _ in range(64)] == [same.loses() for _ in range(64)]
    assert all(Shape(loss=1.0).loses() for _ in range(8))


def test_a_closed_link_leaves_no_thread_and_no_listener() -> None:
    before = set(threading.enumerate())
    with echo() as port:
        link = NodeLink(1, port, delay_s=0.001)
        at = int(link.url.rpartition(":")[2])
        link.limit(8000.0)
        assert ask(at, b"hello") == b"hello"
        link.close()
        with pytest.raises(ConnectionError):
            socket.create_connection(("127.0.0.1", at), timeout=1).close()
    for thread in set(threading.enumerate()) - before:
        thread.join(5)
        assert not thread.is_alive(), thread


def test_what_limits_is_chosen_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose("user") == ("user", "links: token buckets in user space (TCP proxies)")
    monkeypatch.setattr(node, "why_not", lambda: "no rights")
    chosen, told = choose("auto")
    assert chosen == "user"
    assert told.endswith("is not allowed here: no rights")
    with pytest.raises(ConfigError, match="tbf is not allowed here: no rights; use --limiter user"):
        choose("tbf")
    with pytest.raises(ConfigError, match="'netem' is not one of auto, tbf, user"):
        choose("netem")


def test_a_namespace_is_not_entered_beside_threads() -> None:
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    try:
        with pytest.raises(ConfigError, match="before threads"):
            kernel.enter()
    finally:
        ended.set()
        thread.join()


KERNEL = """
import subprocess, time
from dcr_recipes.links.node import NodeLink, choose
from tests.unit.test_links import ask, echo
assert choose("tbf")[0] == "tbf"
with echo() as port:
    fast, slow = (NodeLink(n, port, limiter="tbf", burst_bytes=1 << 17) for n in (1, 2))
    slow.close()
    slow = NodeLink(2, port, limiter="tbf", burst_bytes=1 << 17)  # the number may be taken again
    slow.limit(8.0)
    for link in (fast, slow):
        host, _, at = link.url.removeprefix("http://").partition(":")
        start = time.monotonic()
        assert ask(int(at), b"x" * (1 << 20), host) == b"x" * (1 << 20)
        print(time.monotonic() - start)
print(subprocess.run(["tc", "-s", "qdisc"], capture_output=True, text=True).stdout)
"""


@pytest.mark.skipif(bool(kernel.why_not()), reason="no network namespaces here")
def test_the_kernel_limits_one_link_and_not_the_other() -> None:
    done = subprocess.run([sys.executable, "-c", KERNEL], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    _fast, slow, *told = done.stdout.splitlines()
    assert float(slow) > 0.8, "1 MiB at 1 MB/s, less a burst: no clock makes that faster"
    assert any("tbf" in line and "8Mbit" in line for line in told), told
