"""The simulation must be able to fail: each seeded bug, a replaced function of the real code, is found."""

from collections.abc import Sequence

import pytest

from tests.simulation.bugs import AMONG, BUGS, Patch
from tests.simulation.machine import KINDS, STAGED_KINDS, simulate
from tests.simulation.staged_bugs import STAGED_AMONG, STAGED_BUGS


@pytest.mark.parametrize("name", sorted(BUGS))
def test_the_simulation_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seed(BUGS[name], monkeypatch)
    with pytest.raises(AssertionError):
        simulate(examples=400, rules=6, kinds=AMONG.get(name, KINDS))


@pytest.mark.parametrize("name", sorted(STAGED_BUGS))
def test_the_simulation_finds_in_asynchronous_mode(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seed(STAGED_BUGS[name], monkeypatch)
    with pytest.raises(AssertionError):
        simulate(examples=400, rules=6, kinds=STAGED_AMONG.get(name, STAGED_KINDS), mode="async")


def seed(patches: Sequence[Patch], monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the functions of one bug."""
    for target, attribute, replacement in patches:
        assert hasattr(target, attribute), "the code was renamed: this bug is no longer seeded"
        monkeypatch.setattr(target, attribute, replacement)
