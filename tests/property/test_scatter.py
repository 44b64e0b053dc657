"""Every engine writes and reads what a loop over the elements of random boxes does (DESIGN B2)."""

from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dcr.codec import Positions
from dcr.errors import UnsupportedPath
from dcr.indexmap import Box
from dcr.model import Bits
from dcr.receiver.scatter import numba_engine
from dcr.receiver.scatter.batch import Action, Entries, Room, Widths, of_width
from dcr.receiver.scatter.engine import NUMPY, TORCH, Engine
from dcr.receiver.scatter.plan import Plan, Route, compile_plan
from dcr.receiver.scatter.reader import clip, read_range
from dcr.receiver.storages import Storages

COMPILED = Engine(
    "compiled", partial(numba_engine.scatter, least=0), partial(numba_engine.read, least=0), group=8
)
COMPILED_WIDTHS = (2,)
"""One kernel serves all widths; compiling takes some seconds for each, so the others are nightly."""
few = settings(max_examples=max(settings().max_examples // 6, 25))
"""A case has two tensors, up to six boxes and three actions: fewer of them show as much."""
ENGINES = [COMPILED, NUMPY, TORCH]
WIDTHS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def pairs(box: Box) -> list[tuple[int, int]]:
    """(canonical index, offset) of every element of ``box``, the slow way."""
    return [
        (
            box.src_offset + sum(i * s for i, s in zip(steps, box.src_strides, strict=True)),
            box.dst_offset + sum(i * s for i, s in zip(steps, box.dst_strides, strict=True)),
        )
        for steps in product(*(range(size) for size in box.shape))
    ]


@st.composite
def boxes(draw: st.DrawFn, shape: tuple[int, ...]) -> Box:
    """What ``storage[part].copy_(tensor[part].permute(...))`` does, of random parts."""
    near = np.arange(int(np.prod(shape))).reshape(shape)
    for axis in range(near.ndim):
        start = draw(st.integers(0, near.shape[axis] - 1))
        near = near.swapaxes(0, axis)[start :: draw(st.integers(1, 3))].swapaxes(0, axis)
        near = near.swapaxes(0, axis)[: draw(st.integers(1, near.shape[axis]))].swapaxes(0, axis)
    near = near.transpose(draw(st.permutations(range(near.ndim))))
    steps = [draw(st.integers(1, 2)) for _ in near.shape]
    room = tuple(size * step + 1 for size, step in zip(near.shape, steps, strict=True))
    far = np.arange(int(np.prod(room))).reshape(room)
    far = far[tuple(slice(1 if step > 1 else 0, None, step) for step in steps)]
    far = far[tuple(slice(0, size) for size in near.shape)]
    strides = tuple(s // near.itemsize for s in near.strides), tuple(s // far.itemsize for s in far.strides)
    return Box(near.shape, int(near.flat[0]), strides[0], int(far.flat[0]), strides[1])


@dataclass
class Case:
    """Two tensors of one width, each in one to three storages of its own, and some changes of them."""

    width: int
    routes: list[Route]
    batch: list[Entries]
    memory: list[torch.Tensor]

    def plan(self) -> tuple[Plan, list[torch.Tensor]]:
        """Compiled over a fresh copy of the memory."""
        memory = [tensor.clone() for tensor in self.memory]
        storages = Storages({str(i): tensor for i, tensor in enumerate(memory)})
        return compile_plan(self.routes, storages), memory


@st.composite
def cases(draw: st.DrawFn, widths: tuple[int, ...] = COMPILED_WIDTHS) -> Case:
    width = draw(st.sampled_from(widths))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    routes: list[Route] = []
    batch: list[Entries] = []
    memory: list[torch.Tensor] = []
    for row in range(2):
        shape = tuple(draw(st.lists(st.integers(1, 6), min_size=0, max_size=4)))
        size = int(np.prod(shape))
        landings = []
        for box in draw(st.lists(boxes(shape), min_size=0, max_size=3)):
            landings.append((box, len(memory)))
            memory.append(_noise(rng, width, box.dst_last + draw(st.integers(1, 4))))
        routes.append(Route(f"t{row}", size, width, tuple(landings)))
        at = _some(draw, rng, size, (0.1, 0.5, 1.0))
        values = _bits(rng, width, at.size)
        batch.append(Entries(row, draw(st.sampled_from(list(Action)[:3])), at, values))
    memory.append(_noise(rng, width, 1))  # a plan without storages would need no test
    return Case(width, routes, batch, memory)


@st.composite
def of_rows(draw: st.DrawFn) -> Case:
    """A part of the columns of a matrix, and a few or some dozens of changes in every row."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows, pitch, step = draw(st.integers(2, 30)), draw(st.integers(30, 90)), draw(st.integers(1, 2))
    columns = draw(st.integers(1, pitch - 1))
    first = draw(st.integers(0, pitch - columns))
    far_pitch = columns * step + draw(st.integers(0, 3))
    box = Box((rows, columns), first, (pitch, 1), draw(st.integers(0, 3)), (far_pitch, step))
    size = rows * pitch
    return _one(draw, rng, box, size, _some(draw, rng, size, (0.05, 0.2, 0.5, 0.9, 1.0)))


@st.composite
def of_a_run(draw: st.DrawFn) -> Case:
    """A run of a vector, at one of its ends or in the middle, and changes on both sides of it."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    size = draw(st.integers(1, 400))
    first = draw(st.integers(0, size - 1))
    box = Box((draw(st.integers(1, size - first)),), first, (1,), draw(st.integers(0, 3)), (1,))
    return _one(draw, rng, box, size, _some(draw, rng, size, (0.05, 0.2, 0.9)))


def _some(draw: st.DrawFn, rng: np.random.Generator, size: int, rates: tuple[float, ...]) -> Positions:
    """Positions of four or of eight bytes."""
    at = np.flatnonzero(rng.random(size) < draw(st.sampled_from(rates)))
    return at.astype(draw(st.sampled_from([np.int32, np.int64])))


def _one(draw: st.DrawFn, rng: np.random.Generator, box: Box, size: int, at: np.ndarray) -> Case:
    action = draw(st.sampled_from(list(Action)[:3]))
    memory = [_noise(rng, 2, box.dst_last + 1 + draw(st.integers(0, 3)))]
    return Case(
        2, [Route("t", size, 2, ((box, 0),))], [Entries(0, action, at, _bits(rng, 2, at.size))], memory
    )


def _bits(rng: np.random.Generator, width: int, size: int) -> Bits:
    return rng.integers(0, 256, size * width, dtype=np.uint8).view(of_width(width))


def _noise(rng: np.random.Generator, width: int, size: int) -> torch.Tensor:
    return torch.from_numpy(_bits(rng, width, size).view(f"i{width}"))


def by_hand(case: Case) -> list[Bits]:
    """The memory after the batch, element by element."""
    memory = [tensor.numpy().view(of_width(case.width)).copy() for tensor in case.memory]
    for entries in case.batch:
        new = dict(zip(entries.positions.tolist(), entries.values, strict=True))
        for box, store in case.routes[entries.row].landings:
            for near, far in pairs(box):
                if near in new:
                    old = memory[store][far]
                    after = {Action.SET: new[near], Action.XOR: old ^ new[near], Action.ADD: old + new[near]}
                    memory[store][far] = after[entries.action]
    return memory


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
@few
@given(cases())
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_scatter_is_what_a_loop_does(engine: Engine, case: Case) -> None:
    does_what_a_loop_does(engine, case)


@pytest.mark.parametrize("engine", [NUMPY, TORCH], ids=lambda engine: engine.name)
@few
@given(cases((1, 4, 8)))
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_scatter_of_other_widths(engine: Engine, case: Case) -> None:
    does_what_a_loop_does(engine, case)


@pytest.mark.slow
@few
@given(cases((1, 4, 8)))
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_compiled_scatter_of_other_widths(case: Case) -> None:
    does_what_a_loop_does(COMPILED, case)


def does_what_a_loop_does(engine: Engine, case: Case) -> None:
    plan, memory = case.plan()
    done = engine.scatter(plan, case.batch)
    for tensor, expected in zip(memory, by_hand(case), strict=True):
        assert np.array_equal(tensor.numpy().view(expected.dtype), expected)
    for entries, written in zip(case.batch, done, strict=True):
        wanted = set(entries.positions.tolist())
        landings = case.routes[entries.row].landings
        assert written == sum(near in wanted for box, _ in landings for near, _ in pairs(box))


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
@few
@given(cases(), st.booleans())
def test_read_gives_the_bits_and_tells_replicas_that_differ(engine: Engine, case: Case, torn: bool) -> None:
    """Contents are the canonical index, so that replicas agree; or the noise that is there."""
    plan, memory = case.plan()
    if not torn:
        for row, route in enumerate(case.routes):
            whole = np.arange(route.num_elements, dtype=np.int64)
            NUMPY.scatter(plan, [Entries(row, Action.SET, whole, whole.astype(of_width(case.width)))])
    batch = [(entries.row, entries.positions) for entries in case.batch]
    for (row, positions), got in zip(batch, engine.read(plan, batch), strict=True):
        found: dict[int, set[int]] = {}
        for box, store in case.routes[row].landings:
            for near, far in pairs(box):
                found.setdefault(near, set()).add(int(memory[store].numpy().view(of_width(case.width))[far]))
        wanted = [found.get(int(at), set()) for at in positions]
        assert got.held.tolist() == [bool(values) for values in wanted]
        assert (got.differs >= 0) == any(len(values) > 1 for values in wanted)
        assert all(int(value) in values for value, values in zip(got.values, wanted, strict=True) if values)


@few
@given(cases() | of_rows() | of_a_run(), st.booleans(), st.sampled_from(["i4", "i8"]))
def test_gather_lists_what_read_holds_and_counts_what_is_not_as_sent(
    case: Case, torn: bool, index: str
) -> None:
    plan, _ = case.plan()
    if not torn:
        COMPILED.scatter(plan, [entries._replace(action=Action.SET) for entries in case.batch])
    batch = [entries._replace(action=Action.SET) for entries in case.batch]
    room = Room()
    room.arrays(3, case.width)[0][:] = -1  # memory that was used before
    batch = [entries._replace(positions=entries.positions.astype(index)) for entries in batch]
    kept: list[np.ndarray] = []
    records = numba_engine.records_of_entries(batch, kept)
    found = numba_engine.gather(plan, records, Widths(case.width, np.dtype(index).itemsize), room)
    held = NUMPY.read(plan, [(entries.row, entries.positions) for entries in batch])
    starts = [0, *found.ends.tolist()]
    for i, (entries, want) in enumerate(zip(batch, held, strict=True)):
        assert (found.differs[i] >= 0) == (want.differs >= 0)
        assert found.ends[i] - starts[i] == np.count_nonzero(want.held)
        assert np.array_equal(found.positions[starts[i] : starts[i + 1]], entries.positions[want.held])
        if want.differs < 0:
            assert np.array_equal(found.values[starts[i] : starts[i + 1]], want.values[want.held])
            assert found.wrong[i] == np.count_nonzero((want.values != entries.values)[want.held])


@few
@given(st.data())
def test_rows_of_tensors_too_large_to_have(data: st.DataObject) -> None:
    """The compiled loop finds rows with an inverse: right up to any size, and beside every edge."""
    inexact = [pitch for pitch in range(3, 2000) if pitch * (1 / pitch) < 1]
    pitches = st.sampled_from(inexact) | st.integers(3, 2**42) | st.integers(2**48, 2**50)
    pitch = data.draw(pitches)
    rows, step = data.draw(st.integers(2, 30)), data.draw(st.integers(1, 2))
    first = data.draw(st.integers(0, pitch))
    columns = data.draw(st.integers(1, min(pitch - 1, 8) // step or 1))
    box = Box((rows, columns), first, (pitch, step), 1, (columns + 1, 1))
    edges = {
        first + row * pitch + d for row in range(rows + 1) for d in (-2, -1, 0, 1, columns * step, pitch // 2)
    }
    at = np.array(sorted(edge for edge in edges if 0 <= edge < first + rows * pitch), dtype=np.int64)
    memory = [_noise(np.random.default_rng(0), 2, box.dst_last + 2)]
    values = np.arange(1, at.size + 1, dtype=np.uint16)
    case = Case(
        2, [Route("t", first + rows * pitch, 2, ((box, 0),))], [Entries(0, Action.SET, at, values)], memory
    )
    does_what_a_loop_does(COMPILED, case)


@few
@given(of_rows() | of_a_run())
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_parts_of_larger_tensors(case: Case) -> None:
    does_what_a_loop_does(COMPILED, case)


@few
@given(cases(), st.data())
def test_a_range_reads_as_its_positions_do(case: Case, data: st.DataObject) -> None:
    plan, _ = case.plan()
    size = case.routes[0].num_elements
    start = data.draw(st.integers(0, size - 1))
    stop = data.draw(st.integers(start + 1, size))
    got = read_range(plan, 0, start, stop)
    want = NUMPY.read(plan, [(0, np.arange(start, stop, dtype=np.int64))])[0]
    assert np.array_equal(got.held, want.held)
    assert (got.differs >= 0) == (want.differs >= 0)
    if got.differs < 0:
        assert np.array_equal(got.values, want.values)


@few
@given(
    st.lists(st.integers(1, 5), max_size=4).map(tuple).flatmap(boxes), st.integers(0, 400), st.integers(0, 60)
)
def test_clip_keeps_exactly_the_range(box: Box, start: int, length: int) -> None:
    normal = box.normal()
    parts = list(clip(normal, start, start + length))
    kept = sorted((near + start, far) for part in parts for near, far in pairs(part))
    assert kept == sorted((near, far) for near, far in pairs(box) if start <= near < start + length)
    assert len(parts) <= 2 * len(normal.shape) + 1


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
@few
@given(cases() | of_rows() | of_a_run(), st.data())
def test_no_item_writes_outside_its_boxes(engine: Engine, case: Case, data: st.DataObject) -> None:
    """Positions that no codec would let through: unordered, negative, past the end."""
    plan, memory = case.plan()
    bits = data.draw(st.sampled_from([32, 64]))
    reach = 2 ** min(40, bits - 1)
    far_out = st.integers(-reach, reach - 1) | st.integers(-3, 200)
    at = np.array(data.draw(st.lists(far_out, max_size=20)), dtype=f"i{bits // 8}")
    if data.draw(st.booleans()):  # many of them, and in no order
        many = np.concatenate([at, np.arange(-9, 600, dtype=at.dtype)])
        at = np.random.default_rng(0).permutation(many)
    values = np.zeros(at.size, dtype=of_width(case.width))
    engine.scatter(plan, [Entries(0, Action.SET, at, values)])
    allowed: list[set[int]] = [set() for _ in memory]
    for box, store in case.routes[0].landings:
        allowed[store] |= {far for near, far in pairs(box) if near in at.tolist()}
    for before, after, inside in zip(case.memory, memory, allowed, strict=True):
        changed = np.flatnonzero(before.numpy() != after.numpy()).tolist()
        assert set(changed) <= inside


def test_a_box_outside_its_storage_or_tensor_is_no_plan() -> None:
    storages = Storages({"w": torch.zeros(8, dtype=torch.int16)})
    with pytest.raises(UnsupportedPath, match="leaves 'w', which has 16 bytes"):
        compile_plan([Route("t", 9, 2, ((Box((9,), 0, (1,), 0, (1,)), 0),))], storages)
    with pytest.raises(UnsupportedPath, match="leaves the tensor of 3 elements"):
        compile_plan([Route("t", 3, 2, ((Box((4,), 0, (1,), 0, (1,)), 0),))], storages)


def test_the_map_costs_little() -> None:
    """At most 300 bytes a tensor with one box of two dimensions (issue: learned placement)."""
    storages = Storages({f"w{i}": torch.zeros(64, dtype=torch.int16) for i in range(50)})
    box = Box((4, 4), 0, (8, 1), 1, (16, 1))
    plan = compile_plan([Route(f"t{i}", 64, 2, ((box, i),)) for i in range(50)], storages)
    assert plan.num_bytes <= 300 * 50
    assert plan.box(7) == box


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@few
@given(cases())
def test_on_a_device(case: Case) -> None:
    memory = [tensor.cuda() for tensor in case.memory]
    plan = compile_plan(case.routes, Storages({str(i): tensor for i, tensor in enumerate(memory)}))
    TORCH.scatter(plan, case.batch)
    for tensor, expected in zip(memory, by_hand(case), strict=True):
        assert np.array_equal(tensor.cpu().numpy().view(expected.dtype), expected)
    batch = [(entries.row, entries.positions) for entries in case.batch]
    host, _ = case.plan()
    NUMPY.scatter(host, case.batch)
    for got, want in zip(TORCH.read(plan, batch), NUMPY.read(host, batch), strict=True):
        assert np.array_equal(got.held, want.held)
        assert got.differs >= 0 or np.array_equal(got.values, want.values)
