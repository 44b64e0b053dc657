"""FsdpShards: an FSDP2 model as a ShardSource (paper section 5, DESIGN R4, R20).

The served value of a parameter is the round-to-nearest-even cast of its master shard, so trackers
hold served bits and changes are found on them. What a NaN is cast to is the processor's choice in
torch; shards and the dense oracle below are cast by the same call.
"""

import threading
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from dcr.errors import UnsupportedPath
from dcr.indexmap import IndexMap
from dcr.model import TensorSpec, digest_hex, stored_bits
from dcr.source.detect import Candidate
from dcr.source.task import AffineTask
from dcr_adapters.fsdp.mapping import Block, describe, locate
from dcr_adapters.fsdp.model import Slot, canonical_slots, served_dtype_of


class FsdpShards:
    """One rank's shards of a ``fully_shard`` model; implements ``dcr.source.ports.ShardSource``.

    Canonical names are those of ``state_dict``; tied names are aliases of the first. Tensors that
    are not sharded (persistent buffers, parameters outside any ``fully_shard``) count as replicated
    over the default process group and must be equal on its ranks.

    Raises:
        ConfigError: ``served_dtype`` is not bfloat16, float16 or float32.
        UnsupportedPath: a layout or dtype that cannot be refitted; names the parameter.
    """

    def __init__(self, model: torch.nn.Module, *, served_dtype: str = "bfloat16") -> None:
        self._model = model
        self._lock = threading.Lock()  # shards are put back by one thread at a time
        self._served_dtype = served_dtype
        self._slots = canonical_slots(model, served_dtype)
        self._layouts: dict[str, tuple[object, ...]] = {}
        tasks = []
        for name, tensor in _sharded(model, self._slots).items():
            self._layouts[name] = _layout(tensor)
            block = locate(name, tensor) if isinstance(tensor, DTensor) else _whole(tensor)
            if block is not None and 0 not in block.shape:
                tasks.append(_task(self._slots[name].spec, block))
        self._tasks = tuple(tasks)

    def tensors(self) -> tuple[TensorSpec, ...]:
        """Every canonical tensor, in state_dict order; equal on all ranks."""
        return tuple(slot.spec for slot in self._slots.values())

    def tasks(self) -> Sequence[AffineTask]:
        """One task per tensor of which this rank holds elements."""
        return self._tasks

    def read(self, task: AffineTask) -> Candidate:
        """Served bits [task.num_elements] of the live shard; aliases the weights where nothing is cast.

        A shard that is not on the host is given as it is. Thread-safe.

        Raises:
            UnsupportedPath: the shard's dtype or layout is no longer the declared one.
        """
        return self._read(task, slice(None))

    def read_range(self, task: AffineTask, start: int, stop: int) -> Candidate:
        """As ``read``, elements ``start .. stop - 1`` of the shard only."""
        return self._read(task, slice(start, stop))

    def _read(self, task: AffineTask, part: slice) -> Candidate:
        slot, tensor = self._slots[task.name], self._live(task.name)
        dtype = served_dtype_of(task.name, tensor, slot.is_parameter, self._served_dtype)
        if not dtype == task.dtype == slot.spec.dtype:
            raise UnsupportedPath(
                f"tensor {task.name!r} is declared {task.dtype} but holds {tensor.dtype}, which would be "
                f"served as {dtype}; a changed dtype needs a new run"
            )
        served = _served(tensor, dtype, part)
        return stored_bits(served) if served.is_cpu else served.reshape(-1)

    def counters(self) -> str:
        """Digest of every tensor's version counters."""
        versions = ((name, self._live(name)) for name in self._slots)
        lines = (
            f"{name} {tensor._version} {tensor._local_tensor._version if isinstance(tensor, DTensor) else ''}"
            for name, tensor in versions
        )
        return digest_hex("\n".join(lines).encode())

    def _live(self, name: str) -> torch.Tensor:
        """The weights as they are now, in the layout that was declared.

        Raises:
            UnsupportedPath: the parameter was replaced by one of another layout.
        """
        with self._lock:
            tensor = self._slots[name].live()
            if tensor is None or _layout(tensor) != self._layouts[name]:
                self._model.state_dict()  # makes FSDP put the shards back
                tensor = self._slots[name].live()
        if tensor is None or _layout(tensor) != self._layouts[name]:
            found = describe(name, tensor) if isinstance(tensor, DTensor) else f"tensor {name!r}"
            raise UnsupportedPath(f"{found} is no longer laid out or tied as declared; make a new source")
        return tensor


def gather_dense(model: torch.nn.Module, *, served_dtype: str = "bfloat16") -> dict[str, torch.Tensor]:
    """The whole served model on every rank, on the CPU, by primary name: the dense oracle.

    Collective: all ranks of the model call it. Shards are cast, then gathered.

    Raises:
        ConfigError, UnsupportedPath: as ``FsdpShards``.
    """
    slots = canonical_slots(model, served_dtype)
    dense = {}
    for name, tensor in _sharded(model, slots).items():
        local = _served(tensor, slots[name].spec.dtype)
        if isinstance(tensor, DTensor):
            locate(name, tensor)  # refuses what torch would gather wrongly
            local = DTensor.from_local(
                local,
                tensor.device_mesh,
                tensor.placements,
                run_check=False,
                shape=tensor.shape,
                stride=tensor.stride(),
            ).full_tensor()
        dense[name] = local.detach().cpu().clone()
    return dense


def _sharded(model: torch.nn.Module, slots: dict[str, Slot]) -> dict[str, torch.Tensor]:
    state = model.state_dict()
    return {name: state[name] for name in slots}


def _whole(tensor: torch.Tensor) -> Block:
    world = dist.get_world_size() if dist.is_initialized() else 1
    shape = tuple(tensor.shape)
    return Block(shape, (0,) * len(shape), tuple(range(world)))


def _task(spec: TensorSpec, block: Block) -> AffineTask:
    index_map = IndexMap.from_block(block.shape, block.offsets, spec.shape)
    return AffineTask(
        key=spec.name,
        name=spec.name,
        dtype=spec.dtype,
        num_elements=index_map.src_size,
        map=index_map,
        replicas=block.replicas,
        aliases=spec.aliases,
    )


def _layout(tensor: torch.Tensor) -> tuple[object, ...]:
    if isinstance(tensor, DTensor):
        return tuple(tensor.shape), tensor.device_mesh, tuple(tensor.placements)
    return (tuple(tensor.shape),)


def _served(tensor: torch.Tensor, dtype: str, part: slice = slice(None)) -> torch.Tensor:
    """A flat ``part`` of the local shard in the served dtype; live weights where they are of that dtype."""
    local = tensor.detach()
    if isinstance(local, DTensor):
        local = local.to_local()
    if part != slice(None):
        local = local.reshape(-1)[part]
    served: torch.Tensor = local.to(getattr(torch, dtype))
    return served
