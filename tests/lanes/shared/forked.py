"""An engine without scheduler and cache: forked ranks with a framework's real model answer DCR's calls.

The framework is imported once, in the test's process; a world of two ranks is up in a few seconds. ``World``
is an ``EngineControl``, so what is tested is the path of a real engine: front, JSON, worker, loader.
"""

import json
import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from dcr.model import from_json
from dcr.receiver.ports import NativeLoader
from dcr.receiver.workers.messages import Answer, Calls, Greeting
from dcr.receiver.workers.rank_server import MakeRank, RankServer, local_rank

Extra = Callable[[Any, str], str]
"""A test's own function in a rank: its loader and one argument, to JSON text."""
_ANSWER_S = 240


@dataclass(slots=True)
class World:
    """Ranks of one engine. ``extra`` runs a test's own function in every rank, by its name."""

    pipes: list[Connection]
    paused: int = 0
    versions: list[str] = field(default_factory=list)

    def call_workers(self, calls: str) -> list[dict[str, Any]]:
        """See ``EngineControl``."""
        return [json.loads(text) for text in self._everybody("call", calls)]

    def extra(self, name: str, argument: str = "") -> list[Any]:
        """What each rank's function of that name answers; raises if one failed."""
        return [json.loads(text) for text in self._everybody(name, argument)]

    def pause(self) -> None:
        """See ``EngineControl``; nothing runs here."""

    def resume(self) -> None:
        """See ``EngineControl``."""

    def reset_caches(self) -> None:
        """See ``EngineControl``."""

    def set_version(self, version: str) -> None:
        """See ``EngineControl``."""
        self.versions.append(version)

    def require_ready(self) -> None:
        """Every rank has loaded its model."""
        for pipe in self.pipes:
            ok, text = self._answer(pipe)
            assert ok, text

    def _everybody(self, name: str, argument: str) -> list[str]:
        for pipe in self.pipes:
            pipe.send_bytes(json.dumps([name, argument]).encode())
        answers = [self._answer(pipe) for pipe in self.pipes]
        if failed := [text for ok, text in answers if not ok]:
            raise AssertionError("\n".join(failed))
        return [text for _, text in answers]

    def _answer(self, pipe: Connection) -> tuple[bool, str]:
        assert pipe.poll(_ANSWER_S), "a rank does not answer"
        ok, text = json.loads(pipe.recv_bytes())
        return ok, text


@dataclass(frozen=True, slots=True)
class Body:
    """What each of ``num_ranks`` processes does: ``load`` by rank, then calls, then ``leave``."""

    num_ranks: int
    load: Callable[[int], NativeLoader]
    leave: Callable[[], None]
    make_rank: MakeRank = local_rank
    extra: Mapping[str, Extra] = field(default_factory=dict)


@contextmanager
def forked(body: Body) -> Iterator[World]:
    """Ranks that have loaded their model; ended afterwards."""
    fork = multiprocessing.get_context("fork")
    pipes, ranks = [], []
    for rank in range(body.num_ranks):
        ours, theirs = fork.Pipe()
        process = fork.Process(target=_run, args=(body, rank, theirs), daemon=True)
        process.start()
        theirs.close()
        pipes.append(ours)
        ranks.append(process)
    try:
        found = World(pipes)
        found.require_ready()
        yield found
    finally:
        for pipe in pipes:
            with suppress(OSError):  # it died; else forked siblings hold its other end open
                pipe.send_bytes(json.dumps(["stop", ""]).encode())
        for process in ranks:
            process.join(20)
            process.kill()
            process.join()
        for pipe in pipes:
            pipe.close()


def free_port() -> int:
    """For ranks to meet at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _run(body: Body, rank: int, pipe: Connection) -> None:
    """Body of a forked rank: load, then answer until it is told to stop."""
    try:
        loader = body.load(rank)
    except BaseException:  # noqa: BLE001 -- the test's process reports it
        pipe.send_bytes(json.dumps([False, traceback.format_exc()]).encode())
        os._exit(1)
    greeting = Greeting(rank, body.num_ranks, os.getpid(), "cpu")
    server = RankServer(loader, greeting, make_rank=body.make_rank)
    pipe.send_bytes(json.dumps([True, "ready"]).encode())
    while True:
        name, argument = json.loads(pipe.recv_bytes())
        if name == "stop":
            body.leave()
            os._exit(0)  # nothing that it inherited from the test's process may be torn down by it
        pipe.send_bytes(json.dumps(_do(body, server, loader, name, argument)).encode())


def _do(body: Body, server: RankServer, loader: NativeLoader, name: str, argument: str) -> tuple[bool, str]:
    try:
        if name == "call":
            rank = server.rank
            call = from_json(Calls, argument).get(str(rank))
            answer = Answer(rank, asked=False) if call is None else server.answer(call)
            return True, json.dumps(asdict(answer))
        return True, body.extra[name](loader, argument)
    except BaseException:  # noqa: BLE001 -- the test's process reports it
        return False, traceback.format_exc()
