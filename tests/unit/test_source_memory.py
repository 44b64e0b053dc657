"""Memory of a trainer rank: trackers are one copy of what it owns, construction costs by chunk, not by model.

Arrays are counted by tracemalloc, which sees numpy's; trackers lie in a file that is mapped.
"""

import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from dcr.config import CodecConfig
from dcr.indexmap import IndexMap
from dcr.model import AttemptId, Bits, Catalogue, OwnerClose, PathClass, PayloadRef, TensorSpec
from dcr.source import AffineTask, Baseline
from dcr.source.candidate import Candidate
from dcr.source.convert import Converter
from dcr.source.publish import Lane, Work, publish_payloads
from dcr.source.representation import FirstAttempt

KEY = "00" * 16
MIB = 1 << 20


class Weights:
    """Tensors of ``sizes`` BF16 elements; ``change`` flips the lowest bit of every ``step``-th element."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.words = {
            f"t{i}": np.arange(size, dtype=np.uint32).astype(np.uint16) for i, size in enumerate(sizes)
        }

    @property
    def num_bytes(self) -> int:
        return sum(words.nbytes for words in self.words.values())

    def tensors(self) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(name, words.shape, "bfloat16") for name, words in self.words.items())

    def tasks(self) -> tuple[AffineTask, ...]:
        return tuple(
            AffineTask(name, name, "bfloat16", words.size, IndexMap.identity(words.size), (0,))
            for name, words in self.words.items()
        )

    def read(self, task: AffineTask) -> Bits:
        return self.words[task.name]

    def counters(self) -> str:
        return ""

    def change(self, step: int) -> None:
        for words in self.words.values():
            words[::step] ^= 1


class Nowhere:
    """An outlet that keeps nothing."""

    def publish(self, attempt: AttemptId, ref: PayloadRef, data: bytes) -> None:
        pass

    def close(self, close: OwnerClose) -> None:
        pass


@contextmanager
def traced() -> Iterator[list[int]]:
    """Yields a list that holds, at the end, what was allocated and kept, and the most at any time."""
    found: list[int] = []
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        yield found
        now, peak = tracemalloc.get_traced_memory()
        found += [now - before, peak - before]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("persistent", [True, False])
def test_trackers_take_at_most_1_01_of_the_owned_bytes(tmp_path: Path, persistent: bool) -> None:
    """In a mapped file, which lies in the page cache, or in arrays."""
    weights = Weights([1 << 20] * 48 + [2048] * 96)
    assert weights.num_bytes > 100e6
    with traced() as found:
        baseline = Baseline.create(
            tmp_path, weights.tasks(), weights.read, audit_key=KEY, persistent=persistent
        )
    assert baseline.version == 0
    held, peak = found
    in_files = sum(512 * path.stat().st_blocks for path in tmp_path.iterdir())
    assert in_files + held <= 1.01 * weights.num_bytes
    assert in_files + peak <= 1.01 * weights.num_bytes, "nothing is copied on the way"
    assert (in_files > held) is persistent


@pytest.fixture(autouse=True, scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Compiled loops are loaded before anything is counted."""
    peak_of(tmp_path_factory.mktemp("warm"), 2, CodecConfig(chunk_mib=1, bucket_mib=1), 100)


def construct(weights: Weights, baseline: Baseline, codec: CodecConfig) -> OwnerClose:
    catalogue = Catalogue(run="0" * 32, audit_key=KEY, tensors=weights.tensors())
    classes = dict.fromkeys(weights.words, PathClass.XOR)
    converter = Converter(weights, baseline, catalogue.by_name(), KEY)
    convert = converter.changes(Candidate(1, "", 1), FirstAttempt(classes, codec.name), classes)
    work = Work(AttemptId(1, 1), 0, baseline.tasks, convert, lambda: None)
    return publish_payloads(work, Lane(0, "0" * 32, catalogue.digest(), (), codec, Nowhere()))


def peak_of(folder: Path, num_tensors: int, codec: CodecConfig, step: int) -> int:
    weights = Weights([1 << 20] * num_tensors)
    baseline = Baseline.create(folder, weights.tasks(), weights.read, audit_key=KEY)
    weights.change(step)
    with traced() as found:
        close = construct(weights, baseline, codec)
    assert close.num_changed == num_tensors * -(-(1 << 20) // step)
    assert len(close.payloads) > 1
    return found[1]


@pytest.mark.parametrize("step", [100, 1])
def test_twice_the_model_constructs_with_the_same_peak(tmp_path: Path, step: int) -> None:
    """With few changes and where everything changes: then a bucket ends by the size of its items."""
    codec = CodecConfig(threads=1, chunk_mib=2, bucket_mib=4, queue=1)
    small, large = (peak_of(tmp_path / str(number), number, codec, step) for number in (8, 16))
    assert large <= 1.05 * small


def test_threads_hold_a_chunk_each_and_payloads_as_many_as_the_queue(tmp_path: Path) -> None:
    """What docs/architecture.md states, far below the model."""
    codec = CodecConfig(threads=2, chunk_mib=2, bucket_mib=4, queue=1)
    bound = (codec.threads + 1) * codec.chunk_mib * MIB + (codec.queue + 1) * codec.bucket_mib * MIB
    assert peak_of(tmp_path, 24, codec, 100) < bound < 24 * 2 * MIB / 3
