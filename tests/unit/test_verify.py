from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from dcr.errors import Unreachable
from dcr_recipes.errors import VerificationError
from dcr_recipes.runtime.dump import sampled, write_dump
from dcr_recipes.verify import Difference, Verifier, refuse


@dataclass
class Status:
    process: int
    version: int
    is_open: bool


class Stored:
    """Stands for a serving process. ``before_dump`` may restart it, ``statuses`` tells what it says first."""

    def __init__(
        self, tensors: dict[str, torch.Tensor], before_dump: Callable[["Stored"], None] = lambda _: None
    ) -> None:
        self.tensors = tensors
        self.now = Status(1, 7, True)
        self.before_dump = before_dump
        self.loaded: list[tuple[str, int]] = []
        self.num_dumps = 0

    def status(self) -> Status:
        return replace(self.now)

    def dump(self, path: str, share: float = 1.0, sample: str = "") -> int:
        self.num_dumps += 1
        self.before_dump(self)
        return write_dump(Path(path), sampled(self.tensors, share, sample))

    def load_dense(self, path: str, version: int) -> None:
        self.loaded.append((path, version))


def _tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        "weight": torch.randn(5, 3).to(torch.bfloat16),
        "scalar": torch.tensor(1.5),
        "steps": torch.arange(4),
        "mask": torch.tensor([True, False]),
        "empty": torch.empty(0, 3),
    }


def _verify(tmp_path: Path, *instances: dict[str, torch.Tensor]) -> list[Difference]:
    oracle = Stored(_tensors())
    named = {f"runtime-{i}": Stored(tensors) for i, tensors in enumerate(instances)}
    found = Verifier(oracle, named, tmp_path / "verify").verify(Path("dense.safetensors"), 7)
    assert oracle.loaded == [("dense.safetensors", 7)]
    assert all(not instance.loaded for instance in named.values())
    return found


def test_equal_storage_has_no_differing_bits(tmp_path: Path) -> None:
    assert _verify(tmp_path, _tensors(), _tensors()) == []


def test_each_flipped_bit_counts_also_a_sign_of_zero_and_a_nan_payload(tmp_path: Path) -> None:
    odd = _tensors()
    odd["weight"].view(torch.int16)[1, 2] ^= 0b1011
    odd["mask"][1] = True
    found = _verify(tmp_path, _tensors(), odd)
    assert found == [Difference("runtime-1", "weight", 3), Difference("runtime-1", "mask", 1)]


@pytest.mark.parametrize(("ours", "theirs"), [(0.0, -0.0), (float("nan"), float("-nan"))])
def test_bits_are_compared_not_values(tmp_path: Path, ours: float, theirs: float) -> None:
    folder = tmp_path / "verify"
    oracle, instance = (Stored({"x": torch.tensor([value])}) for value in (ours, theirs))
    other = Verifier(oracle, {"runtime-0": instance}, folder).verify(Path("d"), 7)
    assert other == [Difference("runtime-0", "x", 1)]


def test_other_tensors_cannot_be_compared(tmp_path: Path) -> None:
    with pytest.raises(VerificationError, match="runtime-0: only one of it and the oracle has extra"):
        _verify(tmp_path, {**_tensors(), "extra": torch.zeros(1)})
    with pytest.raises(VerificationError, match=r"runtime-0: weight is float16\[5, 3\]"):
        _verify(tmp_path, {**_tensors(), "weight": torch.zeros(5, 3, dtype=torch.float16)})
    with pytest.raises(VerificationError, match=r"weight is bfloat16\[3, 5\]"):
        _verify(tmp_path, {**_tensors(), "weight": torch.zeros(3, 5, dtype=torch.bfloat16)})


def test_the_run_stops_with_tensor_instance_and_count() -> None:
    refuse([], 3)
    found = [Difference("runtime-1", "weight", 3), Difference("runtime-1", "mask", 1)]
    with pytest.raises(VerificationError) as caught:
        refuse(found, 3)
    assert str(caught.value) == (
        "version 3: runtime-1 differs from a dense refit in 3 bits of weight; 4 bits of 2 tensors in all"
    )


def test_bytes_of_a_process_that_restarted_meanwhile_do_not_count(tmp_path: Path) -> None:
    def restart_once(stored: Stored) -> None:
        if stored.num_dumps == 1:
            stored.now.process = 2

    instance = Stored(_tensors(), restart_once)
    verifier = Verifier(Stored(_tensors()), {"runtime-0": instance}, tmp_path, pause_s=0)
    assert verifier.verify(Path("d"), 7) == []
    assert instance.num_dumps == 2


def test_a_lost_process_is_waited_for(tmp_path: Path) -> None:
    def fail_once(stored: Stored) -> None:
        if stored.num_dumps == 1:
            raise Unreachable("connection refused")

    instance = Stored(_tensors(), fail_once)
    assert (
        Verifier(Stored(_tensors()), {"runtime-0": instance}, tmp_path, pause_s=0).verify(Path("d"), 7) == []
    )


