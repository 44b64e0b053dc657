"""Residual conversion by the Bridge itself: its export of some tasks, with its own collectives (R5)."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from dcr.errors import UnsupportedPath
from dcr.indexmap import IndexMap
from dcr.model import TensorSpec, stored_bits
from dcr.source.ownership import stable_hash
from dcr.source.residual import Part
from dcr_adapters.megatron.model import global_state, model_bridge_of

_DIGESTED = 1 << 24
"""Elements that are brought to the host at once."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where residual outputs come from: an index in the Bridge's task list, which is aligned on all ranks."""

    index: int
    outputs: tuple[str, ...]
    num_rows: int | None


class Export:
    """The Bridge's conversion of chosen tensors. All ranks make it and call it together."""

    def __init__(self, bridge: Any, chunks: Sequence[torch.nn.Module], tasks: Sequence[Any]) -> None:
        self._bridge = bridge
        self._chunks = list(chunks)
        self._tasks = tuple(tasks)
        self._positions: tuple[Position, ...] = ()
        self._served: torch.dtype | None = None
        self.specs: tuple[TensorSpec, ...] = ()

    def prepare(self, positions: Iterable[Position], served: torch.dtype | None) -> None:
        """Learn shapes and dtypes of all outputs, by converting them once.

        ``positions`` are those of all ranks. Raises UnsupportedPath if the Bridge leaves one out.
        """
        self._positions, self._served = tuple(positions), served
        wanted = {name for position in self._positions for name in position.outputs}
        found = {}
        for name, tensor in self._converted(wanted):
            dtype = str(tensor.dtype).removeprefix("torch.")
            found[name] = TensorSpec(name, tuple(tensor.shape), dtype)
        if missing := sorted(wanted - found.keys()):
            raise UnsupportedPath(
                f"residual tensors that the Bridge does not export: {', '.join(missing[:8])}"
            )
        self.specs = tuple(found[name] for name in sorted(found))

    def parts(self, names: Sequence[str]) -> Iterator[Part]:
        """These tensors; each from the rank that puts it together, since every rank has it whole."""
        rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        for name, tensor in self._converted(set(names)):
            if stable_hash(name) % world == rank:
                yield Part(name, IndexMap.identity(tensor.numel()), stored_bits(tensor))

    def digests(self, names: Iterable[str]) -> dict[str, str]:
        """Digest of the bits of every live parameter or buffer with one of these global names."""
        wanted = set(names)
        held = {task.global_param_name: task for task in self._tasks if task.param_weight is not None}
        tensors = {name: _live(task).param_weight for name, task in held.items() if name in wanted}
        for name, tensor in global_state(self._chunks):
            if name in wanted:
                tensors.setdefault(name, tensor)
        return {name: digest_of(tensor) for name, tensor in tensors.items()}

    def _converted(self, names: set[str]) -> Iterator[tuple[str, torch.Tensor]]:
        chosen = [position for position in self._positions if names & set(position.outputs)]
        rows = {name: position.num_rows for position in chosen for name in position.outputs}
        indices = sorted({position.index for position in chosen})
        if not indices:
            return
        streamed = model_bridge_of(self._bridge).stream_weights_megatron_to_hf(
            self._chunks,
            self._bridge.hf_pretrained,
            cpu=True,
            show_progress=False,
            conversion_tasks=[_live(self._tasks[index]) for index in indices],
        )
        for name, tensor in streamed:
            if name not in names:
                continue
            cropped = tensor[: rows[name]] if tensor.ndim else tensor
            is_cast = self._served is not None and cropped.is_floating_point()
            yield name, cropped.to(self._served) if is_cast else cropped


def digest_of(tensor: torch.Tensor) -> str:
    """Of the stored bits, of which a part at a time is on the host; a tensor subclass goes there whole."""
    state = hashlib.blake2b(digest_size=16)
    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    parts = torch.split(tensor.detach().reshape(-1), _DIGESTED) if is_plain else (tensor,)
    for part in parts:
        state.update(stored_bits(part).data)
    return state.hexdigest()


def _live(task: Any) -> Any:
    """The task with what its module holds now: buffers may have been replaced."""
    attribute = task.param_name.rpartition(".")[2]
    if task.param_weight is None or not hasattr(task.megatron_module, attribute):
        return task
    return replace(task, param_weight=getattr(task.megatron_module, attribute))
