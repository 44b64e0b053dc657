"""An engine without scheduler and cache: forked ranks that hold vLLM's real model and answer DCR's calls.

vLLM is imported once, in the test's process; a world of two ranks is up in a few seconds. ``World`` is
an ``EngineControl``, so what is tested here is the path of a real engine: front, JSON, worker, loader.
"""

import json
import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch

from dcr.model import from_json
from dcr.receiver.workers.messages import Answer, Calls, Greeting
from dcr.receiver.workers.rank_server import MakeRank, RankServer, local_rank
from dcr_adapters.vllm import keep_unpacked, plugin
from dcr_adapters.vllm.loader import VllmLoader

Extra = Callable[[VllmLoader, str], str]
_ANSWER_S = 240


@dataclass(frozen=True, slots=True)
class Layout:
    """How many ranks a model is spread over, and how its experts are."""

    tp: int = 1
    pp: int = 1
    ep: bool = False
    replicas: int = 0

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.tp * self.pp

    @property
    def name(self) -> str:
        """For people."""
        further = [("pp", self.pp > 1), ("ep", self.ep), ("eplb", self.replicas > 0)]
        return "-".join([f"tp{self.tp}", *(word for word, holds in further if holds)])

    def options(self) -> dict[str, Any]:
        """Arguments of the engine."""
        found: dict[str, Any] = {"tensor_parallel_size": self.tp, "pipeline_parallel_size": self.pp}
        if self.ep or self.replicas:
            found["enable_expert_parallel"] = True
        if self.replicas:
            found |= {"enable_eplb": True, "eplb_config": {"num_redundant_experts": self.replicas}}
        return found


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


@contextmanager
def world(
    model: Path,
    layout: Layout,
    *,
    keep: bool = True,
    make_rank: MakeRank = local_rank,
    extra: dict[str, Extra] | None = None,
    **options: Any,
) -> Iterator[World]:
    """Ranks that have loaded ``model``; ended afterwards. ``keep`` false is stock vLLM."""
    config = _config(model, layout, options)
    port, identity = _free_port(), f"dcr-lane-{uuid4().hex[:12]}"
    fork = multiprocessing.get_context("fork")
    pipes, ranks = [], []
    for rank in range(layout.world):
        ours, theirs = fork.Pipe()
        body = _Rank(rank, layout, config, (port, identity), keep, make_rank, extra or {})
        process = fork.Process(target=body.run, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        pipes.append(ours)
        ranks.append(process)
    try:
        found = World(pipes)
        for pipe in pipes:
            ok, text = found._answer(pipe)
            assert ok, text
        yield found
    finally:
        for pipe in pipes:
            pipe.send_bytes(json.dumps(["stop", ""]).encode())  # forked siblings hold its other end open
        for process in ranks:
            process.join(20)
            process.kill()
        for left in Path("/dev/shm").glob(f"{identity}-*"):  # vLLM's ranks leave their mailbox behind
            left.unlink()


@dataclass(frozen=True, slots=True)
class _Rank:
    rank: int
    layout: Layout
    config: Any
    meeting: tuple[int, str]
    keep: bool
    make_rank: MakeRank
    extra: dict[str, Extra]

    def run(self, pipe: Connection) -> None:
        """Body of a forked rank: load, then answer until the pipe is closed."""
        try:
            loader = self._load()
        except BaseException:  # noqa: BLE001 -- the test's process reports it
            pipe.send_bytes(json.dumps([False, traceback.format_exc()]).encode())
            os._exit(1)
        greeting = Greeting(self.rank, self.layout.world, os.getpid(), "cpu")
        server = RankServer(loader, greeting, make_rank=self.make_rank)
        pipe.send_bytes(json.dumps([True, "ready"]).encode())
        while True:
            name, argument = json.loads(pipe.recv_bytes())
            if name == "stop":
                _leave()
            pipe.send_bytes(json.dumps(self._do(server, loader, name, argument)).encode())

    def _do(self, server: RankServer, loader: VllmLoader, name: str, argument: str) -> tuple[bool, str]:
        try:
            if name == "call":
                call = from_json(Calls, argument).get(str(self.rank))
                answer = Answer(self.rank, asked=False) if call is None else server.answer(call)
                return True, json.dumps(asdict(answer))
            return True, self.extra[name](loader, argument)
        except BaseException:  # noqa: BLE001 -- the test's process reports it
            return False, traceback.format_exc()

    def _load(self) -> VllmLoader:
        from vllm.config import set_current_vllm_config
        from vllm.distributed import init_distributed_environment, initialize_model_parallel
        from vllm.model_executor.model_loader import get_model

        port, os.environ["VLLM_DIST_IDENT"] = self.meeting
        os.environ[keep_unpacked.SWITCH] = "1" if self.keep else "0"
        torch.set_num_threads(1)
        plugin.register()
        with set_current_vllm_config(self.config):
            init_distributed_environment(
                self.layout.world, self.rank, f"tcp://127.0.0.1:{port}", self.rank, backend="gloo"
            )
            initialize_model_parallel(self.layout.tp, self.layout.pp)
            return VllmLoader(get_model(vllm_config=self.config), self.config)


def _leave() -> None:
    """End a rank at once: nothing that it inherited from the test's process may be torn down by it."""
    from vllm.distributed.parallel_state import destroy_distributed_environment, destroy_model_parallel

    destroy_model_parallel()
    destroy_distributed_environment()
    os._exit(0)


def _config(model: Path, layout: Layout, options: dict[str, Any]) -> Any:
    from vllm.engine.arg_utils import EngineArgs

    torch.accelerator.empty_cache = lambda: None
    torch.accelerator.synchronize = lambda *_: None
    with _balanced(layout):
        return EngineArgs(
            model=str(model),
            dtype="bfloat16",
            max_model_len=256,
            enforce_eager=True,
            **layout.options(),
            **options,
        ).create_engine_config()


@contextmanager
def _balanced(layout: Layout) -> Iterator[None]:
    """vLLM allows redundant experts on CUDA alone when it checks arguments; the loader needs no device."""
    from vllm.platforms import current_platform

    kind = type(current_platform)
    stock = kind.is_cuda_alike
    if layout.replicas:
        kind.is_cuda_alike = lambda _: True
    try:
        yield
    finally:
        kind.is_cuda_alike = stock


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
