"""The link of a node to the one server that it reaches, limited by the kernel if it can, or in user space."""

from typing import TypeAlias

from dcr.errors import ConfigError
from dcr_recipes.links.bucket import DEFAULT_BURST_BYTES, TokenBucket
from dcr_recipes.links.kernel import KernelLink, enter, why_not
from dcr_recipes.links.proxy import Proxy
from dcr_recipes.links.shape import MBIT, Shape

Limiter: TypeAlias = str
LIMITERS = ("auto", "tbf", "user")


def choose(limiter: Limiter) -> tuple[Limiter, str]:
    """``tbf`` or ``user``, and what to tell people about it; enters a network namespace for ``tbf``.

    Raises:
        ConfigError: ``tbf`` was asked for and is not allowed here, or it is no limiter.
    """
    if limiter not in LIMITERS:
        raise ConfigError(f"limiter {limiter!r} is not one of {', '.join(LIMITERS)}")
    reason = "" if limiter == "user" else why_not()
    if limiter == "user" or (reason and limiter == "auto"):
        told = f"; tbf in a network namespace is not allowed here: {reason}" if reason else ""
        return "user", f"links: token buckets in user space (TCP proxies){told}"
    if reason:
        raise ConfigError(f"limiter tbf is not allowed here: {reason}; use --limiter user")
    enter()
    return "tbf", "links: tbf of the kernel, in a network namespace of this benchmark's own"


class NodeLink:
    """Full duplex; ``url`` is the server as this node sees it. Unlimited until ``limit`` says otherwise.

    ``number`` is this link's own, from 1. ``delay_s`` is added each way, ``loss`` is a chance per piece of
    up to 64 KiB to lose the connection: both in user space, whatever limits the rate.
    """

    def __init__(
        self,
        number: int,
        port: int,
        *,
        limiter: Limiter = "user",
        burst_bytes: int = DEFAULT_BURST_BYTES,
        delay_s: float = 0.0,
        loss: float = 0.0,
    ) -> None:
        self._kernel = KernelLink(number, burst_bytes) if limiter == "tbf" else None
        shapes = [
            Shape(TokenBucket(burst_bytes=burst_bytes), delay_s=delay_s, loss=loss, seed=2 * number + way)
            for way in (0, 1)
        ]
        listen = self._kernel.address if self._kernel else "127.0.0.1"
        self._proxy = Proxy("127.0.0.1", port, up=shapes[0], down=shapes[1], listen=listen)

    @property
    def url(self) -> str:
        """Where the node finds the server."""
        return self._proxy.url

    def limit(self, mbit_s: float) -> None:
        """Let ``mbit_s`` (10^6 bits a second) pass each way from now on; 0: whatever comes."""
        if self._kernel is not None:
            self._kernel.limit(mbit_s * MBIT)
            return
        for shape in (self._proxy.up, self._proxy.down):
            shape.bucket.set_rate(mbit_s * MBIT)

    def close(self) -> None:
        """End it and every connection."""
        self._proxy.close()
