"""A trainer rank whose tensors need other ranks: an int8 weight with one scale over all of them (R5)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dcr.indexmap import IndexMap
from dcr.model import TensorSpec, digest_hex
from dcr.source.detect import Candidate
from dcr.source.residual import Part, ResidualConversion
from dcr.source.task import AffineTask

ROWS, WIDTH = 2, 3


@dataclass(frozen=True, slots=True)
class Other:
    """A conversion beside the weight's: this rank's part of ``output`` is ``input`` as it is."""

    input: str
    output: str
    map: IndexMap
    reason: str


def specs(world: int, other: Other) -> tuple[TensorSpec, ...]:
    return (
        TensorSpec("direct", (2,), "float32"),
        TensorSpec("weight.quantized", (world * ROWS, WIDTH), "int8"),
        TensorSpec("weight.scale", (1,), "float32"),
        TensorSpec(other.output, (other.map.dst_size,), "float32"),
    )


class Quantized:
    """``rows`` [ROWS, WIDTH] of the weight, ``other`` and a direct tensor, all zeros at first.

    ``largest`` is a collective: the maximum of a number over all ranks. ``spoil`` alters or drops parts.
    """

    def __init__(self, rank: int, world: int, largest: Callable[[float], float], other: Other) -> None:
        self.rank, self.world = rank, world
        self.rows = np.zeros((ROWS, WIDTH), np.float32)
        self.other = np.zeros(other.map.src_size, np.float32)
        self.direct = np.zeros(2, np.float32)
        self.asked: list[tuple[str, ...]] = []
        self.spoil: Callable[[Part], Part | None] = lambda part: part
        self._largest, self._other = largest, other

    def tensors(self) -> tuple[TensorSpec, ...]:
        return specs(self.world, self._other)

    def tasks(self) -> list[AffineTask]:
        everywhere = tuple(range(self.world))
        return [AffineTask("direct", "direct", "float32", 2, IndexMap.identity(2), everywhere)]

    def read(self, task: AffineTask) -> Candidate:
        return self.direct.view(np.uint32)

    def counters(self) -> str:
        return ""

    def conversions(self) -> tuple[ResidualConversion, ...]:
        scale = ResidualConversion("scale", ("weight",), ("weight.scale",), "a maximum over all ranks")
        values = ResidualConversion("values", ("weight.scale",), ("weight.quantized",), "they share a scale")
        other = self._other
        return values, scale, ResidualConversion("other", (other.input,), (other.output,), other.reason)

    def input_digests(self) -> dict[str, str]:
        return {
            "weight": digest_hex(self.rows.tobytes()),
            self._other.input: digest_hex(self.other.tobytes()),
        }

    def convert(self, names: Sequence[str]) -> Iterator[Part]:
        self.asked.append(tuple(names))
        scale = self._largest(float(np.abs(self.rows).max()))
        values = quantize(self.rows, scale).reshape(-1).view(np.uint8)
        block = IndexMap.from_block((ROWS, WIDTH), (self.rank * ROWS, 0), (self.world * ROWS, WIDTH))
        whole = np.array([scale], np.float32).view(np.uint32)
        parts = (
            Part("weight.quantized", block, values),
            Part("weight.scale", IndexMap.identity(1), whole),
            Part(self._other.output, self._other.map, self.other.view(np.uint32)),
        )
        given = {part.name: part for part in parts}
        yield from (part for name in names if (part := self.spoil(given[name])) is not None)


def quantize(rows: np.ndarray, scale: float) -> np.ndarray:
    return np.round(rows / (scale or 1.0) * 127).astype(np.int8)
