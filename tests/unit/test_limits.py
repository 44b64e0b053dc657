import numpy as np
import pytest

from dcr.codec import Item, Limits, decode_payload, encode_payload
from dcr.errors import PayloadError
from dcr.model import AttemptId, Catalogue, Encoding, TensorSpec

ATTEMPT = AttemptId(1, 1)


def _payload(num_elements: int) -> bytes:
    at = np.arange(0, 2 * num_elements, 2, dtype=np.int64)
    item = Item("w", (2 * num_elements,), "bfloat16", Encoding.OVERWRITE, at, at.astype(np.uint16))
    return encode_payload([item], attempt=ATTEMPT, owner=0, sequence=0)


def test_a_runs_limits_admit_all_of_its_elements_and_not_one_more() -> None:
    catalogue = Catalogue("a" * 32, "b" * 32, (TensorSpec("w", (100,), "bfloat16"),))
    limits = Limits.of_catalogue(catalogue)
    assert decode_payload(_payload(100), limits=limits).items[0].locations.size == 100
    with pytest.raises(PayloadError, match="entries"):
        decode_payload(_payload(101), limits=limits)


def test_aliases_count_as_copies() -> None:
    catalogue = Catalogue("a" * 32, "b" * 32, (TensorSpec("w", (100,), "bfloat16", ("tied",)),))
    assert Limits.of_catalogue(catalogue).max_entries == 200
