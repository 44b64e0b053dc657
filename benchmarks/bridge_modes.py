"""Modes X, P and F of the paper's Table 3 with Megatron-Bridge's own export in F, on gloo ranks.

usage: .venv-megatron/bin/python benchmarks/bridge_modes.py [--mib 512] [--tp 2] [--rounds 3]

A mixture-of-experts Qwen3 with Qwen3-30B-A3B's heads and experts; whole layers until ``--mib`` is reached.
In F every rank takes part in the Bridge's export of everything, keeps what a hash of its name assigns to it,
and compares that with a tracker. In X and P each rank projects its own shards. CPU seconds are those of
each rank's process.
"""

import argparse
import json
import logging
import multiprocessing
import os
import statistics
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from dcr.audit import combine
from dcr.indexmap import IndexMap
from dcr.model import Bits, TensorSpec, stored_bits
from dcr.source import AffineTask, Baseline
from dcr.source.ownership import stable_hash
from dcr.source.shares import OwnedShards
from dcr_recipes.bench.construct_path import AUDIT_KEY, Built, Construction
from dcr_recipes.bench.data import Relative, change_of
from dcr_recipes.bench.payloads import PLANES, PUBLISHED
from dcr_recipes.bench.timing import process_clock, timed

RATE = 0.03
VOCABULARY = 32_003
CODECS = {"planes": PLANES, "published": PUBLISHED}


class Exported:
    """The Bridge's export as a ``ShardSource``: a pass gives every tensor once, in one order on all ranks."""

    def __init__(self, bridge: Any, model: torch.nn.Module, specs: dict[str, TensorSpec]) -> None:
        self._bridge, self._model, self._specs = bridge, model, specs
        names = [name for name, _ in self._export()]
        rank, world = dist.get_rank(), dist.get_world_size()
        mine = [specs[name] for name in names if stable_hash(name) % world == rank]
        self._tasks = tuple(
            AffineTask(s.name, s.name, s.dtype, s.num_elements, IndexMap.identity(s.num_elements), (rank,))
            for s in mine
        )
        self._stream: Iterator[tuple[str, Any]] = iter(())

    def tensors(self) -> tuple[TensorSpec, ...]:
        """See ``ShardSource``."""
        return tuple(self._specs.values())

    def tasks(self) -> Sequence[AffineTask]:
        """See ``ShardSource``; whole tensors."""
        return self._tasks

    def begin(self) -> None:
        """All ranks begin a pass."""
        self._stream = self._export()

    def finish(self) -> None:
        """Other ranks need this one to the end."""
        for _ in self._stream:
            pass

    def read(self, task: AffineTask) -> Bits:
        """See ``ShardSource``; tasks are read in order, once a pass."""
        for name, tensor in self._stream:
            if name == task.name:
                rows = self._specs[name].shape[0]  # padding is left in by the Bridge
                return stored_bits(tensor[:rows].contiguous())
        raise AssertionError(f"{task.name} was not exported")

    def counters(self) -> str:
        """Nothing counts here."""
        return ""

    def _export(self) -> Iterator[tuple[str, Any]]:
        own = self._bridge._model_bridge
        yield from own.stream_weights_megatron_to_hf(
            [self._model], self._bridge.hf_pretrained, cpu=True, show_progress=False
        )


