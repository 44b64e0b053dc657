"""Real FSDP2 worlds on gloo: every rank records what its FsdpShards offers, for test_fsdp_shards.py.

usage: python -m tests.contract.fsdp_worlds FOLDER
One process forks the ranks of all worlds after importing torch once; results travel as npz and JSON.
"""

import json
import multiprocessing
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from typing_extensions import override

from dcr.errors import RefitError
from dcr.model import Bits, TensorSpec, to_json
from dcr.source.task import AffineTask
from dcr_adapters.fsdp import FsdpShards, gather_dense

ROWS = 1003
SPECIAL = (0.0, -0.0, float("nan"), -float("nan"), float("inf"), 1e-40, -1e-45, 1.00390625, 1.01171875)
Wrap = Callable[[torch.nn.Module], object]


@dataclass(frozen=True, slots=True)
class Recorded:
    """What one rank's source answered; reads are beside it, by position."""

    tensors: tuple[TensorSpec, ...]
    tasks: tuple[AffineTask, ...]
    counters: str


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)
        self.up = torch.nn.Linear(8, 12, bias=False)
        self.down = torch.nn.Linear(12, 8, bias=False)

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.down(torch.relu(self.up(self.norm(x))))
        return out


class Toy(torch.nn.Module):
    """Tied, uneven, frozen, shorter than the world, and buffers of several dtypes, one not persistent."""

    def __init__(self, rows: int = ROWS) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(rows, 8)
        self.layers = torch.nn.ModuleList(Block() for _ in range(2))
        self.gain = torch.nn.Parameter(torch.ones(1, 8))
        self.frozen = torch.nn.Parameter(torch.tensor(SPECIAL * 3).reshape(9, 3), requires_grad=False)
        self.head = torch.nn.Linear(8, rows, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("steps", torch.tensor(3))
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.register_buffer("scale", torch.tensor([0.1, 0.2]))
        self.register_buffer("nothing", torch.zeros(0, 2))
        self.register_buffer("cache", torch.zeros(4), persistent=False)

    @override
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids) * self.gain
        for layer in self.layers:
            x = layer(x)
        out: torch.Tensor = self.head(x)
        return out


def build(dtype: torch.dtype = torch.float32) -> Toy:
    torch.manual_seed(0)
    return Toy().to(dtype)


def shard_all(model: torch.nn.Module, **options: object) -> None:
    for layer in model.layers:  # type: ignore[union-attr]
        fully_shard(layer, **options)  # type: ignore[call-overload]
    fully_shard(model, **options)  # type: ignore[call-overload]


def wrap_flat(model: torch.nn.Module) -> None:
    shard_all(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))


def wrap_columns(model: torch.nn.Module) -> None:
    size = dist.get_world_size()

    def place(param: torch.nn.Parameter) -> Shard:
        return Shard(1) if param.ndim == 2 and param.shape[1] % size == 0 else Shard(0)

    shard_all(model, mesh=init_device_mesh("cpu", (size,)), shard_placement_fn=place)


def wrap_hybrid(model: torch.nn.Module) -> None:
    shard_all(model, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))


