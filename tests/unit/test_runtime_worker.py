"""A serving process's handlers, over real HTTP with a stock model behind them."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.integration.stock_loader import StockLoader

from dcr.errors import AttemptFailed, ConfigError, PayloadError, Unreachable
from dcr.model import (
    ApplyAck,
    AttemptId,
    CommitRecord,
    ReceiverAudit,
    ReceiverDiagnosis,
    ReceiverReport,
    ReceiverState,
    StagedAck,
)
from dcr.receiver.gate import ServingGate
from dcr.refit.pump import Pump
from dcr.transport.peers import Peers
from dcr.transport.rpc import serve
from dcr_recipes.grpo.policy import build_tiny
from dcr_recipes.grpo.settings import ModelSizes
from dcr_recipes.runtime.dump import join_dumps, read_dump, write_dump
from dcr_recipes.runtime.hf import HfEngine, LoaderStorage
from dcr_recipes.runtime.remote import RemoteRuntime
from dcr_recipes.runtime.worker import RuntimeWorker

FIRST, SECOND = AttemptId(1, 1), AttemptId(2, 1)
RECORD = CommitRecord("0" * 32, 0, AttemptId(0, 0), 0, "w", None, 0, "c", "m", "a")
ASK = {"prompts": [[1, 2], [3, 4, 5]], "seeds": [[1, 2], [3]], "max_new_tokens": 3, "temperature": 1.0}


class CountingAgent:
    """Counts pumps; applies nothing."""

    name = "runtime-0"
    incarnation = "i"
    base: AttemptId | None = None

    def __init__(self) -> None:
        self.pumped = threading.Semaphore(0)
        self.calls: list[str] = []
        self.fails = False
        self.num_payloads = 0
        self.lost = threading.Event()

    def pump(self) -> int:
        self.pumped.release()
        if self.fails:
            raise RuntimeError("the disk is on fire")
        return self.num_payloads

    def fence(self, attempt: AttemptId, record: CommitRecord) -> ReceiverReport:
        self.calls.append(f"fence {attempt}")
        return ReceiverReport("runtime-0", "i", ReceiverState.EMPTY, -1, attempt, None, {})

    def restore(self, attempt: AttemptId, record: CommitRecord) -> ReceiverReport:
        return self.fence(attempt, record)

    def stage(self, attempt: AttemptId, record: CommitRecord, since: int) -> None:
        self.calls.append(f"stage {attempt}")

    def staged(self, attempt: AttemptId, manifest: str) -> StagedAck:
        return StagedAck("runtime-0", attempt, manifest, 0, 0, 0, 0)

    def open_apply(self, attempt: AttemptId, record: CommitRecord, manifest: str | None = None) -> None:
        self.calls.append(f"open_apply {attempt}")

    def finish(self, attempt: AttemptId, manifest: str) -> ApplyAck:
        return ApplyAck("runtime-0", attempt, manifest, 0, 0, 0, 0, 0.0, 0.0)

    def settle(self, record: CommitRecord) -> ReceiverReport:
        return self.fence(record.attempt, record)

    def stop_and_wait(self, attempt: AttemptId) -> None:
        self.calls.append(f"stop_and_wait {attempt}")

    def audit(self) -> ReceiverAudit:
        return ReceiverAudit("runtime-0", "i", "c", 0, FIRST, {})

    def examine(self) -> int:
        return 0

    def diagnose(self) -> ReceiverDiagnosis:
        raise AssertionError("not asked here")


@pytest.fixture
def worker() -> RuntimeWorker:
    model = build_tiny(ModelSizes(), seed=0).to(torch.bfloat16).eval()
    gate = ServingGate(admit_deadline_s=0.05)
    return RuntimeWorker("runtime-0", HfEngine(model), storage=LoaderStorage(StockLoader(model)), gate=gate)


@pytest.fixture
def remote(worker: RuntimeWorker, tmp_path: Path) -> Iterator[RemoteRuntime]:
    peers = Peers(tmp_path / "endpoints")
    with serve(worker.handlers()) as server:
        peers.publish("runtime-0", server.url, "i")
        runtime = RemoteRuntime(peers, "runtime-0")
        yield runtime
        runtime.close()


def _dense(path: Path, seed: int) -> str:
    model = build_tiny(ModelSizes(), seed=seed).to(torch.bfloat16)
    save_file({name: tensor.data for name, tensor in model.named_parameters()}, path)
    return str(path)


def test_a_closed_gate_is_unreachable_and_a_dense_load_opens_it(
    remote: RemoteRuntime, worker: RuntimeWorker, tmp_path: Path
) -> None:
    with pytest.raises(Unreachable, match="gate closed"):
        remote.generate(**ASK)  # type: ignore[arg-type]
    assert remote.load_dense(_dense(tmp_path / "w", seed=1), 4).version == 4
    answer = remote.generate(**ASK)  # type: ignore[arg-type]
    assert answer == worker.generate(**ASK)  # type: ignore[arg-type]
    assert answer.version == 4
    assert [[len(row) for row in group] for group in answer.tokens] == [[3, 3], [3]]
    status = remote.status()
    assert (status.name, status.version, status.is_open, status.num_answers) == ("runtime-0", 4, True, 2)


def test_other_weights_give_other_tokens(remote: RemoteRuntime, tmp_path: Path) -> None:
    answers = []
    for version in range(2):
        remote.load_dense(_dense(tmp_path / "w", seed=version), version)
        answers.append(remote.generate(**ASK))  # type: ignore[arg-type]
    assert [answer.version for answer in answers] == [0, 1]
    assert answers[0].logprobs != answers[1].logprobs


def test_a_dump_holds_every_byte_of_parameters_and_buffers(remote: RemoteRuntime, tmp_path: Path) -> None:
    remote.load_dense(_dense(tmp_path / "w", seed=1), 0)
    num_bytes = remote.dump(str(tmp_path / "dump"))
    expected = build_tiny(ModelSizes(), seed=1).to(torch.bfloat16)
    dump = read_dump(tmp_path / "dump")
    names = {name for name, _ in (*expected.named_parameters(), *expected.named_buffers())}
    assert set(dump) == names
    assert any("inv_freq" in name for name in dump)
    for name, tensor in expected.named_parameters():
        assert dump[name].dtype == "bfloat16"
        assert dump[name].shape == tuple(tensor.shape)
        assert dump[name].data.tobytes() == tensor.detach().view(torch.uint8).numpy().tobytes()
    assert num_bytes == sum(raw.data.size for raw in dump.values())


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(1.5),
        torch.empty(0, 3),
        torch.arange(12.0).view(3, 4).t(),
        torch.tensor([True, False]),
        torch.tensor([1, 2], dtype=torch.int64),
        torch.tensor([1.0, -0.0]).to(torch.float8_e4m3fn),
        torch.tensor([0x7FC1, -1], dtype=torch.int16).view(torch.bfloat16),
    ],
)
def test_any_tensor_survives_the_dump(tensor: torch.Tensor, tmp_path: Path) -> None:
    write_dump(tmp_path / "d", {"first": torch.zeros(3), "it": tensor})
    raw = read_dump(tmp_path / "d")["it"]
    assert raw.shape == tuple(tensor.shape)
    assert raw.dtype == str(tensor.dtype).removeprefix("torch.")
    assert raw.data.tobytes() == tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def test_dumps_of_several_ranks_are_joined_under_their_names(tmp_path: Path) -> None:
    parts = {
        "rank-0": {"w": torch.arange(6.0).view(2, 3), "e": torch.empty(0)},
        "rank-1": {"w": torch.ones(2)},
    }
    for key, tensors in parts.items():
        write_dump(tmp_path / key, tensors)
    num_bytes = join_dumps(tmp_path / "all", {key: tmp_path / key for key in parts})
    joined = read_dump(tmp_path / "all")
    assert num_bytes == 6 * 4 + 2 * 4
    assert list(joined) == ["rank-0/w", "rank-0/e", "rank-1/w"]
    for key, tensors in parts.items():
        for name, raw in read_dump(tmp_path / key).items():
            found = joined[f"{key}/{name}"]
            assert (found.dtype, found.shape, found.data.tobytes()) == (
                raw.dtype, tuple(tensors[name].shape), raw.data.tobytes(),
            )  # fmt: skip


@pytest.mark.parametrize("cut", [0, 4, 20, 150])
def test_a_cut_dump_is_refused(cut: int, tmp_path: Path) -> None:
    write_dump(tmp_path / "d", {"it": torch.zeros(64)})
    whole = (tmp_path / "d").read_bytes()
    (tmp_path / "d").write_bytes(whole[:cut])
    with pytest.raises(PayloadError, match="not a complete dump"):
        read_dump(tmp_path / "d")


def test_a_broken_file_leaves_the_gate_closed(remote: RemoteRuntime, tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(b"no tensors")
    for path in (tmp_path / "w", tmp_path / "missing"):
        with pytest.raises(PayloadError, match=path.name):
            remote.load_dense(str(path), 1)
    assert not remote.status().is_open


def test_mistakes_travel_as_clear_errors(remote: RemoteRuntime, tmp_path: Path) -> None:
    remote.load_dense(_dense(tmp_path / "w", seed=1), 0)
    with pytest.raises(ConfigError, match="2 prompts but 1"):
        remote.generate(prompts=[[1], [2]], seeds=[[1]], max_new_tokens=1, temperature=1.0)
    with pytest.raises(AttemptFailed, match="IndexError"):
        remote.generate(prompts=[[515]], seeds=[[1]], max_new_tokens=1, temperature=1.0)
    with pytest.raises(Unreachable, match="not announced"):
        RemoteRuntime(Peers(tmp_path / "endpoints"), "runtime-7").status()


def test_an_instance_with_an_agent_serves_its_calls_and_refuses_dense_loads(tmp_path: Path) -> None:
    model = build_tiny(ModelSizes(), seed=0)
    agent = CountingAgent()
    storage = LoaderStorage(StockLoader(model))
    worker = RuntimeWorker("r", HfEngine(model), storage=storage, gate=ServingGate(), agent=agent)
    with pytest.raises(ConfigError, match="refit=dense"):
        worker.load_dense(str(tmp_path / "w"), 0)
    calls = {
        "stage",
        "staged",
        "fence",
        "restore",
        "open_apply",
        "finish",
        "settle",
        "stop_and_wait",
        "audit",
        "diagnose",
    }
    assert calls <= set(worker.handlers())
    worker.close()


def test_pumping_lasts_from_open_apply_to_the_end_of_the_attempt() -> None:
    agent = CountingAgent()
    pump = Pump(agent, idle_s=0.001)
    assert not agent.pumped.acquire(timeout=0.02)
    for end in (lambda a: pump.finish(a, "m"), pump.stop_and_wait, lambda _: pump.fence(SECOND, RECORD)):
        pump.open_apply(FIRST, RECORD)
        assert all(agent.pumped.acquire(timeout=30) for _ in range(3))
        end(FIRST)
        assert _falls_silent(agent)
    pump.open_apply(SECOND, RECORD)
    pump.stop_and_wait(FIRST)
    assert all(agent.pumped.acquire(timeout=30) for _ in range(3))
    pump.close()
    pump.close()


def test_pauses_grow_while_nothing_comes_and_are_short_again_after_a_payload() -> None:
    agent = CountingAgent()
    pump = Pump(agent, idle_s=0.001, most_idle_s=0.3)
    pump.open_apply(FIRST, RECORD)
    assert _falls_silent(agent)  # it still looks, but rarely
    agent.num_payloads = 1
    assert all(agent.pumped.acquire(timeout=30) for _ in range(20))
    agent.num_payloads = 0
    assert _falls_silent(agent)
    pump.stop_and_wait(FIRST)
    pump.open_apply(SECOND, RECORD)
    assert all(agent.pumped.acquire(timeout=30) for _ in range(3))
    pump.close()


def test_a_failing_pump_is_tried_again() -> None:
    agent = CountingAgent()
    agent.fails = True
    pump = Pump(agent, idle_s=0.001)
    pump.open_apply(FIRST, RECORD)
    assert all(agent.pumped.acquire(timeout=30) for _ in range(3))
    pump.close()


def _falls_silent(agent: CountingAgent) -> bool:
    """True once no pump comes for a while; some that were under way, or in ever longer pauses, may come."""
    return any(not agent.pumped.acquire(timeout=0.05) for _ in range(400))
