"""An inference server answers under a serving lease: ASGI middleware for any of them (DESIGN P11, R15, R19).

Whoever renews the lease lends the rest of it to the server (``EngineServer.lend``), which looks at its own
clock: it stops by itself when that process is gone or suspended, or when it was suspended itself. A lease
is of one start of the server: one that was started anew has nothing proven. Control routes need no lease; an
adapter says which these are.
"""

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any, TypeAlias
from uuid import uuid4

from dcr.receiver.lease import serving_clock

ROUTE = "/dcr/lease"
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]

_LATER = 1013
"""Close code of a websocket: try again later."""
_LOOK_S = 0.2
"""Between two looks of a request in flight at its lease."""
_NO_LEASE = {
    "message": "no serving lease here now; ask another instance",
    "type": "ServiceUnavailable",
    "code": 503,
}


class ServingLease:
    """ASGI middleware; no lease at first.

    ``control``: paths that compute nothing with the weights; every other one needs the lease.
    ``clock`` goes on while the machine is suspended.
    """

    def __init__(
        self, app: App, control: Collection[str], clock: Callable[[], float] = serving_clock
    ) -> None:
        self._app = app
        self._control = frozenset(control)
        self._clock = clock
        self._until = float("-inf")
        self._start = uuid4().hex

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Entry point of ASGI."""
        path = str(scope.get("path", "")).removeprefix(str(scope.get("root_path", "")))
        if scope["type"] == "http" and path == ROUTE:
            await self._lend(scope, receive, send)
        elif scope["type"] not in ("http", "websocket") or path in self._control:
            await self._app(scope, receive, send)
        else:
            await self._under_lease(scope, receive, send)

    def _valid(self) -> bool:
        return self._clock() < self._until

    async def _lend(self, scope: Message, receive: Receive, send: Send) -> None:
        """GET: this server's clock and start. POST: the end by that clock; replaces what was lent before."""
        if scope["method"] == "POST":
            try:
                asked = json.loads(await _body(receive))
                until, start = float(asked["until"]), asked["start"]
                if not math.isfinite(until):
                    raise ValueError("a lease ends")
            except (ValueError, TypeError, KeyError):
                await _answer(send, 400, {"message": 'the body must be {"until": seconds, "start": text}'})
                return
            if start != self._start:
                await _answer(send, 409, {"message": "this server was started after the one that is meant"})
                return
            self._until = until
        await _answer(send, 200, {"clock": self._clock(), "start": self._start})

    async def _under_lease(self, scope: Message, receive: Receive, send: Send) -> None:
        if not self._valid():
            await _refuse(scope, receive, send)
            return
        exchange = _Exchange(self._valid, scope, receive, send)
        try:
            await self._app(scope, exchange.receive, exchange.send)
        finally:
            await exchange.end()


class _Exchange:
    """One request: nothing leaves after the lease's end; what has begun is cut off, as if the client left.

    To be ended by ``end``.
    """

    def __init__(self, valid: Callable[[], bool], scope: Message, receive: Receive, send: Send) -> None:
        self._valid = valid
        self._is_http = scope["type"] == "http"
        self._receive = receive
        self._send = send
        self._lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._next: asyncio.Future[Message] | None = None
        """What the client says next, once somebody has asked. If that one is cancelled, the next gets it."""
        self._begun = False
        self._watching = asyncio.ensure_future(self._watch())

    async def receive(self) -> Message:
        """What the client says; that it has disconnected, once the lease was missed.

        Without a pause if it is known: Starlette's ``is_disconnected`` takes no other answer.
        """
        while not self._lost.done():
            said = self._next or self._listen()
            if said.done():
                return self._taken(said)
            await asyncio.wait((self._lost, said), return_when=asyncio.FIRST_COMPLETED)
        return (
            {"type": "http.disconnect"} if self._is_http else {"type": "websocket.disconnect", "code": _LATER}
        )

    async def send(self, message: Message) -> None:
        """Pass ``message`` on, or end the exchange."""
        if self._lost.done():
            return
        if self._valid():
            self._begun = True
            await self._send(message)
            return
        await self._lose()

    async def end(self) -> None:
        """The application has answered: nothing is heard or said any more."""
        if not self._lost.done():
            self._lost.set_result(None)
        if self._next is not None:
            self._next.cancel()
            await asyncio.gather(self._next, return_exceptions=True)
        await asyncio.gather(self._watching, return_exceptions=True)  # which may be saying why

    def _listen(self) -> asyncio.Future[Message]:
        self._next = asyncio.ensure_future(self._receive())
        return self._next

    def _taken(self, said: asyncio.Future[Message]) -> Message:
        self._next = None
        message = said.result()
        if message["type"].endswith(".disconnect"):
            self._next = said  # and nothing else any more
        elif self._is_http and not message.get("more_body"):
            self._listen()  # ahead: only the end can follow, and whoever polls for it does not wait
        return message

    async def _watch(self) -> None:
        """End the exchange soon after its lease, whose engine may be paused and say nothing any more."""
        while self._valid() and not self._lost.done():
            await asyncio.wait((self._lost,), timeout=_LOOK_S)
        if not self._lost.done():
            await self._lose()

    async def _lose(self) -> None:
        self._lost.set_result(None)
        if not self._is_http:
            await self._send({"type": "websocket.close", "code": _LATER})
        elif not self._begun:
            await _answer(self._send, 503, {"error": _NO_LEASE})


async def _refuse(scope: Message, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": _LATER})
    else:
        await _answer(send, 503, {"error": _NO_LEASE})


async def _body(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += bytes(message.get("body", b""))
        if not message.get("more_body"):
            return body


async def _answer(send: Send, status: int, content: dict[str, Any]) -> None:
    data = json.dumps(content).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": data})
