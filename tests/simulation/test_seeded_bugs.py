"""The simulation must be able to fail: each seeded bug, a replaced function of the real code, is found."""

import pytest

from tests.simulation.bugs import AMONG, BUGS
from tests.simulation.machine import KINDS, simulate


@pytest.mark.parametrize("name", sorted(BUGS))
def test_the_simulation_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for target, attribute, replacement in BUGS[name]:
        assert hasattr(target, attribute), "the code was renamed: this bug is no longer seeded"
        monkeypatch.setattr(target, attribute, replacement)
    with pytest.raises(AssertionError):
        simulate(examples=400, rules=6, kinds=AMONG.get(name, KINDS))
