"""This rank's share of the training state as plain tensors, and back into a live policy.

Names: ``model/<parameter>``, ``optimizer/<parameter>/<slot>``, ``rng``. Only local shards: no collective.
"""

import hashlib
from collections.abc import Mapping

import torch

from dcr.model import stored_bits
from dcr_recipes.grpo.captured import copy_captured
from dcr_recipes.grpo.policy import Policy

_RNG = "rng"


def capture(policy: Policy) -> dict[str, torch.Tensor]:
    """This rank's FP32 masters and optimizer slots, as views, and torch's CPU random state.

    Views cost no memory, and change with the next step: write them before it.
    """
    state = {_RNG: torch.get_rng_state()}
    for name, parameter in policy.model.named_parameters():
        state[f"model/{name}"] = _local(parameter).detach()
        for slot, value in policy.optimizer.state.get(parameter, {}).items():
            state[f"optimizer/{name}/{slot}"] = _local(value).detach()
    return state


def install(policy: Policy, state: Mapping[str, torch.Tensor]) -> None:
    """Write a captured ``state`` into ``policy``, in place; slots that it lacks are dropped.

    Raises:
        IntegrityError: the state lacks a parameter or was captured from another sharding.
    """
    slots: dict[str, list[str]] = {}
    for key in state:
        kind, _, rest = key.partition("/")
        if kind == "optimizer":
            name, _, slot = rest.rpartition("/")
            slots.setdefault(name, []).append(slot)
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            copy_captured(_local(parameter), state, f"model/{name}")
            policy.optimizer.state.pop(parameter, None)
            for slot in slots.get(name, ()):
                value = _empty_slot(parameter, slot)
                copy_captured(_local(value), state, f"optimizer/{name}/{slot}")
                policy.optimizer.state[parameter][slot] = value
    torch.set_rng_state(state[_RNG])


def state_digest(state: Mapping[str, torch.Tensor]) -> str:
    """BLAKE2b-128 of all stored bits of a captured state, by sorted name, hexadecimal.

    The optimizer's and the low bits of the masters too: none of them is served, all decide what comes next.
    """
    digest = hashlib.blake2b(digest_size=16)
    for key in sorted(state):
        tensor = state[key]
        digest.update(f"{key}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(stored_bits(tensor).data)
    return digest.hexdigest()


def _empty_slot(parameter: torch.Tensor, slot: str) -> torch.Tensor:
    """Storage for one AdamW slot: its step count is a plain 0-d tensor, its moments are sharded."""
    return torch.zeros(()) if slot == "step" else torch.zeros_like(parameter)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    from torch.distributed.tensor import DTensor

    if isinstance(tensor, DTensor):
        local: torch.Tensor = tensor.to_local()
        return local
    return tensor
