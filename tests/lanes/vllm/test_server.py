"""A vLLM server that the test's run did not start: refits over its control routes (DESIGN R19)."""

import json
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx
import pytest
import vllm  # noqa: F401 -- imported once, before processes are forked
from tests.lanes.shared import checkpoints
from tests.lanes.shared.engine import LONG_PROMPT, PROMPTS
from tests.lanes.shared.run import Run, Version
from tests.lanes.shared.servers import running, until
from tests.lanes.vllm.offline import in_fork, offline, say
from typing_extensions import override

from dcr.errors import ConfigError
from dcr.receiver.agent import ReceiverAgent
from dcr.receiver.lease import Lease
from dcr.receiver.workers.gate import EngineGate
from dcr.receiver.workers.ranks import Workers
from dcr_adapters.vllm.http_control import HttpControl
from dcr_adapters.vllm.plugin import EXTENSION

MIDDLEWARE = "dcr_adapters.vllm.serving_lease.ServingLease"
NUM_TOKENS = 3800
"""Of the request in flight."""


@contextmanager
def server(model: Path, log: Path, *options: str) -> Iterator[str]:
    """A server as a user would start it (``vllm serve`` with vLLM's GPU package); yields its address."""

    def command(port: int) -> list[str]:
        return [
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)),
            *("--dtype", "bfloat16", "--max-model-len", "4096", "--max-num-seqs", "4", "--enforce-eager"),
            *("--kv-cache-memory-bytes", str(32 << 20), "--host", "127.0.0.1", "--port", str(port)),
            *("--worker-extension-cls", EXTENSION, "--enable-scale-out", "--middleware", MIDDLEWARE),
            *options,
        ]

    environment = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_OMP_THREADS_BIND": "0"}
    with running(command, environment, log, ready="/health") as url:
        yield url


def asked(url: str, prompt: Sequence[int], num_tokens: int = 12) -> httpx.Response:
    """What the server says, whatever it is."""
    body = {
        "token_ids": list(prompt),
        "sampling_params": {"temperature": 0, "max_tokens": num_tokens, "ignore_eos": True},
    }
    return httpx.post(f"{url}/inference/v1/generate", json=body, timeout=300)


def ask(url: str, prompt: Sequence[int], num_tokens: int = 12) -> dict[str, Any]:
    """The greedy answer: ``token_ids`` and ``weight_versions``."""
    answer = asked(url, prompt, num_tokens)
    assert answer.is_success, answer.text
    choice: dict[str, Any] = answer.json()["choices"][0]
    return choice


class Flying(threading.Thread):
    """A streamed answer to the first prompt; ``begun`` with its first tokens."""

    def __init__(self, url: str, num_tokens: int) -> None:
        super().__init__(daemon=True)
        self.begun = threading.Event()
        self.tokens: list[int] = []
        self.versions: list[str] = []
        self._url = f"{url}/inference/v1/generate"
        self._params = {"temperature": 0, "max_tokens": num_tokens, "ignore_eos": True}
        self.start()

    @override
    def run(self) -> None:
        body = {"token_ids": PROMPTS[0], "sampling_params": self._params, "stream": True}
        with httpx.stream("POST", self._url, json=body, timeout=300) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    self._take(json.loads(line.removeprefix("data: "))["choices"][0])

    def _take(self, choice: dict[str, Any]) -> None:
        self.tokens += choice.get("token_ids") or []
        self.versions = [span["version"] for span in choice.get("weight_versions") or ()]
        self.begun.set()


class Interrupting(HttpControl):
    """Asks for a long answer right before the server is paused for the next time, once it is told to.

    It waits for the first tokens, but not for long: a busy machine may let nobody else run until the last
    are made.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.url = url
        self.flying: Flying | None = None
        self._is_told = False
        self._waits_s = cycle((0.05, 0.1, 0.15, 0.2, 0.3, 0.5))

    def fly(self) -> None:
        self._is_told = True

    @override
    def pause(self) -> None:
        if self._is_told:
            self._is_told = False
            self.flying = Flying(self.url, NUM_TOKENS)
            self.flying.begun.wait(next(self._waits_s))
        super().pause()


def over_refits(
    control: Interrupting, run: Run, receiver: ReceiverAgent, versions: tuple[Version, Version]
) -> Flying:
    """A request begun at the first version and in flight while the second one comes."""
    while True:
        run.refit(receiver, versions[0], receiver.report().classification)
        control.fly()
        run.refit(receiver, versions[1], receiver.report().classification)
        flying = control.flying
        assert flying is not None
        flying.join(300)
        # on a busy machine all of it may be made before the pause, or behind it
        if len(flying.versions) > 1 or run.records[-1].version >= 80:
            return flying


def test_refits_of_a_running_server(tmp_path: Path) -> None:
    old = checkpoints.make(tmp_path, "llama")
    middle = checkpoints.changed(old, tmp_path / "v1", rate=0.2, seed=1)
    new = checkpoints.changed(middle, tmp_path / "v2", rate=0.2, seed=2)
    run = Run(tmp_path, checkpoints.catalogue(old), checkpoints.version(old))
    with server(old, tmp_path / "log") as url:
        control, lease = Interrupting(url), Lease()
        gate = EngineGate(control)
        gate.serve_under(lease)
        receiver = run.receiver("server", Workers(control, folder=tmp_path), gate)
        run.admit(receiver)
        assert asked(url, PROMPTS[0]).status_code == 503, "proven, but nobody has granted a lease yet"
        lease.extend(lease.clock() + 3600)
        until(lambda: gate.is_open and asked(url, PROMPTS[0]).is_success)
        before = [ask(url, prompt)["token_ids"] for prompt in PROMPTS]
        flying = over_refits(control, run, receiver, (checkpoints.version(middle), checkpoints.version(new)))
        after = [ask(url, prompt) for prompt in (LONG_PROMPT, *PROMPTS)]
        lease.end()
        until(lambda: asked(url, PROMPTS[0]).status_code == 503)
        assert httpx.get(f"{url}/is_paused").json()["is_paused"]
        control.close()
    last = run.records[-1].version
    assert flying.versions == [str(last - 1), str(last)]
    assert len(flying.tokens) == NUM_TOKENS
    assert all(answer["weight_versions"][0]["version"] == str(last) for answer in after)
    tokens = [answer["token_ids"] for answer in after]
    assert tokens[1:] != before
    fresh = in_fork(lambda: say(offline(new)))
    assert tokens[1:] == fresh
    assert tokens[0] == fresh[2]


def test_other_servers_are_told_what_is_missing(tmp_path: Path) -> None:
    from dcr.transport.rpc import serve

    with serve({}) as running:
        control = HttpControl(running.url)
        with pytest.raises(ConfigError, match="VLLM_SERVER_DEV_MODE"):
            control.pause()
        with pytest.raises(ConfigError, match=r"--middleware .*ServingLease"):
            EngineGate(control).serve_under(Lease())
        control.close()