@pytest.mark.parametrize("now", [Status(1, 6, True), Status(1, 7, False)])
def test_an_instance_that_does_not_serve_the_version_in_time_is_unreachable(
    tmp_path: Path, now: Status
) -> None:
    instance = Stored(_tensors())
    instance.now = now
    verifier = Verifier(Stored(_tensors()), {"runtime-0": instance}, tmp_path, deadline_s=0)
    with pytest.raises(Unreachable, match="runtime-0 cannot be verified in 0 s: it does not serve version 7"):
        verifier.verify(Path("d"), 7)
    assert instance.num_dumps == 0


def test_a_sample_compares_a_part_and_over_the_versions_all_of_it(tmp_path: Path) -> None:
    names = [f"t{i}" for i in range(20)]
    caught = set()
    for version in range(1, 200):
        wrong = {name: torch.zeros(3, dtype=torch.int16) for name in names}
        for tensor in wrong.values():
            tensor[1] ^= 0b101
        oracle = Stored({name: torch.zeros(3, dtype=torch.int16) for name in names})
        oracle.now.version = version
        instance = Stored(wrong)
        instance.now.version = version
        verifier = Verifier(oracle, {"runtime-0": instance}, tmp_path, share=0.1, seed=3)
        found = verifier.verify(Path("d"), version)
        assert [difference.num_bits for difference in found] == [2, 2]
        assert {difference.tensor for difference in verifier.verify(Path("d"), version)} == {
            difference.tensor for difference in found
        }
        caught |= {difference.tensor for difference in found}
        if caught == set(names):
            return
    pytest.fail(f"never compared: {set(names) - caught}")


def test_a_flipped_bit_in_a_sampled_tensor_is_found_and_one_elsewhere_is_not(tmp_path: Path) -> None:
    clean = {f"t{i}": torch.zeros(3, dtype=torch.int16) for i in range(30)}
    (picked, *_) = sampled(clean, 0.1, "0-7")
    other = next(name for name in clean if name not in sampled(clean, 0.1, "0-7"))
    for name, expected in ((picked, [Difference("runtime-0", picked, 1)]), (other, [])):
        broken = {key: tensor.clone() for key, tensor in clean.items()}
        broken[name][2] ^= 1
        verifier = Verifier(Stored(clean), {"runtime-0": Stored(broken)}, tmp_path, share=0.1)
        assert verifier.verify(Path("d"), 7) == expected


def test_a_sample_is_never_empty_and_a_full_one_is_everything() -> None:
    tensors = _tensors()
    assert len(sampled(tensors, 0.0, "x")) == 1
    assert sampled(tensors, 1.0, "x") == tensors
    assert sampled({}, 0.1, "x") == {}


def _lagging(version: int = 6) -> Stored:
    stored = Stored({"weight": torch.zeros(5, 3)})  # what it holds must not matter
    stored.now = Status(1, version, True)
    return stored


def test_only_members_are_waited_for(tmp_path: Path) -> None:
    """An evicted instance is left out; with nobody left nothing is proven."""
    evicted = _lagging()
    named = {"runtime-0": Stored(_tensors()), "runtime-1": evicted}
    verifier = Verifier(Stored(_tensors()), named, tmp_path / "verify", members=lambda: ("runtime-0",))
    assert verifier.verify(Path("dense.safetensors"), 7) == []
    assert evicted.num_dumps == 0
    alone = replace(verifier, instances={"runtime-1": evicted})
    with pytest.raises(Unreachable, match="no instance is left"):
        alone.verify(Path("dense.safetensors"), 7)


def test_a_member_is_compared_and_so_is_one_that_serves_without_being_one(tmp_path: Path) -> None:
    other = _tensors() | {"scalar": torch.tensor(1.25)}
    verifier = Verifier(Stored(_tensors()), {"runtime-0": Stored(other)}, tmp_path / "verify", members=tuple)
    assert [difference.tensor for difference in verifier.verify(Path("dense.safetensors"), 7)] == ["scalar"]


def test_a_member_that_hangs_is_not_waited_for_longer_than_a_transition_would(tmp_path: Path) -> None:
    class Hung(Stored):
        def status(self) -> Status:  # type: ignore[explicit-override]
            raise Unreachable("no answer")

    named = {"runtime-0": Stored(_tensors()), "runtime-1": Hung(_tensors())}
    verifier = Verifier(Stored(_tensors()), named, tmp_path / "verify", members=lambda: tuple(named))
    assert replace(verifier, away_s=0.0).verify(Path("dense.safetensors"), 7) == []
    with pytest.raises(Unreachable, match="runtime-1 cannot be verified"):
        replace(verifier, deadline_s=0.0).verify(Path("dense.safetensors"), 7)
    lags = replace(verifier, away_s=0.0, deadline_s=0.0, instances={"runtime-1": _lagging()})
    with pytest.raises(Unreachable, match="does not serve version 7"):
        replace(lags, members=lambda: ("runtime-1",)).verify(Path("dense.safetensors"), 7)
