"""Prewarm compiles what a first refit needs: once a process, unheard, only where there is much to write."""

import subprocess
import sys

import pytest

from dcr import observe
from dcr.model import Catalogue, TensorSpec
from dcr.receiver import warm
from dcr.receiver.apply import RankApplier
from dcr.receiver.warm import LEAST_ELEMENTS, warm_up

NOTHING_IS_COMPILED_LATER = """
import numpy as np
from tests.unit.test_bench_apply import _Copies
from dcr.audit import compiled as audit
from dcr.codec import compiled as codec
from dcr.codec import decode_payload, encode_payload
from dcr.model import AttemptId, Catalogue, Encoding, TensorSpec
from dcr.receiver.apply import Applier
from dcr.receiver.scatter import compiled as scatter
from dcr.testing.deltas import changed_version, delta_items, random_version
from dcr.model import PathClass

def compiled():
    found = [*vars(audit).values(), *vars(scatter).values()]
    loops = [each for each in found if hasattr(each, "signatures")]
    return sum(len(each.signatures) for each in loops), codec.kernel.cache_info().currsize

catalogue = Catalogue("0" * 32, "00" * 16, (TensorSpec("a", (2048, 1024), "bfloat16"),))
writer = Applier(_Copies(catalogue.tensors), catalogue)
writer.prewarm()
before = compiled()
assert min(before), before
rng = np.random.default_rng(0)
old = {"a": np.zeros(2048 * 1024, np.uint16)}
for encoding in (Encoding.XOR, Encoding.OVERWRITE, Encoding.DELTA16):
    new = changed_version(catalogue, old, rng, 0.05)
    items = delta_items(catalogue, old, new, {"a": PathClass.XOR}, difference=encoding)
    data = encode_payload(items, attempt=AttemptId(1, 1), owner=0, sequence=0, run=catalogue.run, parent=0,
                          catalogue=catalogue.digest())
    writer.begin(clean=True)
    writer.apply(decode_payload(data))
    writer.synchronize()
    writer.check()
    old = new
after = compiled()
assert after[0] == before[0], (before, after)
"""


def _catalogue(*specs: TensorSpec) -> Catalogue:
    return Catalogue("0" * 32, "00" * 16, specs)


def test_a_first_refit_compiles_no_loop() -> None:
    done = subprocess.run(
        [sys.executable, "-c", NOTHING_IS_COMPILED_LATER], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("refused", [0, 1])
def test_only_dtypes_of_which_there_is_much_are_compiled_for(
    monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    asked = list[str]()
    monkeypatch.setattr(warm, "_refit", lambda _, dtype: asked.append(dtype))
    half = LEAST_ELEMENTS // 2
    specs = [TensorSpec("a", (half,), "bfloat16"), TensorSpec("b", (half - refused,), "bfloat16")]
    warm_up(
        RankApplier, _catalogue(*specs, TensorSpec("c", (5,), "float32"), TensorSpec("d", (4, half), "bool"))
    )
    assert asked == ([] if refused else ["bfloat16"])


def test_a_rehearsal_is_not_heard_and_runs_once() -> None:
    heard, catalogue = list[str](), _catalogue(TensorSpec("a", (LEAST_ELEMENTS,), "bfloat16"))
    with observe.listening(lambda event: heard.append(event.name)):
        warm_up(RankApplier, catalogue)
        warm_up(RankApplier, catalogue)
        observe.point("after")
    assert heard == ["after"]
    assert warm._refit.cache_info().misses <= 2
