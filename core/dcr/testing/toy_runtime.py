"""A small runtime whose loader takes every kind of path, and can be told to misbehave.

Its dense load is the oracle of the receiver's tests: plain ``copy_`` calls and nothing else.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

from dcr.model import Catalogue, RunId, TensorSpec

Place: TypeAlias = Callable[["ToyRuntime", torch.Tensor], None]
Misbehaviour: TypeAlias = Callable[["ToyRuntime", str, torch.Tensor], None]

RUN: RunId = "5" * 32
AUDIT_KEY = "0123456789abcdef0123456789abcdef"


def catalogue(*, tiny: bool = False) -> Catalogue:
    """Canonical tensors of the toy model; ``tiny`` is the cheapest one that still packs and casts."""
    return Catalogue(RUN, AUDIT_KEY, TINY if tiny else FULL)


class ToyRuntime:
    """Implements ``NativeLoader``. ``hostile`` replaces the placement of single tensors, at any time.

    ``tied`` true loads the tied head into the embedding's storage again; else it is skipped.
    ``batching`` true collects the whole stream before it copies anything.
    """

    def __init__(self, *, tiny: bool = False, tied: bool = False, batching: bool = False) -> None:
        self.catalogue = catalogue(tiny=tiny)
        self.hostile: dict[str, Misbehaviour] = {}
        self.num_synchronized = 0
        self._tied = tied
        self._batching = batching
        self._tensors = _tiny_tensors() if tiny else _full_tensors()

    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Place each tensor in turn.

        Raises:
            ValueError: an unknown name.
        """
        for name, weight in list(weights) if self._batching else weights:
            if name in self.hostile:
                self.hostile[name](self, name, weight)
            elif not self.skips(name):
                self.place(name, weight)

    def place(self, name: str, weight: torch.Tensor) -> None:
        """What an honest loader does with ``name``."""
        if name not in PLACES:
            raise ValueError(f"unknown weight {name}")
        PLACES[name](self, weight)

    def resident(self) -> dict[str, torch.Tensor]:
        """See ``NativeLoader``."""
        return dict(self._tensors)

    def refusals(self) -> dict[str, str]:
        """Nothing beyond what the learning pass sees for itself."""
        return {}

    def skips(self, name: str) -> bool:
        """The expert lives on another rank; the tied head shares the embedding."""
        return name == "expert.weight" or (name == "head.weight" and not self._tied)

    def synchronize(self) -> None:
        """Count the calls."""
        self.num_synchronized += 1

    def data(self, name: str) -> torch.Tensor:
        """The live storage of a resident tensor."""
        return self._tensors[name].data


@dataclass(slots=True)
class RecordingGate:
    """Implements ``RequestGate`` and remembers: ``version`` is None while it is closed."""

    version: int | None = None
    log: list[tuple[str, int, bool]] = field(default_factory=list)

    def close(self) -> None:
        """See ``RequestGate``."""
        self.version = None
        self.log.append(("close", -1, False))

    def open(self, version: int, *, changed: bool) -> None:
        """See ``RequestGate``; opening an open gate is not logged again."""
        if self.version != version:
            self.log.append(("open", version, changed))
        self.version = version


def _parameter(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.zeros(shape, dtype=dtype), requires_grad=False)


def _tiny_tensors() -> dict[str, torch.Tensor]:
    return {"qk": _parameter(6, 2), "norm": _parameter(3, dtype=torch.float32)}


def _full_tensors() -> dict[str, torch.Tensor]:
    return {
        "embed": _parameter(8, 4),
        "qkv": _parameter(8, 4),
        "qkv_bias": _parameter(8),
        "gate_up": _parameter(6, 4),
        "down": _parameter(4, 3),
        "left": _parameter(4, 2),
        "right": _parameter(4, 3),
        "padded": _parameter(7, 4),
        "interleaved": _parameter(3, 8),
        "decay": _parameter(5, dtype=torch.float32),
        "both": _parameter(2, 3),
        "both_wide": torch.zeros(2, 3),
        "repeated": _parameter(3, 4),
        "temperature": _parameter(dtype=torch.float32),
        "one": _parameter(1),
        "number": _parameter(1),
        "count": torch.zeros(3, dtype=torch.int64),
        "flags": torch.zeros(5, dtype=torch.bool),
        "flag": torch.zeros((), dtype=torch.bool),
        "table": torch.zeros(16, 20, dtype=torch.float8_e4m3fn),
        "bytes": torch.zeros(4, dtype=torch.uint8),
        "position": torch.arange(4, dtype=torch.float32),
    }


def _whole(target: str) -> Place:
    return lambda runtime, weight: _discard(runtime.data(target).copy_(weight))


