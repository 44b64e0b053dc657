"""``dcr doctor`` and ``dcr verify`` on the live engines of a run, as a newcomer would type them."""

import sys
from pathlib import Path

import pytest
from tests.lanes.shared.recipe import asked, live


@pytest.mark.slow
def test_doctor_and_verify_see_the_engines(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with live(folder, "runtime=vllm", f"runtime.interpreter={sys.executable}"):
        code, found = asked("doctor", folder)
        assert (code, found["well"], found["away"]) == (0, True, {})
        assert [one["receiver"] for one in found["instances"]] == ["runtime-0", "runtime-1"]
        for one in found["instances"]:
            assert one["state"] != "empty"
            assert one["audit"]["finding"] is None
            assert [set(rank["methods"]) for rank in one["ranks"]] == [{"learned"}]
        code, proof = asked("verify", folder)
    assert code == 0, proof
    engines = [one for one in proof["findings"] if one["what"] in ("runtime-0", "runtime-1")]
    assert len(engines) == 2
    assert all("bit for bit" in one["detail"] for one in engines)
