"""Real servers of the lane, asked and steered over HTTP."""

import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from tests.lanes.shared.engine import Said
from tests.lanes.shared.run import Run
from tests.lanes.shared.servers import running

from dcr.receiver.agent import ReceiverAgent
from dcr.receiver.workers.gate import EngineGate
from dcr.receiver.workers.ranks import Workers
from dcr_adapters.sglang.http_control import HttpControl
from dcr_adapters.sglang.messages import LOADER
from dcr_adapters.sglang.routes import LEASE

if TYPE_CHECKING:
    from concurrent.futures import Future

KEY = "of-the-operator"
"""Admin API key of every server; requests need none."""
TAKES_DELTAS = ("--custom-weight-loader", LOADER)


@dataclass(slots=True)
class HttpServed:
    """A server, and a receiver's control of it."""

    url: str
    control: HttpControl
    gate: EngineGate
    counts: dict[str, int] = field(default_factory=dict)
    _threads: ThreadPoolExecutor = field(default_factory=ThreadPoolExecutor)

    def asked(self, prompt: Sequence[int]) -> httpx.Response:
        """What the server says to a short request, whatever it is."""
        return asked(self.url, prompt)

    def ask(self, prompt: Sequence[int], num_tokens: int = 12) -> Said:
        """See ``Served``."""
        return self._generate(prompt, num_tokens, "")

    def begin(self, prompt: Sequence[int], num_tokens: int, name: str = "") -> "Future[Said]":
        """See ``Served``."""
        return self._threads.submit(self._generate, prompt, num_tokens, name)

    def receiver(self, run: Run, folder: Path) -> ReceiverAgent:
        """See ``Served``."""
        return run.receiver("server", Workers(self.control, folder=folder), self.gate)

    def checksums(self) -> list[dict[str, str]]:
        """SGLang's own, by rank: of every parameter and buffer."""
        answer = httpx.post(
            f"{self.url}/weights_checker", json={"action": "checksum"}, timeout=60,
            headers={"Authorization": f"Bearer {KEY}"},
        )  # fmt: skip
        assert answer.is_success, answer.text
        return [rank["checksums"] for rank in answer.json()["ranks"]]

    def _generate(self, prompt: Sequence[int], num_tokens: int, name: str) -> Said:
        last: Any = None
        body = {**_request(prompt, num_tokens), "stream": True}
        with httpx.stream("POST", f"{self.url}/generate", json=body, timeout=300) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    last = json.loads(line.removeprefix("data: "))
                    self.counts[name] = len(last["output_ids"])
        assert last is not None, answer.status_code
        told = last["meta_info"]
        spans = [(str(s["version"]), int(s["start"]), int(s["end"])) for s in told["weight_versions"]]
        return Said(last["output_ids"], int(told["cached_tokens"]), spans)


def asked(url: str, prompt: Sequence[int]) -> httpx.Response:
    """What the server says to a short request, whatever it is."""
    return httpx.post(f"{url}/generate", json=_request(prompt, 4), timeout=300)


def _request(prompt: Sequence[int], num_tokens: int) -> dict[str, Any]:
    params = {"temperature": 0, "max_new_tokens": num_tokens, "ignore_eos": True}
    return {"input_ids": list(prompt), "sampling_params": params}


@contextmanager
def served(model: Path, tp: int, *options: str, leased: bool = False) -> Iterator[HttpServed]:
    """A server as a user would start it, on a checkpoint in a folder that takes its log."""

    def command(port: int) -> list[str]:
        return [
            *(sys.executable, "-m", "sglang.launch_server", "--model-path", str(model), "--tp-size", str(tp)),
            *("--device", "cpu", "--dtype", "bfloat16", "--attention-backend", "torch_native"),
            *("--sampling-backend", "pytorch", "--skip-tokenizer-init", "--disable-cuda-graph"),
            *("--max-total-tokens", "4096", "--max-running-requests", "4", "--mem-fraction-static", "0.1"),
            *("--skip-server-warmup", "--log-level", "warning", "--admin-api-key", KEY),
            *("--host", "127.0.0.1", "--port", str(port), *options),
        ]

    binding = "|".join(str(rank % 2) for rank in range(tp))
    environment = {
        "SGLANG_CPU_OMP_THREADS_BIND": binding,
        "SGL_FORCE_SHUTDOWN": "1",  # else it waits for what a paused engine keeps
        LEASE: "1" if leased else "0",
    }
    with running(command, environment, model / "server.log", ready="/ready") as url:
        control = HttpControl(url, token=KEY)
        yield HttpServed(url, control, EngineGate(control))
        control.close()
