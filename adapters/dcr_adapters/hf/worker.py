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
from dcr.errors import ConfigError, IntegrityError, PayloadError
from dcr.receiver.ports import NativeLoader
from dcr_adapters.hf.dump import sampled, write_dump
from dcr_adapters.hf.gate import ServingGate
from dcr_adapters.hf.generate import Responses, generate_group
from dcr_adapters.hf.prompt_cache import PromptCache
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
class ProbeAnswer:
    """A short continuation of a fixed prompt: ``tokens`` [T] and ``logprobs`` [T] under ``version``.

    ``hit``: the prompt was in the cache.
    """

    version: int
    hit: bool
    tokens: list[int]
    logprobs: list[float]


@dataclass(frozen=True, slots=True)
class RuntimeStatus:
    """What a serving process says of itself; ``version`` is -1 before its first opening.

    ``prompt_cache_*`` count since it started, see ``CacheFigures``; all 0 without a cache.
    """

    name: str
    process: int
    version: int
    is_open: bool
    num_answers: int
    prompt_cache_hits: int = 0
    prompt_cache_misses: int = 0
    prompt_cache_clears: int = 0
    prompt_cache_bytes: int = 0


class RuntimeWorker:
    """One serving process: model, native loader, gate, and the receiver's agent if it takes delta refits.

    Threads of the server call the handlers concurrently; generation runs one request at a time, with
    ``threads`` compute threads, because the thread count is part of what decides tokens.
    """

    def __init__(  # noqa: PLR0913 -- one collaborator each, all fixed for life
        self,
        name: str,
        model: "nn.Module",
        *,
        loader: NativeLoader,
        gate: ServingGate,
        agent: PumpedReceiver | None = None,
        threads: int = 1,
        prompt_cache: PromptCache | None = None,
    ) -> None:
        self._name = name
        self._model = model
        self._loader = loader
        self._gate = gate
        self._agent = agent
        self._threads = threads
        self._num_answers = 0
        self._generating = threading.Lock()
        self._prompts = prompt_cache or PromptCache(0)
        gate.on_change(self._prompts.clear)
        self._pump = None if agent is None else Pump(agent)

    def handlers(self) -> dict[str, Callable[..., object]]:
        """Method name -> callable, for ``dcr.transport.rpc.serve``."""
        own: dict[str, Callable[..., object]] = {
            "generate": self.generate,
            "probe": self.probe,
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
        with (
            self._gate.enter() as version,
            self._generating,
            observe.stage("runtime.generate", version=version),
        ):
            groups = [
                self._generate(prompt, group, max_new_tokens, temperature, self._prompts)
                for prompt, group in zip(prompts, seeds, strict=True)
            ]
            self._num_answers += 1
        return GenerateAnswer(
            version,
            [group.tokens.tolist() for group in groups],
            [group.logprobs.tolist() for group in groups],
        )

    def probe(self, prompt: list[int], max_new_tokens: int, fresh: bool) -> ProbeAnswer:
        """Continue ``prompt`` [L] with one fixed seed, as a request would be served.

        With ``fresh`` the same is computed without the prompt cache and compared bit for bit.

        Raises:
            Unreachable: the gate stayed closed.
            IntegrityError: the cache holds state of other weights.
        """
        with self._gate.enter() as version, self._generating:
            hits = self._prompts.figures().hits
            served = self._generate(prompt, [0], max_new_tokens, 1.0, self._prompts)
            hit = self._prompts.figures().hits > hits
            if fresh:
                computed = self._generate(prompt, [0], max_new_tokens, 1.0, None)
                if not all(map(torch.equal, served, computed)):
                    raise IntegrityError(
                        f"{self._name} answers its probe at version {version} from a stale prompt cache"
                    )
        return ProbeAnswer(version, hit, served.tokens[0].tolist(), served.logprobs[0].tolist())

    def status(self) -> RuntimeStatus:
        """What this process is and serves now; never waits."""
        held = self._prompts.figures()
        return RuntimeStatus(
            self._name,
            os.getpid(),
            self._gate.version,
            self._gate.is_open,
            self._num_answers,
            prompt_cache_hits=held.hits,
            prompt_cache_misses=held.misses,
            prompt_cache_clears=held.clears,
            prompt_cache_bytes=held.num_bytes,
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

    def _generate(
        self,
        prompt: list[int],
        seeds: list[int],
        max_new_tokens: int,
        temperature: float,
        prompts: PromptCache | None,
    ) -> Responses:
        torch.set_num_threads(self._threads)  # per calling thread, and threads of the server come and go
        return generate_group(
            self._model,
            torch.tensor(prompt, dtype=torch.int64),
            max_new_tokens=max_new_tokens,
            seeds=seeds,
            temperature=temperature,
            prompts=prompts,
        )


def _dense_tensors(path: str) -> Iterator[tuple[str, torch.Tensor]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 -- not a dict
                yield name, file.get_tensor(name)
    except (SafetensorError, OSError) as err:
        raise PayloadError(f"{path}: not readable as safetensors: {err}") from err
