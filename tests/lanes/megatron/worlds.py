"""Real Megatron worlds on gloo: every rank records what its MegatronShards offers and the delta it finds.

usage: python -m tests.lanes.megatron.worlds FOLDER [LAYOUT ...]
One process imports Megatron once and forks the ranks of all worlds. Results travel as npz and JSON.
"""

import json
import logging
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from tests.contract.fsdp_worlds import Recorded
from tests.lanes.megatron import training
from tests.lanes.megatron.layouts import ADAPTED, LAYOUTS, LOADED, VOCAB, Layout, hf_config
from tests.lanes.megatron.refits import ResidualRefit, residual_refit
from tests.lanes.shared.trainer_world import fork_ranks
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
            _run(folder / name, (LAYOUTS | ADAPTED)[name])


def _run(folder: Path, layout: Layout) -> None:
    folder.mkdir(parents=True)
    if layout.family == LOADED:
        training.save_checkpoint(layout, folder / "checkpoint")
    body = _adapted if layout.lora else _world
    fork_ranks(folder, layout.degrees.world, lambda rank: body(folder, layout, rank))


def _started(folder: Path, layout: Layout) -> tuple[Any, list[torch.nn.Module], Any]:
    """Bridge, chunks and optimizer of this rank."""
    from megatron.bridge import AutoBridge
    from megatron.core import parallel_state, tensor_parallel

    degrees = layout.degrees
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=degrees.tp,
        pipeline_model_parallel_size=degrees.pp,
        virtual_pipeline_model_parallel_size=layout.vpp if layout.vpp > 1 else None,
        expert_model_parallel_size=degrees.ep,
        expert_tensor_parallel_size=degrees.etp,
    )
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    if layout.family == LOADED:
        bridge = AutoBridge.from_hf_pretrained(str(folder / "checkpoint"))
    else:
        bridge = AutoBridge.from_hf_config(hf_config(layout))
    return bridge, *training.build(layout, bridge)


def _world(folder: Path, layout: Layout, rank: int) -> None:
    from dcr_adapters.megatron import MegatronShards, gathered

    bridge, chunks, optimizer = _started(folder, layout)
    source = MegatronShards(bridge, chunks)
    _save_truth(bridge, chunks, folder / f"old-{rank}.npz")
    with gathered(chunks):
        before = {task.key: host_bits(source.read(task)).copy() for task in source.tasks()}
        _record(source, before, folder, "old", rank)
    refitted = residual_refit(bridge, chunks, folder, classification="published")
    with refitted if layout.refit else nullcontext() as refit:
        training.train_step(chunks, optimizer, layout)
        facts: dict[str, Any] = {"pending": _pending(source)}
        with gathered(chunks):
            with NoCollectives():  # type: ignore[no-untyped-call]
                items = _delta(source, before, rank)
            save(folder / f"delta-{rank}.npz", items)
            after = {task.key: host_bits(source.read(task)) for task in source.tasks()}
            _record(source, after, folder, "new", rank)
            _save_truth(bridge, chunks, folder / f"new-{rank}.npz")
            facts |= _facts(source, bridge, chunks, folder)
        if refit is not None:
            facts |= _refit_twice(refit, bridge, (chunks, optimizer, layout), folder, rank)
    (folder / f"facts-{rank}.json").write_text(json.dumps(facts))


def _adapted(folder: Path, layout: Layout, rank: int) -> None:
    """Adapters alone are trained; what is served are the weights that they are merged into."""
    bridge, chunks, optimizer = _started(folder, layout)
    training.train_step(chunks, optimizer, layout)  # the second factors begin at zero
    _save_truth(bridge, chunks, folder / f"old-{rank}.npz")
    with residual_refit(bridge, chunks, folder, classification="closed_form") as refit:
        training.train_step(chunks, optimizer, layout, 2)
        _save_truth(bridge, chunks, folder / f"new-{rank}.npz")
        facts = _refit_twice(refit, bridge, (chunks, optimizer, layout), folder, rank)
    (folder / f"facts-{rank}.json").write_text(json.dumps(facts))


def _refit_twice(
    refit: ResidualRefit, bridge: Any, trained: tuple[Any, Any, Layout], folder: Path, rank: int
) -> dict[str, Any]:
    """Publish the present weights, restart, publish those after another step, restart with lost trackers."""
    changed = [refit.sync(1)]
    refit.restart(damaged=False)
    proven = refit.replayed
    chunks, optimizer, layout = trained
    training.train_step(chunks, optimizer, layout, 3)
    _save_truth(bridge, chunks, folder / f"newer-{rank}.npz")
    changed.append(refit.sync(2))
    refit.restart(damaged=True)
    changed.append(refit.sync(3))
    return {"changed": changed, "replayed": [proven, refit.replayed]}


def _pending(source: Any) -> str:
    """What is said of parameters that the next forward pass would gather."""
    try:
        source.counters()
    except RefitError as err:
        return f"{type(err).__name__}: {err}"
    return ""


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

    text = getattr(bridge.hf_pretrained, "config", bridge.hf_pretrained).get_text_config()
    vocabulary = (ps.get_tensor_model_parallel_world_size() * 128 + VOCAB) // 128 * 128
    dense = {}
    for name, tensor in _exported(bridge, chunks):
        padded = tensor.ndim == 2 and VOCAB < tensor.shape[0] <= vocabulary and text.vocab_size == VOCAB
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
    main(Path(sys.argv[1]), sys.argv[2:] or [*LAYOUTS, *ADAPTED])
