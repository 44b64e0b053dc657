"""Trainer nodes, rollout nodes, their links and a store: everything that a refit needs, on this machine."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dcr.errors import IntegrityError
from dcr.testing.s3_server import S3Server
from dcr_recipes.bench.refit_processes import Started, all_of, scratch_environment
from dcr_recipes.bench.refit_setup import Setup
from dcr_recipes.links.node import NodeLink
from dcr_recipes.trace.accounting import Accounting, account
from dcr_recipes.trace.files import Tail


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """``mbit`` each way of every node's link, 0: no limit. See ``dcr_recipes.links.node.NodeLink``."""

    mbit: float
    limiter: str = "user"
    delay_ms: float = 0.0
    loss: float = 0.0


@dataclass(frozen=True, slots=True)
class Refitted:
    """One refit as it was measured. ``pauses_s``: how long each instance's gate was shut."""

    accounting: Accounting
    num_changed: int
    num_elements: int
    num_payloads: int
    payload_bytes: int
    wall_s: float
    pauses_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Reference:
    """The transport-only full checkpoint: every trainer uploads its share, then every node downloads all."""

    upload_s: float
    download_s: float
    num_bytes: int

    @property
    def seconds(self) -> float:
        """Of both."""
        return self.upload_s + self.download_s


class Cluster:
    """Made by ``cluster``, with v0 committed and served everywhere, and links still unlimited."""

    def __init__(self, setup: Setup, links: list[NodeLink], options: LinkOptions) -> None:
        self.setup = setup
        self._links = links
        self._options = options
        self.owners: list[Started] = []
        self.nodes: list[Started] = []
        self._coordinator: Started | None = None
        self._tail = Tail(setup.folder.trace)
        self._step = 0

    def start(self, stack: ExitStack) -> None:
        """Start every process and have every instance restored, one at a time: a restore takes memory."""
        views = [self.setup.seen_through(link.url) for link in self._links] or [self.setup] * (
            self.setup.num_owners + self.setup.num_nodes
        )
        self._coordinator = self._begun(stack, "coordinator", 0, self.setup)
        self.owners = [self._begun(stack, "owner", i, views[i]) for i in range(self.setup.num_owners)]
        all_of(self.owners, "open")
        for i in range(self.setup.num_nodes):
            node = self._begun(stack, "runtime", i, views[self.setup.num_owners + i])
            self.nodes.append(node)
            all_of([node], "start")
        self._tail.take()

    def limit(self) -> None:
        """From now on the links are what they are to be."""
        for link in self._links:
            link.limit(self._options.mbit)

    def refit(self, rate: float) -> Refitted:
        """Change about ``rate`` of the elements, untimed, and refit."""
        self._step += 1
        all_of(self.owners, "change", rate=rate, seed=self._step)
        reports, wall_s = all_of(self.owners, "sync", step=self._step)
        report: dict[str, Any] = reports[0]
        (accounting,) = account(self._tail.take())
        pauses = [max(found) for found in all_of(self.nodes, "pauses")[0] if found]
        return Refitted(
            accounting=accounting,
            num_changed=report["num_changed"],
            num_elements=report["num_elements"],
            num_payloads=report["num_payloads"],
            payload_bytes=report["payload_bytes"],
            wall_s=wall_s,
            pauses_s=tuple(pauses),
        )

    def reference(self) -> Reference:
        """Move a full checkpoint once, through the same links."""
        uploaded, upload_s = all_of(self.owners, "upload", prefix=f"{self.setup.run}/reference")
        keys = [key for names, _ in uploaded for key in names]
        num_bytes = sum(size for _, size in uploaded)
        fetched, download_s = all_of(self.nodes, "download", keys=keys)
        if any(size != num_bytes for size in fetched):
            raise IntegrityError(f"{num_bytes} bytes were uploaded, nodes fetched {fetched}")
        store = self.setup.store()
        for key in keys:
            store.delete(key)
        return Reference(upload_s, download_s, num_bytes)

    def prove(self) -> int:
        """Compare every resident bit of every instance with the committed version, by digest; instances.

        Raises:
            IntegrityError: one differs.
        """
        wanted = all_of(self.owners[:1], "table")[0][0]
        for node in self.nodes:
            if all_of([node], "table")[0][0] != wanted:
                raise IntegrityError(f"{node.name} does not hold the committed version")
        return len(self.nodes)

    def peaks(self) -> dict[str, int]:
        """Largest resident set of each process, in bytes."""
        return self._by_name("peak")

    def forget_peaks(self) -> dict[str, int]:
        """Let peaks begin anew; the resident set of each process now, in bytes."""
        return self._by_name("forget_peak")

    def _by_name(self, call: str) -> dict[str, int]:
        running = [*self.owners, *self.nodes, *([self._coordinator] if self._coordinator else [])]
        return {process.name: all_of([process], call)[0][0] for process in running}

    def _begun(self, stack: ExitStack, role: str, index: int, setup: Setup) -> Started:
        process = Started(role, index, setup)
        stack.callback(process.end)
        return process


@contextmanager
def cluster(setup: Setup, options: LinkOptions, *, through_s3: bool) -> Iterator[Cluster]:
    """Run one inside the block."""
    scratch_environment()
    folder = setup.folder
    for path in (folder.endpoints, folder.store, folder.trackers, folder.trace):
        Path(path).mkdir(parents=True)
    with ExitStack() as stack:
        links: list[NodeLink] = []
        if through_s3:
            server = S3Server(folder.s3)
            stack.callback(server.close)
            server.start()
            setup = replace(setup, address=replace(server.address, patience_s=600.0))
            links = _links(stack, options, setup, int(server.address.endpoint.rpartition(":")[2]))
        made = Cluster(setup, links, options)
        made.start(stack)
        made.limit()
        yield made


def _links(stack: ExitStack, options: LinkOptions, setup: Setup, port: int) -> list[NodeLink]:
    found = []
    for number in range(setup.num_owners + setup.num_nodes):
        link = NodeLink(
            number + 1,
            port,
            limiter=options.limiter,
            delay_s=options.delay_ms / 1000,
            loss=options.loss,
        )
        stack.callback(link.close)
        found.append(link)
    return found


def new_run() -> str:
    """An id that no other run has."""
    return os.urandom(16).hex()
