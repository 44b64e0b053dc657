"""The processes of the refit benchmark, each of which answers calls of the benchmark one after the other."""

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from dcr import observe
from dcr.errors import RefitError
from dcr.model import AuditTable
from dcr.refit import Refit, await_record, compose_receiver, coordinate
from dcr.transport.announce import announce
from dcr_recipes.bench.data import Relative
from dcr_recipes.bench.refit_model import RowShards
from dcr_recipes.bench.refit_setup import DEADLINE_S, Setup
from dcr_recipes.trace.writer import recording

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from dcr.receiver.agent import ReceiverAgent

_PIECE_BYTES = 64 << 20
Calls: TypeAlias = Mapping[str, Callable[..., object]]


def serve_calls(pipe: "Connection", calls: Calls) -> None:
    """Answer ``(name, arguments)`` by ``(True, answer)`` or ``(False, words)`` until its end."""
    while True:
        try:
            name, arguments = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer: tuple[bool, object] = True, calls[name](**arguments)
        except Exception as err:  # noqa: BLE001 -- the process's border: the benchmark reports it
            answer = False, f"{type(err).__name__}: {err}"
        pipe.send(answer)


class _Process(Protocol):
    """What answers calls."""

    def calls(self) -> Calls:
        """By name."""
        ...

    def close(self) -> None:
        """End it."""
        ...


def run_process(pipe: "Connection", role: str, index: int, setup: Setup) -> None:
    """Be one process: ``owner``, ``runtime`` or ``coordinator``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the benchmark ends it
    makers: Mapping[str, Callable[[int, Setup], _Process]] = {
        "owner": Owner, "runtime": Node, "coordinator": Coordination,
    }  # fmt: skip
    name = role if role == "coordinator" else f"{role}-{index}"
    with recording(setup.folder, name, 1, trace=True), ExitStack() as stack:
        process = makers[role](index, setup)
        stack.callback(process.close)
        serve_calls(pipe, {**process.calls(), "peak": peak_bytes, "forget_peak": forget_peak})


def peak_bytes() -> int:
    """Largest resident set of this process so far."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return 0


def forget_peak() -> int:
    """Let the peak begin anew; the resident set now, in bytes."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return peak_bytes()


class Owner:
    """A trainer rank with its shards and trackers."""

    def __init__(self, index: int, setup: Setup) -> None:
        import torch  # the baseline compares with whatever is installed; its threads are not ours

        torch.set_num_threads(1)
        from dcr_recipes.bench.apply_model import specs_of

        self._index = index
        self._setup = setup
        self._store = setup.store()
        self._source = RowShards(specs_of(setup.shape()), index, setup.num_owners)
        trackers = setup.folder.trackers / f"rank-{index}"
        self._refit = Refit.compose(
            setup.config(), setup.site(self._store), source=self._source, rank=index, trackers=trackers
        )
        self._rates: dict[float, float] = {}

    def calls(self) -> Calls:
        """By name."""
        return {call.__name__: call for call in (self.open, self.change, self.sync, self.upload, self.table)}

    def open(self) -> int:
        """Create the run with the random weights as v0."""
        return self._refit.open(resume=False).version

    def change(self, rate: float, seed: int) -> int:
        """Change about ``rate`` of this rank's elements; how many changed."""
        if rate not in self._rates:
            self._rates[rate] = Relative(rate).drawn_rate
        return self._source.change(self._rates[rate], 1000 * seed + self._index)

    def sync(self, step: int) -> dict[str, Any]:
        """One refit."""
        report = self._refit.sync(step)
        return {
            "version": report.record.version,
            "num_changed": report.num_changed,
            "num_elements": report.num_elements,
            "num_payloads": report.num_payloads,
            "payload_bytes": report.payload_bytes,
            "seconds": report.seconds,
        }

    def upload(self, prefix: str) -> tuple[list[str], int]:
        """Store this rank's share of the checkpoint; its objects and their bytes."""
        keys, num_bytes = [], 0
        for number, piece in enumerate(self._source.pieces(_PIECE_BYTES)):
            keys.append(f"{prefix}/{self._index}/{number}")
            self._store.put(keys[-1], piece)
            num_bytes += len(piece)
        return keys, num_bytes

    def table(self) -> AuditTable:
        """Digests of the committed version."""
        return self._refit.audit()

    def close(self) -> None:
        """End it."""
        self._refit.close()


