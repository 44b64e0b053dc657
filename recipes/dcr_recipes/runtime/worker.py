"""What one serving process answers: generation, its state, its bytes, and the receiver's calls.

``RuntimeWorker.handlers`` is what the process serves over HTTP; parameters and answers are JSON.
"""

import os
import threading
from collections.abc import Callable
from pathlib import Path

from dcr import observe
from dcr.errors import ConfigError, IntegrityError
from dcr.receiver.gate import ServingGate
from dcr.refit.pump import Pump, PumpedReceiver
from dcr_recipes.runtime.answers import GenerateAnswer, ProbeAnswer, RuntimeStatus
from dcr_recipes.runtime.ports import Engine, Storage


class RuntimeWorker:
    """One serving process: engine, storage, gate, and the receiver's agent if it takes delta refits.

    Threads of the server call the handlers concurrently; generation runs one request at a time.
    """

    def __init__(
        self,
        name: str,
        engine: Engine,
        *,
        storage: Storage,
        gate: ServingGate,
        agent: PumpedReceiver | None = None,
        poll_s: float = 0.005,
    ) -> None:
        self._name = name
        self._engine = engine
        self._storage = storage
        self._gate = gate
        self._num_answers = 0
        self._generating = threading.Lock()
        gate.on_change(engine.clear)
        self._pump = None if agent is None else Pump(agent, idle_s=poll_s)

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
                self._engine.generate(prompt, group, max_new_tokens=max_new_tokens, temperature=temperature)
                for prompt, group in zip(prompts, seeds, strict=True)
            ]
            self._num_answers += 1
        return GenerateAnswer(
            version, [group.tokens for group in groups], [group.logprobs for group in groups]
        )

    def probe(self, prompt: list[int], max_new_tokens: int, fresh: bool) -> ProbeAnswer:
        """Continue ``prompt`` [L] with one fixed seed, as a request would be served.

        With ``fresh`` the same is computed without what the cache holds and compared bit for bit.

        Raises:
            Unreachable: the gate stayed closed.
            IntegrityError: the cache holds state of other weights.
        """
        with self._gate.enter() as version, self._generating:
            probed = self._engine.probe(prompt, max_new_tokens, fresh=fresh)
        if probed.is_stale:
            raise IntegrityError(
                f"{self._name} answers its probe at version {version} from a stale prompt cache"
            )
        return ProbeAnswer(version, probed.hit, probed.tokens, probed.logprobs)

    def status(self) -> RuntimeStatus:
        """What this process is and serves now; never waits."""
        held = self._engine.cache()
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
        """See ``Storage.dump``. The caller makes sure that no transition is under way."""
        return self._storage.dump(Path(path), share, sample)

    def load_dense(self, path: str, version: int) -> RuntimeStatus:
        """Stock dense refit, gate closed.

        Raises:
            ConfigError: this instance takes delta refits; a dense load behind their back would be lost.
            PayloadError: the file is missing or broken; the gate stays closed.
        """
        if self._pump is not None:
            raise ConfigError(f"{self._name} takes delta refits; start it with refit=dense to load files")
        with observe.stage("runtime.load_dense", version=version):
            self._gate.close()
            self._storage.load(Path(path))
            self._gate.open(version, changed=True)
        return self.status()
