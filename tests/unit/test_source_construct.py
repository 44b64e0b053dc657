"""Owners, representation, chunks and buckets (paper Appendix C, DESIGN R1, R6, R8)."""

import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from dcr.codec import Item
from dcr.errors import ConfigError, UnsupportedPath
from dcr.indexmap import IndexMap
from dcr.model import Encoding, PathClass, known_dtypes, width_bytes
from dcr.source import AffineTask, owned, owner_of, stable_hash
from dcr.source.construct import chunks, emitted_names, refuse_unsupported
from dcr.source.representation import FirstAttempt, Retry
from dcr.transport.values import combined, differences


def task(name: str, num_elements: int = 4, replicas: tuple[int, ...] = (0,)) -> AffineTask:
    return AffineTask(
        name, name, "bfloat16", num_elements, IndexMap.identity(num_elements), replicas, (f"{name}-tied",)
    )


def test_hash_is_fixed_across_processes_and_releases() -> None:
    script = "from dcr.source import stable_hash; print(stable_hash('model.norm.weight'))"
    other = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert stable_hash("model.norm.weight") == int(other) == 4304603226505007698


def test_replicas_share_the_work_and_agree_on_it() -> None:
    replicas = (1, 3, 4)
    tasks = [task(f"layers.{number}.norm", replicas=replicas) for number in range(3000)]
    counts = Counter(owner_of(one) for one in tasks)
    assert sorted(counts) == list(replicas)
    assert min(counts.values()) > 900
    parts = [owned(tasks, rank) for rank in replicas]
    assert sorted(one.key for part in parts for one in part) == sorted(one.key for one in tasks)


@pytest.mark.parametrize("replicas", [(), (1, 0), (0, 0)])
def test_malformed_replicas_are_refused(replicas: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="distinct ranks, ascending"):
        owner_of(task("a", replicas=replicas))


def test_tasks_of_other_ranks_and_repeated_keys_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"rank 1 offers task 'a', whose replicas are \(0,\)"):
        owned([task("a")], 1)
    with pytest.raises(ConfigError, match=r"repeats \['a'\]"):
        owned([task("a"), task("b"), task("a")], 0)


@pytest.mark.parametrize("path", list(PathClass))
def test_differences_need_a_path_that_takes_them_and_an_unopened_transition(path: PathClass) -> None:
    first = FirstAttempt({"a": path}, "published")
    expected = Encoding.XOR if path is PathClass.XOR else Encoding.OVERWRITE
    assert first.of("a", "bfloat16") is expected
    assert first.of("b", "bfloat16") is Encoding.OVERWRITE
    assert Retry().of("a", "bfloat16") is Encoding.OVERWRITE
    assert not hasattr(Retry(), "classification"), "a retry has nothing to decide with"


@pytest.mark.parametrize("dtype", known_dtypes())
def test_words_are_sent_as_differences_modulo_2_16_and_other_widths_as_masks(dtype: str) -> None:
    encoding = FirstAttempt({"a": PathClass.XOR}, "planes").of("a", dtype)
    assert encoding is (Encoding.DELTA16 if width_bytes(dtype) == 2 else Encoding.XOR)
    assert FirstAttempt({"a": PathClass.XOR}, "published").of("a", dtype) is Encoding.XOR


@pytest.mark.parametrize("encoding", Encoding)
@pytest.mark.parametrize("width", [np.uint8, np.uint16, np.uint32, np.uint64])
def test_values_lead_from_every_bit_pattern_to_every_other(encoding: Encoding, width: type) -> None:
    rng = np.random.default_rng(3)
    top = np.iinfo(width).max
    edges: np.ndarray = np.array([0, 1, top // 2, top // 2 + 1, top - 1, top], width)
    old = np.concatenate([np.repeat(edges, 6), rng.integers(0, top, 100, width, endpoint=True)])
    new = np.concatenate([np.tile(edges, 6), rng.integers(0, top, 100, width, endpoint=True)])
    if encoding is Encoding.DELTA16 and width is not np.uint16:
        with pytest.raises(ConfigError, match="delta16 is for elements of 2 bytes"):
            differences(encoding, old, new)
        with pytest.raises(ConfigError, match="delta16 is for elements of 2 bytes"):
            combined(encoding, old, new)
        return
    values = differences(encoding, old, new)
    assert values.dtype == width
    assert np.array_equal(combined(encoding, old, values), new)
    if encoding is not Encoding.OVERWRITE:
        assert np.array_equal(values == 0, old == new), "0 means no change"


def test_alias_is_sent_only_where_it_is_placed() -> None:
    one = task("a")
    assert emitted_names(one, {}) == ("a",)
    assert emitted_names(one, {"a-tied": PathClass.SKIP}) == ("a",)
    assert emitted_names(one, {"a": PathClass.SKIP, "a-tied": PathClass.OVERWRITE}) == ("a", "a-tied")


def test_refused_names_matter_only_to_their_owner() -> None:
    refuse_unsupported([task("a")], {"b": PathClass.REFUSED, "a": PathClass.XOR})
    with pytest.raises(UnsupportedPath, match=r"\['a', 'b-tied'\]"):
        refuse_unsupported([task("a"), task("b")], {"a": PathClass.REFUSED, "b-tied": PathClass.REFUSED})


def test_chunks_close_at_the_target_and_never_split() -> None:
    sizes = [10, 10, 100, 5, 5, 5]
    tasks = [task(str(number), size) for number, size in enumerate(sizes)]
    grouped = [[one.num_elements for one in chunk] for chunk in chunks(tasks, 2 * 15)]
    assert grouped == [[10, 10], [100], [5, 5, 5]]
    assert list(chunks([], 10)) == []


def item(name: str) -> Item:
    return Item(name, (4,), "bfloat16", Encoding.OVERWRITE, np.zeros(1, np.int64), np.zeros(1, np.uint16))