class Node:
    """A rollout node with one instance of a transformers model, whose own loader was learned."""

    def __init__(self, index: int, setup: Setup) -> None:
        import torch

        torch.set_num_threads(1)
        self._name = f"runtime-{index}"
        self._setup = setup
        self._store = setup.store()
        self._agent: ReceiverAgent | None = None
        self._stack = ExitStack()
        self._pauses: list[float] = []
        self._slowness = 0.0
        self._stack.enter_context(observe.listening(self._note))

    def calls(self) -> Calls:
        """By name."""
        calls = (self.start, self.download, self.pauses, self.slow_down, self.table)
        return {call.__name__: call for call in calls}

    def start(self) -> str:
        """Make the model, join the run and be brought to its version."""
        from dcr.receiver.gate import ServingGate
        from dcr.refit.pump import Pump
        from dcr_recipes.bench.apply_model import config_of
        from dcr_recipes.bench.hf_rank import loader_of
        from dcr_recipes.processes.runtime import be_admitted

        setup, config = self._setup, self._setup.config()
        site = setup.site(self._store)
        record = await_record(site, config.commit, deadline_s=DEADLINE_S)
        loader = loader_of(config_of(setup.shape()))
        gate = ServingGate()
        agent = compose_receiver(self._name, site, record, loader=loader, gate=gate, config=config)
        pump = Pump(agent, idle_s=setup.poll_s)
        self._stack.callback(pump.close)
        self._stack.callback(announce(site.peers, self._name, pump.handlers()).close)
        be_admitted(self._name, site.coordinator(config.commit))
        self._agent = agent
        return self._name

    def download(self, keys: list[str]) -> int:
        """Fetch a whole checkpoint and forget it; its bytes."""
        return sum(len(self._store.get(key)) for key in keys)

    def pauses(self) -> list[float]:
        """Seconds of every pause since it was last asked."""
        found, self._pauses = self._pauses, []
        return found

    def slow_down(self, factor: float) -> None:
        """Decode and apply ``factor`` times as slowly from now on."""
        self._slowness = factor - 1

    def table(self) -> AuditTable:
        """Digests of everything resident."""
        assert self._agent is not None, "start comes first"
        return self._agent.audit().table

    def close(self) -> None:
        """End it."""
        self._stack.close()

    def _note(self, event: observe.Event) -> None:
        if event.name == "receiver.pause":
            self._pauses.append((event.end_ns - event.start_ns) / 1e9)
        if self._slowness and event.name in ("receiver.decode", "receiver.apply"):
            time.sleep(self._slowness * (event.end_ns - event.start_ns) / 1e9)


class Coordination:
    """The coordinator, in a thread of its own."""

    def __init__(self, index: int, setup: Setup) -> None:
        del index
        self._stop = threading.Event()
        post, tell = setup.post(setup.store()), lambda _line: None
        self._thread = threading.Thread(
            target=lambda: coordinate("coordinator", post, self._stop, tell=tell),
            name="coordinate",
            daemon=True,
        )
        self._thread.start()

    def calls(self) -> Calls:
        """By name."""
        return {}

    def close(self) -> None:
        """End it."""
        self._stop.set()
        self._thread.join()


class Started:
    """One process as the benchmark sees it. ``ask`` begins a call, ``answer`` waits for it."""

    def __init__(self, role: str, index: int, setup: Setup) -> None:
        from multiprocessing import get_context

        context = get_context("spawn")
        self.name = f"{role}-{index}"
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=run_process, args=(theirs, role, index, setup), daemon=True)
        self._process.start()
        theirs.close()

    def ask(self, call: str, **arguments: object) -> None:
        """Begin a call."""
        self._pipe.send((call, arguments))

    def answer(self) -> Any:
        """What the call that was begun returned.

        Raises:
            RefitError: it failed, or the process is gone.
        """
        try:
            well, found = self._pipe.recv()
        except (EOFError, OSError):
            raise RefitError(f"{self.name} is gone (exit code {self._process.exitcode})") from None
        if not well:
            raise RefitError(f"{self.name}: {found}")
        return found

    def end(self) -> None:
        """End it; at once if it does not end by itself."""
        self._pipe.close()
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def all_of(processes: list[Started], call: str, **arguments: object) -> tuple[list[Any], float]:
    """What each answered to the same call, asked at once, and seconds until the last one did."""
    start = time.perf_counter()
    for process in processes:
        process.ask(call, **arguments)
    answers = [process.answer() for process in processes]
    return answers, time.perf_counter() - start


def scratch_environment() -> None:
    """What the processes inherit: one thread each, no look-ups of models elsewhere."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
