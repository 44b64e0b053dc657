"""Real Megatron worlds on gloo: every rank records what its MegatronShards offers and the delta it finds.

usage: python -m tests.lanes.megatron.worlds FOLDER [LAYOUT ...]
One process imports Megatron once and forks the ranks of all worlds. Results travel as npz and JSON.
"""

import json
import logging
import multiprocessing
import os
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from tests.contract.fsdp_worlds import Recorded
from tests.lanes.megatron import training
from tests.lanes.megatron.training import LAYOUTS, VOCAB, Layout
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from dcr.errors import RefitError
from dcr.model import Bits, stored_bits, to_json
from dcr.source.change import find_change
from dcr.source.detect import host_bits
from dcr.source.ownership import owned
from dcr_adapters.megatron.cpu import on_cpu


class NoCollectives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Any communication of torch.distributed inside fails."""

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in ("c10d", "_c10d_functional"):
            raise AssertionError(f"{func} communicates during construction")
        return func(*args, **(kwargs or {}))


def main(folder: Path, names: list[str]) -> None:
    """Run the worlds one after another."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    with on_cpu():
        for name in names:
            _run(folder / name, LAYOUTS[name])


def _run(folder: Path, layout: Layout) -> None:
    folder.mkdir(parents=True)
    if layout.family == "qwen3":
        training.save_checkpoint(layout, folder / "checkpoint")
    context = multiprocessing.get_context("fork")
    ranks = [
        context.Process(target=_rank, args=(folder, layout, rank), daemon=True)
        for rank in range(layout.world)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(180)
        if process.is_alive():
            process.kill()


def _rank(folder: Path, layout: Layout, rank: int) -> None:
    try:
        where = (folder / "store").absolute().as_uri()
        dist.init_process_group("gloo", init_method=where, rank=rank, world_size=layout.world)
        _world(folder, layout, rank)
        dist.barrier()
    except BaseException:  # noqa: BLE001 -- a child's failure is read by the test
        (folder / f"failed-{rank}").write_text(traceback.format_exc())
        os._exit(1)
    os._exit(0)


def _world(folder: Path, layout: Layout, rank: int) -> None:
    from megatron.bridge import AutoBridge
    from megatron.core import parallel_state as ps
    from megatron.core import tensor_parallel

    from dcr_adapters.megatron import MegatronShards

    ps.initialize_model_parallel(
        tensor_model_parallel_size=layout.tp,
        pipeline_model_parallel_size=layout.pp,
        virtual_pipeline_model_parallel_size=layout.vpp if layout.vpp > 1 else None,
        expert_model_parallel_size=layout.ep,
        expert_tensor_parallel_size=layout.etp,
    )
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    if layout.family == "qwen3":
        chunks, optimizer = training.build(layout)
        bridge = AutoBridge.from_hf_pretrained(str(folder / "checkpoint"))
        bridge.load_hf_weights(chunks)
        optimizer.reload_model_params()
    else:
        bridge = AutoBridge.from_hf_config(training.hf_config(layout))
        chunks, optimizer = training.provide(layout, bridge), None
    source = MegatronShards(bridge, chunks)
    _save_truth(bridge, chunks, folder / f"old-{rank}.npz")
    before = {task.key: host_bits(source.read(task)).copy() for task in source.tasks()}
    _record(source, before, folder, "old", rank)
    if optimizer is None:
        training.shake(chunks)
    else:
        training.train_step(chunks, optimizer, layout)
    with NoCollectives():  # type: ignore[no-untyped-call]
        items = _delta(source, before, rank)
    save(folder / f"delta-{rank}.npz", items)
    after = {task.key: host_bits(source.read(task)) for task in source.tasks()}
    _record(source, after, folder, "new", rank)
    _save_truth(bridge, chunks, folder / f"new-{rank}.npz")
    (folder / f"facts-{rank}.json").write_text(json.dumps(_facts(source, bridge, chunks, folder)))


def save(path: Path, arrays: dict[str, Any]) -> None:
    """Arrays by name."""
    np.savez(path, **arrays)


def _delta(source: Any, before: dict[str, Bits], rank: int) -> dict[str, Bits]:
    """Canonical locations and new bits of what changed in the owned tasks, by position."""
    items: dict[str, Bits] = {}
    for at, task in enumerate(owned(source.tasks(), rank)):
        change: Any = find_change(task, source.read(task), before[task.key])
        items |= {f"{at} name": np.array(task.name), f"{at} at": change.locations, f"{at} new": change.new}
    return items


def _record(source: Any, reads: dict[str, Bits], folder: Path, phase: str, rank: int) -> None:
    recorded = Recorded(source.tensors(), tuple(source.tasks()), source.counters())
    (folder / f"{phase}-source-{rank}.json").write_bytes(to_json(recorded))
    arrays = {str(at): reads[task.key] for at, task in enumerate(source.tasks())}
    save(folder / f"{phase}-reads-{rank}.npz", arrays)


def _save_truth(bridge: Any, chunks: list[torch.nn.Module], path: Path) -> None:
    """The Bridge's own export, without the padding that it leaves in (0.6.2)."""
    from megatron.core import parallel_state as ps

    pads = not type(bridge._model_bridge).__name__.startswith(("DeepSeek", "Nemotron"))
    vocabulary = (ps.get_tensor_model_parallel_world_size() * 128 + VOCAB) // 128 * 128
    dense = {}
    for name, tensor in _exported(bridge, chunks):
        padded = tensor.ndim == 2 and VOCAB < tensor.shape[0] <= vocabulary and pads
        cropped = tensor[:VOCAB] if padded and tensor.shape[0] % 128 == 0 else tensor
        dense[name] = stored_bits(cropped).reshape(tuple(cropped.shape))
    save(path, dense)


def _exported(bridge: Any, chunks: list[torch.nn.Module]) -> Any:
    from transformers import PretrainedConfig

    if not isinstance(bridge.hf_pretrained, PretrainedConfig):
        return bridge.export_hf_weights(chunks, cpu=True, show_progress=False)
    own = bridge._model_bridge
    return own.stream_weights_megatron_to_hf(chunks, bridge.hf_pretrained, cpu=True, show_progress=False)


def _facts(source: Any, bridge: Any, chunks: list[torch.nn.Module], folder: Path) -> dict[str, Any]:
    """What else the tests want to know: refusals, and that the guard against collectives bites."""
    from dcr_adapters.megatron import MegatronShards

    facts: dict[str, Any] = {"residual": len(source.conversions())}
    published = MegatronShards(bridge, chunks, classification="published", accept_residual=True)
    names = sorted({name for each in published.conversions() for name in each.outputs})
    parts = {part.name: part.bits for part in published.convert(names)}
    save(folder / f"residual-{dist.get_rank()}.npz", parts)
    facts["tensors"] = {spec.name: list(spec.shape) for spec in published.tensors()}
    facts["inputs"] = sorted(published.input_digests())
    facts["published"] = [to_json(each).decode() for each in published.conversions()]
    try:
        MegatronShards(bridge, chunks, classification="published")
    except RefitError as err:
        facts["refusal"] = f"{type(err).__name__}: {err}"
    try:
        with NoCollectives():  # type: ignore[no-untyped-call]
            dist.all_reduce(torch.zeros(1))
    except AssertionError as err:
        facts["guard"] = str(err)
    return facts


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or list(LAYOUTS))
