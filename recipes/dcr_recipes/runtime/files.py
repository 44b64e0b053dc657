"""Tensors of a dense candidate's file, one at a time."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dcr.errors import PayloadError

if TYPE_CHECKING:
    import torch


def dense_tensors(path: Path) -> Iterator[tuple[str, "torch.Tensor"]]:
    """Every tensor of the safetensors file at ``path``.

    Raises:
        PayloadError: it is missing or broken.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 -- not a dict
                yield name, file.get_tensor(name)
    except (SafetensorError, OSError) as err:
        raise PayloadError(f"{path}: not readable as safetensors: {err}") from err
