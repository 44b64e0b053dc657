"""Change rates by layer and by kind of tensor: what the heat maps show. Shapes: R rows, S steps."""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcr_recipes.summary import Row

Rates: TypeAlias = NDArray[np.float64]

_LAYER = re.compile(r"\.(\d+)\.")
_NOISE = ("model.", "self_attn.", "mlp.", ".weight")


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Share of changed elements [R, S], nan where a step says nothing of a row."""

    labels: tuple[str, ...]
    steps: tuple[int, ...]
    rates: Rates


def layer_of(tensor: str) -> str:
    """``layer 3`` for a tensor of the third block, else the tensor's own short name."""
    found = _LAYER.search(tensor)
    return f"layer {found[1]}" if found else _short(tensor)


def kind_of(tensor: str) -> str:
    """The tensor's short name, equal in all layers, for example ``q_proj``."""
    return _short(_LAYER.sub(".", tensor).replace("layers.", ""))


def heat_map(rows: Sequence[Row], group: Callable[[str], str]) -> HeatMap:
    """Changed elements over all elements of each ``group`` of tensors and step of ``change_rates.jsonl``."""
    changed: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    elements: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for row in rows:
        for tensor, (num_changed, num_elements) in row["changed"].items():
            changed[group(tensor)][row["step"]] += num_changed
            elements[group(tensor)][row["step"]] += num_elements
    labels, steps = tuple(sorted(changed, key=_place)), tuple(int(row["step"]) for row in rows)
    rates = [
        [_rate(changed[label].get(step, 0), elements[label].get(step, 0)) for step in steps]
        for label in labels
    ]
    return HeatMap(labels, steps, np.array(rates, dtype=np.float64).reshape(len(labels), len(steps)))


def _rate(num_changed: int, num_elements: int) -> float:
    return num_changed / num_elements if num_elements else float("nan")


def _short(tensor: str) -> str:
    for noise in _NOISE:
        tensor = tensor.replace(noise, "")
    return tensor.strip(".")


def _place(label: str) -> tuple[Any, ...]:
    """Embedding first, then layers by number, then the rest by name."""
    if label.startswith("embed"):
        return 0, 0, label
    number = label.removeprefix("layer ")
    return (1, int(number), "") if number.isdecimal() else (2, 0, label)