def build(args: argparse.Namespace) -> tuple[Any, torch.nn.Module]:
    """The Bridge and this rank's model, weights zero."""
    from megatron.bridge import AutoBridge
    from megatron.core import parallel_state, tensor_parallel
    from transformers import Qwen3MoeConfig

    from dcr_adapters.megatron.meta import local_provider, without_cuda

    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=args.tp, expert_tensor_parallel_size=args.tp
    )
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    per_layer = 2 * (2048 * (4096 + 1024) + 4096 * 2048 + 16 * 3 * 768 * 2048)
    layers = max(1, -(-((args.mib << 20) - 4 * VOCABULARY * 2048) // per_layer))
    options: dict[str, Any] = {
        "vocab_size": VOCABULARY, "hidden_size": 2048, "head_dim": 128, "num_attention_heads": 32,
        "num_key_value_heads": 4, "num_hidden_layers": layers, "intermediate_size": 6144,
        "moe_intermediate_size": 768, "num_experts": 16, "num_experts_per_tok": 2, "norm_topk_prob": True,
        "decoder_sparse_step": 1, "tie_word_embeddings": False, "dtype": "bfloat16",
    }  # fmt: skip
    config = Qwen3MoeConfig(architectures=["Qwen3MoeForCausalLM"], **options)
    bridge = AutoBridge.from_hf_config(config)
    provider = local_provider(bridge)
    provider.tensor_model_parallel_size = provider.expert_tensor_parallel_size = args.tp
    provider.sequence_parallel = False
    provider.should_pad_vocab = True
    with without_cuda():
        model = provider.provide(pre_process=True, post_process=True).to(torch.bfloat16)
    return bridge, model


def changes_of(model: torch.nn.Module) -> list[tuple[Any, Any]]:
    """Give every parameter its words of version 0; live words and what changes, parameter by parameter."""
    change, found = Relative(RATE), []
    for number, parameter in enumerate(model.parameters()):
        split = getattr(parameter, "tensor_model_parallel", False)
        seed = (3, number, dist.get_rank() if split else 0)
        words, changes = change_of(change, seed, parameter.numel())
        live = parameter.data.view(torch.int16).reshape(-1).numpy().view(np.uint16)
        live[:] = words
        found.append((live, changes))
    return found


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """What all ranks found, on every rank."""
    from dcr_adapters.megatron import MegatronShards

    rank, world = dist.get_rank(), dist.get_world_size()
    bridge, model = build(args)
    changes = changes_of(model)
    shards = MegatronShards(bridge, [model])
    direct = OwnedShards(shards, rank)
    full = Exported(bridge, model, {spec.name: spec for spec in shards.tensors()})
    trackers = Baseline.create(folder / f"p{rank}", direct.tasks(), direct.read, audit_key=AUDIT_KEY)
    full.begin()
    canonical = Baseline.create(folder / f"f{rank}", full.tasks(), full.read, audit_key=AUDIT_KEY)
    full.finish()
    for live, change in changes:
        live[change.locations] = change.new
    found: dict[str, Any] = {"bytes": sum(spec.num_bytes for spec in shards.tensors())}
    for codec, config in CODECS.items():
        works = {
            "X": Construction(direct, trackers, config),
            "P": Construction(direct, trackers, config, overwrite_only=True),
            "F": Construction(full, canonical, config, overwrite_only=True),
        }
        built = {mode: _run(work, full, mode) for mode, work in works.items()}
        seconds: dict[str, list[float]] = {mode: [] for mode in works}
        for turn in range(args.rounds):
            for mode in [*works][turn % 3 :] + [*works][: turn % 3]:
                dist.barrier()
                seconds[mode].append(timed(partial(_run, works[mode], full, mode), process_clock).cpu_s)
        every: list[Any] = [None] * world
        dist.all_gather_object(every, (seconds, built))
        found[codec] = _summed(every)
    return found


def _run(work: Construction, full: Exported, mode: str) -> Built:
    if mode != "F":
        return work.run()
    full.begin()
    built = work.run()
    full.finish()
    return built


def _summed(every: list[Any]) -> dict[str, Any]:
    """By mode: CPU seconds of all ranks and of the slowest, medians over rounds; payload bytes."""
    audits = []
    found = {}
    for mode in "XPF":
        rounds = list(zip(*(seconds[mode] for seconds, _ in every), strict=True))
        audit: dict[str, Any] = {}
        for _, built in every:
            for name, digest in built[mode].audit.items():
                audit[name] = combine(audit[name], digest) if name in audit else digest
        audits.append(audit)
        found[mode] = {
            "cpu_s": statistics.median(map(sum, rounds)),
            "slowest_s": statistics.median(map(max, rounds)),
            "payload_bytes": sum(built[mode].num_bytes for _, built in every),
            "num_changed": sum(built[mode].num_changed for _, built in every),
        }
    assert audits[0] == audits[1] == audits[2], "the modes found different candidates"
    return found


def _rank(args: argparse.Namespace, folder: Path, rank: int) -> None:
    try:
        where = (folder / "store").absolute().as_uri()
        dist.init_process_group("gloo", init_method=where, rank=rank, world_size=args.tp)
        found = measure(args, folder)
        if rank == 0:
            print(json.dumps(found, indent=2), flush=True)
        dist.barrier()
    except BaseException:
        logging.disable(logging.NOTSET)
        logging.getLogger(__name__).exception("rank %d failed", rank)
        os._exit(1)
    os._exit(0)


def main() -> None:
    """Import Megatron once and fork the ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("mib", 512), ("tp", 2), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    from dcr_adapters.megatron.cpu import on_cpu

    with tempfile.TemporaryDirectory(prefix="dcr-bridge-") as folder, on_cpu():
        context = multiprocessing.get_context("fork")
        ranks = [context.Process(target=_rank, args=(args, Path(folder), rank)) for rank in range(args.tp)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
    raise SystemExit(max(process.exitcode or 0 for process in ranks))


if __name__ == "__main__":
    main()
