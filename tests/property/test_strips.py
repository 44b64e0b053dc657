"""Strips of a matrix's columns: numbers and locations are inverse, and what a trainer holds is found."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.property.location_items import in_strip, item, spread

from dcr.codec import Item, decode_payload, encode_payload
from dcr.codec.engines import engine_of
from dcr.codec.inspect import inspect_payload
from dcr.codec.kinds import is_strips
from dcr.codec.plan import plan_item
from dcr.codec.strips import Strip, find_strip, locations_of, numbers_in, room_in
from dcr.errors import PayloadError
from dcr.model import AttemptId

ENGINE = engine_of("numpy", 0)


@given(st.integers(2, 40), st.integers(1, 30), st.data())
def test_numbers_count_the_strips_elements_row_by_row(columns: int, rows: int, data: st.DataObject) -> None:
    width = data.draw(st.integers(1, columns - 1))
    first = data.draw(st.integers(0, columns - width))
    top = data.draw(st.integers(0, rows - 1))
    matrix = np.arange(rows * columns, dtype=np.int64).reshape(rows, columns)
    inside = matrix[top:, first : first + width].reshape(-1)
    strip = Strip(int(inside[0]), width, columns)
    assert numbers_in(strip, inside).tolist() == list(range(inside.size))
    assert locations_of(strip, np.arange(inside.size, dtype=np.int64)).tolist() == inside.tolist()
    # a strip at the right edge may reach beyond the last row; what lies before the end is counted
    assert room_in(strip, rows * columns) == inside.size
    assert room_in(strip, rows * columns + 1) == inside.size + (first == 0)


@given(st.integers(2, 40), st.sets(st.integers(0, 999), min_size=1))
def test_the_strip_is_the_narrowest_that_holds_all(columns: int, where: set[int]) -> None:
    locations = np.array(sorted(where), np.int64)
    inside = locations % columns
    width = int(inside.max() - inside.min()) + 1
    found = find_strip(locations, columns, [locations])
    if width > 0.75 * columns:
        assert found is None
    else:
        assert found == Strip(int(locations[0]) // columns * columns + int(inside.min()), width, columns)
        assert numbers_in(found, locations)[0] < width


@pytest.mark.parametrize(("first", "width"), [(0, 192), (192, 192), (576, 192), (0, 384), (384, 384)])
def test_a_shard_of_columns_costs_what_one_of_rows_does(first: int, width: int) -> None:
    """0.6 bits a change and more were lost to gaps between rows of the strip."""
    strip = item("w", in_strip(20_000, first, width, 768), shape=(1 << 20, 768))
    rows = item("w", spread(20_000, 0.03), shape=(1 << 20, 768))
    assert len(_encoded(strip)) <= len(_encoded(rows)) + 100
    inspected = inspect_payload(_encoded(strip)).items[0]
    assert inspected.location_kind.startswith("strips")
    assert 8 * inspected.locations.stored_bytes <= 1.02 * inspected.locations.bound_bits + 2000


def test_whole_matrices_vectors_and_uneven_strips_are_coded_as_before() -> None:
    def plan(locations: np.ndarray[tuple[int], np.dtype[np.int64]], *shape: int) -> int:
        return plan_item(locations, shape, ENGINE, 1).location_type

    even = spread(5000, 0.03)
    assert not is_strips(plan(even, 1000, 768))
    assert not is_strips(plan(even, 1000 * 768))
    assert not is_strips(plan(in_strip(5000, 0, 4, 4), 1 << 20, 4))
    clustered = np.sort(np.random.default_rng(3).choice(40 * 192, 3000, replace=False))
    rows, inside = np.divmod(clustered, 192)
    assert not is_strips(plan(rows**2 * 768 + inside, 1 << 20, 768))
    assert is_strips(plan(in_strip(5000, 0, 192, 768), 16, 1 << 16, 768))


def test_a_strip_ends_with_its_tensor() -> None:
    where = in_strip(2000, 600, 168, 768)
    exact = int(where[-1]) // 768 + 1
    data = _encoded(item("w", where, shape=(exact, 768)))
    assert decode_payload(data).items[0].locations.tolist() == where.tolist()
    with pytest.raises(PayloadError, match="is none of a tensor of 700"):
        room_in(Strip(600, 168, 768), 700)


def _encoded(row: Item) -> bytes:
    return encode_payload([row], attempt=AttemptId(1, 1), owner=0, sequence=0)
