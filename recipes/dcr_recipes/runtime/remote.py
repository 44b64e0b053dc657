"""A serving process from outside: ``RuntimeWorker``'s methods over HTTP."""

import threading

from dcr.errors import Unreachable
from dcr.transport.peers import Peers
from dcr.transport.rpc import Client
from dcr_recipes.runtime.answers import GenerateAnswer, ProbeAnswer, RuntimeStatus

_STATUS_S = 10.0


class RemoteRuntime:
    """The instance called ``name``, wherever it listens now; safe to share between threads.

    Every method raises Unreachable if it is down or did not answer within ``timeout_s``.
    """

    def __init__(self, peers: Peers, name: str, *, timeout_s: float = 120.0) -> None:
        self.name = name
        self._peers = peers
        self._timeout_s = timeout_s
        self._client: Client | None = None
        self._lock = threading.Lock()

    def generate(
        self, *, prompts: list[list[int]], seeds: list[list[int]], max_new_tokens: int, temperature: float
    ) -> GenerateAnswer:
        """See ``RuntimeWorker.generate``."""
        return self._found().call(
            "generate",
            GenerateAnswer,
            prompts=prompts,
            seeds=seeds,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
        )

    def probe(self, *, prompt: list[int], max_new_tokens: int, fresh: bool) -> ProbeAnswer:
        """See ``RuntimeWorker.probe``."""
        return self._found().call(
            "probe", ProbeAnswer, prompt=prompt, max_new_tokens=max_new_tokens, fresh=fresh
        )

    def status(self) -> RuntimeStatus:
        """See ``RuntimeWorker.status``: it never waits, so one that is stopped is noticed soon."""
        return self._found().call("status", RuntimeStatus, deadline_s=min(self._timeout_s, _STATUS_S))

    def dump(self, path: str, share: float = 1.0, sample: str = "") -> int:
        """See ``RuntimeWorker.dump``."""
        return self._found().call("dump", int, path=path, share=share, sample=sample)

    def load_dense(self, path: str, version: int) -> RuntimeStatus:
        """See ``RuntimeWorker.load_dense``."""
        return self._found().call("load_dense", RuntimeStatus, path=path, version=version)

    def close(self) -> None:
        """Close idle connections; the next call opens new ones."""
        with self._lock:
            if self._client is not None:
                self._client.close()
            self._client = None

    def _found(self) -> Client:
        """A client of the latest announced address: a restarted process has another port."""
        peer = self._peers.find(self.name)
        if peer is None:
            raise Unreachable(f"{self.name} has not announced where it listens")
        with self._lock:
            if self._client is None or self._client.url != peer.url:
                # The old client is not closed: another thread may still wait for an answer on it.
                self._client = Client(peer.url, self._timeout_s)
            return self._client
