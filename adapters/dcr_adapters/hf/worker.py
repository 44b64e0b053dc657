"""What one serving process answers: generation, its state, its bytes, and the receiver's calls.

``RuntimeWorker.handlers`` is what the process serves over HTTP; parameters and answers are JSON.
"""

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from dcr import observe
from dcr.errors import ConfigError, PayloadError
from dcr.receiver.ports import NativeLoader
from dcr_adapters.hf.dump import sampled, write_dump
from dcr_adapters.hf.gate import ServingGate
from dcr_adapters.hf.generate import generate_group
from dcr_adapters.hf.pump import Pump, PumpedReceiver

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, slots=True)
class GenerateAnswer:
    """Responses to several prompts, all made with ``version``.

    ``tokens`` [P][G][T] and ``logprobs`` [P][G][T] (float32 values) are in the order of the request.
    """

    version: int
    tokens: list[list[list[int]]]
    logprobs: list[list[list[float]]]


@dataclass(frozen=True, slots=True)
class RuntimeStatus:
    """What a serving process says of itself; ``version`` is -1 before its first opening."""

    name: str
    process: int
    version: int
    is_open: bool
    num_answers: int


class RuntimeWorker:
    """One serving process: model, native loader, gate, and the receiver's agent if it takes delta refits.

    Threads of the server call the handlers concurrently; generation runs one request at a time, with
    ``threads`` compute threads, because the thread count is part of what decides tokens.
    """

    def __init__(
        self,
        name: str,
        model: "nn.Module",
        *,
        loader: NativeLoader,
        gate: ServingGate,
        agent: PumpedReceiver | None = None,
        threads: int = 1,
    ) -> None:
        self._name = name
        self._model = model
        self._loader = loader
        self._gate = gate
        self._agent = agent
        self._threads = threads
        self._num_answers = 0
        self._generating = threading.Lock()
        self._pump = None if agent is None else Pump(agent)

    def handlers(self) -> dict[str, Callable[..., object]]:
        """Method name -> callable, for ``dcr.transport.rpc.serve``."""
        own: dict[str, Callable[..., object]] = {
            "generate": self.generate,
            "status": self.status,
            "dump": self.dump,
            "load_dense": self.load_dense,
        }
        return own if self._pump is None else {**own, **self._pump.handlers()}

    def close(self) -> None:
        """Stop the background thread; the handlers must not be called afterwards."""
        if self._pump is not None:
            self._pump.close()

    def generate(
        self, prompts: list[list[int]], seeds: list[list[int]], max_new_tokens: int, temperature: float
    ) -> GenerateAnswer:
        """Answer each prompt [L] with one response per seed of its list; the whole answer is of one version.

        Raises:
            Unreachable: the gate stayed closed.
            ConfigError: as many seed lists as prompts are needed, and valid token ids.
        """
        if len(prompts) != len(seeds):
            raise ConfigError(f"{len(prompts)} prompts but {len(seeds)} lists of seeds")
        with self._gate.enter() as version, self._generating:
            observe.point("runtime.generate.before", version=version)
            torch.set_num_threads(self._threads)
            groups = [
                generate_group(
                    self._model,
                    torch.tensor(prompt, dtype=torch.int64),
                    max_new_tokens=max_new_tokens,
                    seeds=group,
                    temperature=temperature,
                )
                for prompt, group in zip(prompts, seeds, strict=True)
            ]
            self._num_answers += 1
            observe.point("runtime.generate.after", version=version)
        return GenerateAnswer(
            version,
            [group.tokens.tolist() for group in groups],
            [group.logprobs.tolist() for group in groups],
        )

    def status(self) -> RuntimeStatus:
        """What this process is and serves now; never waits."""
        return RuntimeStatus(
            self._name, os.getpid(), self._gate.version, self._gate.is_open, self._num_answers
        )

    def dump(self, path: str, share: float = 1.0, sample: str = "") -> int:
        """Write the raw bytes of every parameter and buffer to ``path`` (see ``dcr_adapters.hf.dump``).

        ``share`` below 1: of the part of them that ``sample`` picks. Returns the number of bytes. The
        caller makes sure that no transition is under way.
        """
        return write_dump(Path(path), sampled(self._loader.resident(), share, sample))

    def load_dense(self, path: str, version: int) -> RuntimeStatus:
        """Stock dense refit: every tensor of a safetensors file through the native loader, gate closed.

        Raises:
            ConfigError: this instance takes delta refits; a dense load behind their back would be lost.
            PayloadError: the file is missing or broken; the gate stays closed.
        """
        if self._agent is not None:
            raise ConfigError(f"{self._name} takes delta refits; start it with refit=dense to load files")
        with observe.stage("runtime.load_dense", version=version):
            self._gate.close()
            with torch.no_grad():
                self._loader.load(_dense_tensors(path))
            self._loader.synchronize()
            self._gate.open(version, changed=True)
        return self.status()


def _dense_tensors(path: str) -> Iterator[tuple[str, torch.Tensor]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 -- not a dict
                yield name, file.get_tensor(name)
    except (SafetensorError, OSError) as err:
        raise PayloadError(f"{path}: not readable as safetensors: {err}") from err
