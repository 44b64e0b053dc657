"""This rank's share of Megatron's training state as plain tensors, and back. Only local: no collective.

Names: ``model/<chunk>/<parameter>``, ``optimizer/<chained>/<group>/<parameter>/<slot>``, where the slot
``master`` is the optimizer's own copy or shard of the parameter, and ``rng``.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from dcr_recipes.grpo.captured import copy_captured

_RNG = "rng"
_MASTER = "master"


def capture(chunks: Sequence[torch.nn.Module], optimizer: Any) -> dict[str, torch.Tensor]:
    """Parameters and buffers, masters and moments, as views, and torch's CPU random state."""
    state = {_RNG: torch.get_rng_state()}
    state |= {name: tensor.detach() for name, tensor in _weights(chunks)}
    for prefix, parameter, slots in _masters(optimizer):
        state[f"{prefix}/{_MASTER}"] = parameter.detach()
        state |= {f"{prefix}/{slot}": value.detach() for slot, value in slots.items()}
    return state


def install(chunks: Sequence[torch.nn.Module], optimizer: Any, state: Mapping[str, torch.Tensor]) -> None:
    """Write a captured ``state``, in place; moments that it lacks are dropped.

    Raises:
        IntegrityError: the state lacks a tensor or was captured from another layout.
    """
    with torch.no_grad():
        for name, tensor in _weights(chunks):
            copy_captured(tensor, state, name)
        for prefix, parameter, slots in _masters(optimizer):
            copy_captured(parameter.data, state, f"{prefix}/{_MASTER}")
            slots.clear()
            for key in state:
                head, _, slot = key.rpartition("/")
                if head == prefix and slot != _MASTER:
                    slots[slot] = state[key].clone()
    torch.set_rng_state(state[_RNG])


def _weights(chunks: Sequence[torch.nn.Module]) -> Iterator[tuple[str, torch.Tensor]]:
    for at, chunk in enumerate(chunks):
        for name, tensor in (*chunk.named_parameters(), *chunk.named_buffers()):
            yield f"model/{at}/{name}", tensor.data


def _masters(optimizer: Any) -> Iterator[tuple[str, torch.Tensor, dict[str, torch.Tensor]]]:
    """Name, tensor and slots of everything that the chained optimizers step."""
    for at, chained in enumerate(optimizer.chained_optimizers):
        inner = chained.optimizer
        for group, parameters in enumerate(inner.param_groups):
            for index, parameter in enumerate(parameters["params"]):
                yield f"optimizer/{at}/{group}/{index}", parameter, inner.state[parameter]
