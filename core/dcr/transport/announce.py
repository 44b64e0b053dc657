"""A process that stays findable: its entry in the register is put back when it is gone."""

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import closing

import httpx

from dcr.errors import ConfigError, PayloadError, RefitError, StoreError, Unreachable
from dcr.model import new_nonce
from dcr.transport.peers import Peer, Peers
from dcr.transport.rpc import Client, RpcServer, serve

logger = logging.getLogger(__name__)
LOOK_AGAIN_S = 1.0
_ANSWER_S = 2.0


class Announcement:
    """An entry of the register that is kept until ``close``: ``server`` answers under ``peer.name``.

    It is written at once, whoever was there before. Later it is written again where it is missing,
    or where a process that is gone has overwritten it; a living successor keeps its place.
    """

    def __init__(self, peers: Peers, peer: Peer, server: RpcServer) -> None:
        self._peers = peers
        self._peer = peer
        self._server = server
        self._closed = threading.Event()
        peers.publish(peer.name, peer.url, peer.incarnation)
        threading.Thread(target=self._keep, name=f"announce {peer.name}", daemon=True).start()

    @property
    def url(self) -> str:
        """Where this process answers."""
        return self._peer.url

    def look(self) -> None:
        """Put the entry back if it is missing or its process is gone.

        Raises:
            StoreError: the register cannot be read or written.
        """
        peer = self._peer
        try:
            found = self._peers.find(peer.name)
        except PayloadError:
            found = None  # no entry that anybody could use
        if found == peer or (found is not None and not is_gone(found)):
            return
        self._peers.publish(peer.name, peer.url, peer.incarnation)
        logger.warning("%s was not announced any more and is again", peer.name)

    def close(self) -> None:
        """Answer no more calls and leave the entry as it is. Idempotent."""
        self._closed.set()
        self._server.close()

    def _keep(self) -> None:
        while not self._closed.wait(LOOK_AGAIN_S):
            try:
                self.look()
            except StoreError as err:
                logger.warning("%s: %s", self._peer.name, err)
            except Exception:  # the thread's border: without it the entry would stay lost
                logger.warning("%s: looking failed, trying again", self._peer.name, exc_info=True)


def announce(
    peers: Peers,
    name: str,
    handlers: Mapping[str, Callable[..., object]],
    *,
    port: int = 0,
    incarnation: str | None = None,
) -> Announcement:
    """Serve ``handlers`` under ``name``; from now on others find this process. See ``rpc.serve``.

    Raises:
        ConfigError: the port is in use, or the name is none.
    """
    life = incarnation or new_nonce()
    server = serve({**handlers, **identity(life)}, port=port)
    return Announcement(peers, Peer(name, server.url, life), server)


def identity(incarnation: str) -> dict[str, Callable[..., object]]:
    """The method by which others see who answers at an address."""

    def own() -> str:
        return incarnation

    return {"incarnation": own}


def is_gone(peer: Peer) -> bool:
    """Whether nobody, or another process, answers at the address that ``peer`` announced.

    One that does not answer in time may be stopped or busy: it is not gone.
    """
    try:
        with closing(Client(peer.url)) as client:
            return client.call("incarnation", str, deadline_s=_ANSWER_S) != peer.incarnation
    except Unreachable as err:
        return isinstance(err.__cause__, httpx.ConnectError)
    except (ConfigError, PayloadError):  # it is no address, or somebody else took the port over
        return True
    except RefitError:
        return False
