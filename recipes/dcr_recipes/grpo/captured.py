"""Captured training state: plain tensors by name."""

from collections.abc import Mapping

import torch

from dcr.errors import IntegrityError


def copy_captured(target: torch.Tensor, state: Mapping[str, torch.Tensor], key: str) -> None:
    """Write ``state[key]`` into ``target``.

    Raises:
        IntegrityError: it is missing, or of another shape or dtype.
    """
    source = state.get(key)
    if source is None or source.shape != target.shape or source.dtype != target.dtype:
        found = "nothing" if source is None else f"{source.dtype} {tuple(source.shape)}"
        raise IntegrityError(f"{key}: expected {target.dtype} {tuple(target.shape)}, found {found}")
    target.copy_(source)
