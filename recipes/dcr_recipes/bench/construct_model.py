"""A checkpoint of distinct memory with trackers and sparse changes, as one owner has it (paper section 5)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dcr.indexmap import IndexMap
from dcr.model import Bits, TensorSpec
from dcr.source import AffineTask, Baseline
from dcr_recipes.bench.construct_path import AUDIT_KEY
from dcr_recipes.bench.data import Changes, Words, change_of, named_change
from dcr_recipes.bench.report import Steps

_HIDDEN, _FFN, _VOCABULARY = 2048, 6144, 32768
_SEED = 7


def specs_of(mib: int) -> tuple[TensorSpec, ...]:
    """A dense transformer's matrices and norms, as many layers as fill about ``mib``; small ones shrink."""
    target, layer = mib << 20, 0
    specs: list[TensorSpec] = []
    if target >= 512 << 20:
        specs += [TensorSpec(name, (_VOCABULARY, _HIDDEN), "bfloat16") for name in ("embedding", "head")]
    hidden = _HIDDEN if target >= 64 << 20 else 256
    while sum(spec.num_bytes for spec in specs) < target:
        specs += _layer(layer, hidden, _FFN * hidden // _HIDDEN)
        layer += 1
    return tuple(specs)


def _layer(layer: int, hidden: int, ffn: int) -> list[TensorSpec]:
    shapes: dict[str, tuple[int, ...]] = {
        "norm.in": (hidden,), "norm.out": (hidden,),
        "q": (hidden, hidden), "k": (hidden // 2, hidden), "v": (hidden // 2, hidden), "o": (hidden, hidden),
        "gate": (ffn, hidden), "up": (ffn, hidden), "down": (hidden, ffn),
    }  # fmt: skip
    return [TensorSpec(f"layers.{layer}.{name}", shape, "bfloat16") for name, shape in shapes.items()]


@dataclass(slots=True)
class Checkpoint:
    """Candidate words that follow a chosen set of changes; implements ``ShardSource``."""

    specs: tuple[TensorSpec, ...]
    words: dict[str, Words]
    changes: dict[float, dict[str, Changes]]

    def tensors(self) -> tuple[TensorSpec, ...]:
        """The catalogue's tensors."""
        return self.specs

    def tasks(self) -> Sequence[AffineTask]:
        """One whole tensor a task."""
        return tuple(
            AffineTask(
                key=spec.name,
                name=spec.name,
                dtype=spec.dtype,
                num_elements=spec.num_elements,
                map=IndexMap.contiguous(spec.num_elements, 0, spec.num_elements),
                replicas=(0,),
            )
            for spec in self.specs
        )

    def read(self, task: AffineTask) -> Bits:
        """The candidate, live."""
        return self.words[task.name]

    def counters(self) -> str:
        """Nothing counts here."""
        return ""

    def move_to(self, rate: float) -> None:
        """Make the candidate differ from version 0 by the changes of ``rate``."""
        for name, change in self.changes[rate].items():
            self.words[name][change.locations] = change.new

    def move_back(self, rate: float) -> None:
        """Make the candidate version 0 again."""
        for name, change in self.changes[rate].items():
            self.words[name][change.locations] = change.old

    @property
    def num_bytes(self) -> int:
        """Bytes of the checkpoint."""
        return sum(spec.num_bytes for spec in self.specs)

    def rate_of(self, rate: float) -> float:
        """Measured share of changed elements."""
        changed = sum(change.locations.size for change in self.changes[rate].values())
        return changed / sum(spec.num_elements for spec in self.specs)


def make_checkpoint(mib: int, rates: Sequence[float], steps: Steps) -> Checkpoint:
    """Weights of version 0 and the changes of each rate; every byte is distinct memory."""
    specs = specs_of(mib)
    words: dict[str, Words] = {}
    changes: dict[float, dict[str, Changes]] = {}
    for rate in rates:
        steps(f"weights and changes of {100 * rate:g}%")
        change = named_change(rate)[1]
        found = {}
        for place, spec in enumerate(specs):
            words[spec.name], found[spec.name] = change_of(change, (_SEED, place), spec.num_elements)
        changes[rate] = found
    return Checkpoint(specs, words, changes)


def make_baseline(checkpoint: Checkpoint, directory: Path) -> Baseline:
    """Trackers of version 0 in ``directory``."""
    return Baseline.create(directory, checkpoint.tasks(), checkpoint.read, audit_key=AUDIT_KEY)


def kinds_of(rates: Sequence[float]) -> dict[str, str]:
    """Which kind of change each rate is, for the report."""
    return {f"{rate:g}": "adamw" if rate <= 0.01 else "relative" for rate in rates}


def total_elements(specs: Sequence[TensorSpec]) -> int:
    """Elements of all tensors."""
    return int(np.sum([spec.num_elements for spec in specs], dtype=np.int64))
