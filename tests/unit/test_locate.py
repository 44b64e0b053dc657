"""Where a rank's bits differ: exact where little is wrong, and quick however much is."""

from collections.abc import Sequence

import numpy as np
import pytest

from dcr.audit import digest_at
from dcr.errors import IntegrityError
from dcr.model import Bits
from dcr.receiver.locate import differing_ranges
from dcr.receiver.rank import PartDigests
from dcr.receiver.writer import Slice

KEY = "00112233445566778899aabbccddeeff"
N = 5000
WHOLE = (((0, ((N, 1),)),),)


class Rank:
    """Holds ``bits`` [N] of one tensor and counts how often it is asked."""

    def __init__(self, bits: Bits) -> None:
        self.bits = bits
        self.num_scans = 0

    def scan(self, slices: Sequence[Slice]) -> list[PartDigests]:
        self.num_scans += 1
        return [
            (digest_at(KEY, s.name, np.arange(s.start, s.stop), self.bits[s.start : s.stop]),) for s in slices
        ]


@pytest.mark.parametrize("wrong", [[0], [N - 1], [17, 18, 19], [3, 2500, 4999], [15, 16]])
def test_a_few_elements_are_named_exactly(wrong: list[int]) -> None:
    truth = np.zeros(N, dtype=np.uint16)
    rank = Rank(truth.copy())
    rank.bits[wrong] = 1
    named = {
        i
        for start, stop in differing_ranges(rank.scan, "w", truth, WHOLE, key=KEY)
        for i in range(start, stop)
    }
    assert named == set(wrong)


@pytest.mark.parametrize(("start", "stop"), [(0, N), (1, N - 1), (777, 4001)])
def test_a_long_run_costs_no_more_than_its_ends(start: int, stop: int) -> None:
    """All of a tensor may be wrong (storage that was unmapped): the receiver's lock is held meanwhile."""
    truth = np.zeros(N, dtype=np.uint16)
    rank = Rank(truth.copy())
    rank.bits[start:stop] = 1
    assert differing_ranges(rank.scan, "w", truth, WHOLE, key=KEY) == ((start, stop),)
    assert rank.num_scans < 300


def test_a_tensor_that_cannot_be_read_is_wrong_everywhere() -> None:
    """As one that the loader makes again: it differs as a whole, whatever the range."""
    num_scans = 0

    def refuse(slices: Sequence[Slice]) -> list[PartDigests]:
        nonlocal num_scans
        num_scans += 1
        raise IntegrityError("its copies differ")

    truth = np.zeros(N, dtype=np.uint16)
    assert differing_ranges(refuse, "w", truth, WHOLE, key=KEY) == ((0, N),)
    assert num_scans < 300
