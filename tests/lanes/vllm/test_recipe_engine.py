"""The engine of a serving process: a group is one batch, a dump is whole, a probe finds stale state."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from dcr.errors import ConfigError, PayloadError
from dcr.receiver.gate import ServingGate
from dcr.receiver.workers.gate import EngineGate
from dcr.receiver.workers.ranks import Workers
from dcr_adapters.vllm.control import AsyncEngineControl
from dcr_recipes.compose import compose
from dcr_recipes.grpo.policy import build_tiny, tiny_config
from dcr_recipes.grpo.settings import ModelSizes
from dcr_recipes.probe import LONG_PROMPT
from dcr_recipes.runtime.arguments import EXTENSION, engine_arguments, environment
from dcr_recipes.runtime.dump import read_dump
from dcr_recipes.runtime.ports import Group
from dcr_recipes.runtime.ranks import RanksStorage
from dcr_recipes.runtime.vllm import LoopThread, VllmEngine, storage_of
from dcr_recipes.runtime.worker import RuntimeWorker

PROMPT, SEEDS = [5, 17, 400, 3, 8], [1, 2, 1 << 60, 4]


@dataclass
class Instance:
    engine: VllmEngine
    storage: RanksStorage
    gate: ServingGate
    folder: Path

    def dense(self, seed: int) -> Path:
        path = self.folder / f"{seed}.safetensors"
        model = build_tiny(ModelSizes(), seed).to(torch.bfloat16)
        save_file({name: tensor.data for name, tensor in model.named_parameters()}, path)
        return path

    def ask(self, prompt: list[int] = PROMPT, seeds: list[int] = SEEDS, temperature: float = 1.0) -> Group:
        return self.engine.generate(prompt, seeds, max_new_tokens=6, temperature=temperature)


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    folder = tmp_path_factory.mktemp("engine")
    config = compose(["model=tiny", "runtime=vllm"])
    tiny_config(ModelSizes()).save_pretrained(folder / "model")
    arguments = engine_arguments(str(folder / "model"), config.runtime, config.recipe)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(config.runtime).items():
            patch.setitem(os.environ, name, value)
        engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments, worker_extension_cls=EXTENSION))
    thread = LoopThread()
    control = AsyncEngineControl(engine, thread.loop)
    serving = VllmEngine(engine, thread)
    storage = storage_of(Workers(control, folder=folder), serving.call_workers)
    yield Instance(serving, storage, ServingGate(EngineGate(control)), folder)
    thread.wait(_shut_down(engine))


async def _shut_down(engine: Any) -> None:
    engine.shutdown()


def test_a_group_depends_on_weights_prompt_and_seeds_alone(instance: Instance) -> None:
    worker = RuntimeWorker("r", instance.engine, storage=instance.storage, gate=instance.gate)
    worker.load_dense(str(instance.dense(1)), 1)
    first = instance.ask()
    assert [len(row) for row in first.tokens] == [6] * 4
    assert len({tuple(row) for row in first.tokens}) == 4
    instance.ask([7] * 80, [9, 9])
    assert instance.ask() == first
    assert instance.ask(seeds=[*SEEDS[:3], 5]).tokens[3] != first.tokens[3]
    assert all(logprob < 0 for row in first.logprobs for logprob in row)
    sharp = instance.ask(temperature=1e-3)
    assert all(abs(logprob) < 1e-3 for row in sharp.logprobs for logprob in row), "after the temperature"
    worker.load_dense(str(instance.dense(2)), 2)
    assert instance.ask() != first
    worker.load_dense(str(instance.dense(1)), 3)
    assert instance.ask() == first


def test_a_dump_holds_every_byte_of_every_rank_and_a_broken_file_touches_none(instance: Instance) -> None:
    instance.gate.close()
    instance.storage.load(instance.dense(1))
    instance.storage.dump(instance.folder / "one", 1.0, "")
    instance.storage.load(instance.dense(2))
    instance.storage.dump(instance.folder / "two", 1.0, "")
    (instance.folder / "broken").write_bytes(b"no tensors")
    with pytest.raises(PayloadError, match="broken"):
        instance.storage.load(instance.folder / "broken")
    one, two = read_dump(instance.folder / "one"), read_dump(instance.folder / "two")
    assert list(one) == list(two)
    model = dict(build_tiny(ModelSizes(), 1).to(torch.bfloat16).named_parameters())
    embedding = one["rank-0/model.embed_tokens.weight"]
    stored = model["model.embed_tokens.weight"].detach().view(torch.uint8).numpy().tobytes()
    assert embedding.data.tobytes()[: len(stored)] == stored
    assert embedding.shape[0] > ModelSizes().vocabulary, "padding is compared too"
    assert any("cos_sin_cache" in name for name in one), "and buffers"
    assert one["rank-0/model.layers.0.mlp.down_proj.weight"].data.any()
    differing = [name for name in one if one[name].data.tobytes() != two[name].data.tobytes()]
    assert len(differing) > 5
    assert not list(instance.folder.glob("*.rank-*"))
    instance.gate.open(4, changed=True)


def test_the_probe_finds_what_a_forgotten_clearing_leaves(instance: Instance) -> None:
    prompt = list(LONG_PROMPT)
    fresh = instance.engine.probe(prompt, 4, fresh=True)
    again = instance.engine.probe(prompt, 4, fresh=True)
    assert (fresh.hit, fresh.is_stale) == (False, False)
    assert (again.hit, again.is_stale) == (True, False)
    instance.storage.load(instance.dense(3))  # behind the gate's back
    assert instance.engine.probe(prompt, 4, fresh=True).is_stale
    instance.gate.close()
    instance.storage.load(instance.dense(1))
    instance.gate.open(5, changed=True)
    after = instance.engine.probe(prompt, 4, fresh=True)
    assert (after.hit, after.is_stale) == (False, False)


def test_a_prompt_that_does_not_fit_names_the_key(instance: Instance) -> None:
    with pytest.raises(ConfigError, match=r"runtime\.context_tokens"):
        instance.ask([1] * 600)