def wrap_tensor_parallel(model: torch.nn.Module) -> None:
    """Norms, embedding and the rest stay whole under tensor parallelism: they live on the dp axis only."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    for layer in model.layers:  # type: ignore[union-attr]
        parallelize_module(layer, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    shard_all(model, mesh=mesh["dp"])


CASES: dict[str, tuple[int, Wrap, torch.dtype]] = {
    "one": (1, wrap_flat, torch.float32),
    "two": (2, wrap_flat, torch.float32),
    "two-columns": (2, wrap_columns, torch.float32),
    "two-bf16": (2, wrap_flat, torch.bfloat16),
    "four": (4, wrap_flat, torch.float32),
    "four-columns": (4, wrap_columns, torch.float32),
    "four-hybrid": (4, wrap_hybrid, torch.float32),
    "four-tensor-parallel": (4, wrap_tensor_parallel, torch.float32),
}


def bits_of(tensor: torch.Tensor) -> Bits:
    width = tensor.element_size()
    same_width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[width]
    bits: Bits = tensor.detach().contiguous().view(-1).view(same_width).numpy().view(f"<u{width}")
    return bits.reshape(tuple(tensor.shape))


def dense_truth(model: torch.nn.Module) -> dict[str, Bits]:
    """Served bits of an unsharded model, by torch alone."""
    parameters = {name: param.to(torch.bfloat16) for name, param in model.named_parameters()}
    state = model.state_dict()
    rest = {name: state[name] for name in ("steps", "mask", "scale", "nothing")}
    return {name: bits_of(tensor) for name, tensor in (parameters | rest).items()}


def full_truth(model: torch.nn.Module) -> dict[str, Bits]:
    """Served bits of a sharded model: torch gathers the masters, then they are cast."""
    out = {}
    for name, param in model.named_parameters():
        whole = param.full_tensor() if isinstance(param, DTensor) else param
        out[name] = bits_of(whole.to(torch.bfloat16))
    return out | {name: bits_of(getattr(model, name)) for name in ("steps", "mask", "scale", "nothing")}


def save(path: Path, arrays: Mapping[str, Bits]) -> None:
    np.savez(path, allow_pickle=False, **arrays)


def on_host(source: FsdpShards, task: AffineTask) -> Bits:
    """What the source reads; these worlds hold their weights on the host."""
    bits = source.read(task)
    assert isinstance(bits, np.ndarray)
    return bits


def record(folder: Path, source: FsdpShards, truth: dict[str, Bits], rank: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tasks = tuple(source.tasks())
    recorded = Recorded(source.tensors(), tasks, source.counters())
    (folder / f"{rank}.json").write_bytes(to_json(recorded))
    save(folder / f"{rank}.npz", {str(i): on_host(source, task) for i, task in enumerate(tasks)})
    save(folder / f"truth-{rank}.npz", truth)


def refusal(act: Callable[[], object]) -> str:
    try:
        act()
    except RefitError as err:
        return f"{type(err).__name__}: {err}"
    return "accepted"


def same_bits(model: torch.nn.Module, truth: dict[str, Bits]) -> list[str]:
    """Names on which gather_dense differs from the truth (or that only one of them has)."""
    dense = {name: bits_of(tensor) for name, tensor in gather_dense(model).items()}
    differing = {name for name in dense.keys() & truth.keys() if not np.array_equal(dense[name], truth[name])}
    return sorted(differing | (dense.keys() ^ truth.keys()))


def training_facts(model: torch.nn.Module, source: FsdpShards) -> dict[str, object]:
    """Forward passes change nothing, a step does; the source sees both."""
    before, bits = source.counters(), [on_host(source, task).copy() for task in source.tasks()]
    ids = torch.arange(6).reshape(2, 3) + dist.get_rank()
    with torch.no_grad():
        model(ids)
    facts: dict[str, object] = {
        "root_stays_gathered_after_forward": not isinstance(model.get_parameter("head.weight"), DTensor),
        "forward_keeps_counters": source.counters() == before,
        "forward_keeps_bits": all(map(np.array_equal, bits, map(source.read, source.tasks()))),
    }
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    model(ids).square().sum().backward()
    optimizer.step()
    facts["step_moves_counters"] = source.counters() != before
    facts["step_moves_bits"] = not all(map(np.array_equal, bits, map(source.read, source.tasks())))
    return facts


def refusals(model: torch.nn.Module, source: FsdpShards) -> dict[str, str]:
    """What a source must not accept; leaves the model broken."""
    task = next(task for task in source.tasks() if task.name == "layers.0.up.weight")
    buffer = next(task for task in source.tasks() if task.name == "scale")
    out = {
        "declared_float32": refusal(lambda: source.read(replace(task, dtype="float32"))),
        "served_int8": refusal(lambda: FsdpShards(model, served_dtype="int8")),
    }
    model.register_buffer("scale", torch.zeros(2, dtype=torch.float64))
    out["buffer_changed_dtype"] = refusal(lambda: source.read(buffer))
    model.register_buffer("spin", torch.zeros(2, dtype=torch.complex64))
    out["complex"] = refusal(lambda: FsdpShards(model))
    del model.spin
    model.get_submodule("layers.0.up").weight = torch.nn.Parameter(torch.zeros(12, 8))
    out["replaced_by_plain"] = refusal(lambda: source.read(task))
    model.get_submodule("head").weight = torch.nn.Parameter(torch.zeros(ROWS, 8))
    tied = next(task for task in source.tasks() if task.name == "embed.weight")
    out["no_longer_tied"] = refusal(lambda: source.read(tied))
    return out


def layout_refusals() -> dict[str, str]:
    """Layouts that must be refused at construction, on a 2 x 2 world."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    out = {}
    for rows in (9, 10, 12):
        model = torch.nn.Sequential(torch.nn.Linear(4, rows, bias=False))
        parallelize_module(model, mesh["tp"], {"0": ColwiseParallel()})
        fully_shard(model, mesh=mesh["dp"])
        out[f"strided_{rows}"] = refusal(lambda model=model: FsdpShards(model))  # type: ignore[misc]
    holder = torch.nn.Module()
    pending = DTensor.from_local(torch.zeros(4, 3), mesh, (Partial(), Replicate()), run_check=False)
    holder.register_parameter("weight", torch.nn.Parameter(pending))
    out["partial"] = refusal(lambda: FsdpShards(holder))
    return out


def run_case(folder: Path, case: str, rank: int) -> dict[str, object]:
    _, wrap, dtype = CASES[case]
    model = build(dtype)
    truth = dense_truth(model)
    wrap(model)
    source = FsdpShards(model)
    facts: dict[str, object] = {"initial_differs": same_bits(model, truth)}
    record(folder / case / "initial", source, truth, rank)
    if case == "four-tensor-parallel":  # its toy forward would need input layouts: write in place instead
        with torch.no_grad():
            for param in model.parameters():
                param.mul_(1.5)
    else:
        facts |= training_facts(model, source)
    truth = full_truth(model)
    facts["stepped_differs"] = same_bits(model, truth)
    record(folder / case / "stepped", source, truth, rank)
    if case == "two":
        facts |= refusals(model, source)
    return facts


def run_rank(folder: Path, world: int, rank: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store-{world}", rank=rank, world_size=world)
    facts = {case: run_case(folder, case, rank) for case, (size, _, _) in CASES.items() if size == world}
    if world == 4:
        facts["layouts"] = dict(layout_refusals())
    (folder / f"facts-{world}-{rank}.json").write_text(json.dumps(facts))
    dist.destroy_process_group()


def main(folder: Path) -> int:
    context = multiprocessing.get_context("fork")
    failed = 0
    for world in (1, 2, 4):
        ranks = [context.Process(target=run_rank, args=(folder, world, rank)) for rank in range(world)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(100)
            failed += process.exitcode != 0
            process.kill()
    return failed


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
