import numpy as np
import pytest

from dcr.codec.frames import TRY_WHOLE_BYTES, sample


@pytest.mark.parametrize("num_words", [469_195, (1 << 20) + 1, 12_345_677])
def test_a_sample_cuts_no_word(num_words: int) -> None:
    words = np.full(num_words, 0x0100, np.uint16)
    assert words.nbytes > TRY_WHOLE_BYTES
    taken = np.frombuffer(sample(words.view(np.uint8).data), np.uint16)
    assert (taken == 0x0100).all()
