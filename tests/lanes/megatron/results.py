"""What the ranks of this lane's worlds have written."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from dcr.model import Bits


def arrays(path: Path) -> dict[str, Any]:
    """Everything in an npz file."""
    with np.load(path) as data:
        return dict(data)


def truth(folder: Path, phase: str) -> dict[str, Bits]:
    """The Bridge's export on rank 0; every rank exports the same."""
    first, *others = [arrays(path) for path in sorted(folder.glob(f"{phase}-[0-9].npz"))]
    for other in others:
        assert first.keys() == other.keys()
        assert all(np.array_equal(first[key], other[key]) for key in first)
    return first


def facts(folder: Path, rank: int = 0) -> dict[str, Any]:
    """What else a rank has told."""
    loaded: dict[str, Any] = json.loads((folder / f"facts-{rank}.json").read_text())
    return loaded