def _rows(target: str, start: int) -> Place:
    return lambda runtime, weight: _discard(
        runtime.data(target).narrow(0, start, weight.shape[0]).copy_(weight)
    )


def _transposed(runtime: "ToyRuntime", weight: torch.Tensor) -> None:
    runtime.data("down").copy_(weight.t())


def _columns(runtime: "ToyRuntime", weight: torch.Tensor) -> None:
    runtime.data("left")[:] = weight[:, :2]
    runtime.data("right").copy_(weight.narrow(1, 2, 3))


def _padded(runtime: "ToyRuntime", weight: torch.Tensor) -> None:
    runtime.data("padded")[:5].copy_(weight)
    runtime.data("padded")[5:].fill_(0)
    runtime.data("padded")[7:].fill_(1)  # an empty view


def _every_other(start: int) -> Place:
    return lambda runtime, weight: _discard(runtime.data("interleaved")[:, start::2].copy_(weight))


def _two_dtypes(runtime: "ToyRuntime", weight: torch.Tensor) -> None:
    runtime.data("both").copy_(weight)
    runtime.data("both_wide").copy_(weight)


def _number(runtime: "ToyRuntime", weight: torch.Tensor) -> None:
    runtime.data("number").fill_(weight.item())


def _nothing(runtime: "ToyRuntime", weight: torch.Tensor) -> None:
    """An empty tensor."""


def _discard(_: object) -> None:
    """Lambdas have a value; placements have none."""


PLACES: dict[str, Place] = {
    "embed.weight": _whole("embed"),
    "head.weight": _whole("embed"),
    "q.weight": _rows("qkv", 0),
    "k.weight": _rows("qkv", 4),
    "v.weight": _rows("qkv", 6),
    "q.bias": _rows("qkv_bias", 0),
    "k.bias": _rows("qkv_bias", 4),
    "v.bias": _rows("qkv_bias", 6),
    "gate.weight": _rows("gate_up", 0),
    "up.weight": _rows("gate_up", 3),
    "down.weight": _transposed,
    "split.weight": _columns,
    "padded.weight": _padded,
    "even.weight": _every_other(0),
    "odd.weight": _every_other(1),
    "decay": _whole("decay"),
    "both": _two_dtypes,
    "repeated": _whole("repeated"),
    "temperature": _whole("temperature"),
    "one": _whole("one"),
    "number": _number,
    "count": _whole("count"),
    "flags": _whole("flags"),
    "flag": _whole("flag"),
    "table": _whole("table"),
    "bytes": _whole("bytes"),
    "nothing": _nothing,
    "tiny.q": _rows("qk", 0),
    "tiny.k": _rows("qk", 4),
    "tiny.norm": _whole("norm"),
}

TINY = (
    TensorSpec("tiny.q", (4, 2), "bfloat16"),
    TensorSpec("tiny.k", (2, 2), "bfloat16"),
    TensorSpec("tiny.norm", (3,), "bfloat16"),
)

FULL = (
    TensorSpec("embed.weight", (8, 4), "bfloat16", aliases=("head.weight",)),
    TensorSpec("q.weight", (4, 4), "bfloat16"),
    TensorSpec("k.weight", (2, 4), "bfloat16"),
    TensorSpec("v.weight", (2, 4), "bfloat16"),
    TensorSpec("q.bias", (4,), "bfloat16"),
    TensorSpec("k.bias", (2,), "bfloat16"),
    TensorSpec("v.bias", (2,), "bfloat16"),
    TensorSpec("gate.weight", (3, 4), "bfloat16"),
    TensorSpec("up.weight", (3, 4), "bfloat16"),
    TensorSpec("down.weight", (3, 4), "bfloat16"),
    TensorSpec("split.weight", (4, 5), "bfloat16"),
    TensorSpec("padded.weight", (5, 4), "bfloat16"),
    TensorSpec("even.weight", (3, 4), "bfloat16"),
    TensorSpec("odd.weight", (3, 4), "bfloat16"),
    TensorSpec("decay", (5,), "bfloat16"),
    TensorSpec("both", (2, 3), "bfloat16"),
    TensorSpec("repeated", (4,), "bfloat16"),
    TensorSpec("temperature", (), "float32"),
    TensorSpec("one", (1,), "bfloat16"),
    TensorSpec("number", (1,), "bfloat16"),
    TensorSpec("expert.weight", (4, 4), "bfloat16"),
    TensorSpec("count", (3,), "int64"),
    TensorSpec("flags", (5,), "bool"),
    TensorSpec("flag", (), "bool"),
    TensorSpec("table", (16, 20), "float8_e4m3fn"),
    TensorSpec("bytes", (4,), "uint8"),
    TensorSpec("nothing", (0, 4), "bfloat16"),
)
