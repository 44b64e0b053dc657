"""``dcr verify``: one flipped bit anywhere is found and named."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.run_folders import StoredRun, flip, stored_run

from dcr.commit.control_plane.sqlite import SqliteControlPlane
from dcr.commit.transitions import leave
from dcr.errors import AttemptFailed
from dcr.model import (
    AttemptId,
    Bits,
    CommitRecord,
    Encoding,
    PathClass,
    RankDiagnosis,
    ReceiverAudit,
    ReceiverDiagnosis,
    TensorChoice,
    bits_dtype,
)
from dcr.receiver.agent import ReceiverAgent
from dcr.testing.history import random_tensors
from dcr.testing.numpy_applier import NumpyApplier
from dcr.testing.toy_runtime import RecordingGate
from dcr.transport.object_transport import ObjectTransport
from dcr.transport.peers import Peers
from dcr.transport.rpc import serve
from dcr_recipes.cli import main
from dcr_recipes.commands import verify
from dcr_recipes.commands.opened import open_run
from dcr_recipes.commands.receivers import Auditor


@pytest.fixture
def made(tmp_path: Path) -> StoredRun:
    return stored_run(tmp_path / "run")


@dataclass(frozen=True, slots=True)
class Live:
    """A receiver in this process: its agent and the bits that it serves."""

    agent: ReceiverAgent
    resident: dict[str, Bits]


def _live(made: StoredRun, name: str) -> Live:
    """Restored to the committed version."""
    catalogue, history = made.history.catalogue, made.history
    resident: dict[str, Bits] = {
        spec.name: history.tensors[0][spec.name].astype(bits_dtype(spec.dtype)) for spec in catalogue.tensors
    }
    agent = ReceiverAgent(
        name,
        NumpyApplier(catalogue, resident, PathClass.XOR),
        RecordingGate(),
        transport=ObjectTransport(history.store, catalogue.run),
        archive=history.archive,
        catalogue=catalogue,
        incarnation="i",
    )
    record = history.records[-1]
    agent.fence(record.attempt, record)
    agent.restore(record.attempt, record)
    agent.settle(record)
    return Live(agent, resident)


@contextmanager
def _serving(made: StoredRun, *names: str) -> Iterator[dict[str, Live]]:
    live = {name: _live(made, name) for name in names}
    with ExitStack() as stack:
        for name, one in live.items():
            server = stack.enter_context(serve({"audit": one.agent.audit, "diagnose": one.agent.diagnose}))
            Peers(made.folder.endpoints).publish(name, server.url, "i")
        yield live


def _verify(made: StoredRun, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = main(["verify", made.root, "--json"])
    return code, json.loads(capsys.readouterr().out)


def _failures(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [finding for finding in found["findings"] if finding["verdict"] == "failed"]


def test_a_stored_run_is_proven_and_nobody_was_checked(
    made: StoredRun, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = _verify(made, capsys)
    verdicts = {finding["what"]: finding["verdict"] for finding in found["findings"]}
    assert (code, found["proven"], found["receivers_checked"]) == (0, True, False)
    assert verdicts.pop("receivers") == "not checked"
    assert set(verdicts.values()) == {"proven"}
    assert {"manifests", "payloads", "rebuilt tensors", "trackers of rank 1", "trackers together"} <= set(
        verdicts
    )
    assert main(["verify", made.root]) == 0
    assert "no receiver was checked" in capsys.readouterr().out


def test_live_receivers_are_proven(made: StoredRun, capsys: pytest.CaptureFixture[str]) -> None:
    with _serving(made, "runtime-0", "runtime-1"):
        code, found = _verify(made, capsys)
        assert (code, found["receivers_checked"], _failures(found)) == (0, True, [])
        assert main(["verify", made.root]) == 0
        shown = capsys.readouterr().out
    assert "no receiver" not in shown
    assert shown.endswith("proven\n")
    assert _details(found, "runtime-0") == ["5 tensors and 1 tied name are version 2, bit for bit"]


def _details(found: dict[str, Any], name: str) -> list[str]:
    return [finding["detail"] for finding in found["findings"] if finding["what"] == name]


@pytest.mark.parametrize(
    ("whole", "exact", "taken"),
    [
        (
            {"norm": "cast"},
            "4 tensors and 1 tied name are version 2, bit for bit; ",
            "1 tensor by a host copy (cast)",
        ),
        (
            {"embed": "a", "head": "a", "norm": "b", "scale": "b", "mask": "c", "none": "d"},
            "",
            "5 tensors and 1 tied name by a host copy (a; b; and 2 more reasons)",
        ),
    ],
)
def test_of_what_cannot_be_read_back_only_the_loaders_work_is_proven(
    made: StoredRun, capsys: pytest.CaptureFixture[str], whole: dict[str, str], exact: str, taken: str
) -> None:
    live = _live(made, "runtime-0")

    def diagnose() -> ReceiverDiagnosis:
        choices = {name: TensorChoice("whole", PathClass.XOR, 1, why) for name, why in whole.items()}
        choices |= {n: TensorChoice("learned", PathClass.XOR, 1) for n in live.resident if n not in whole}
        return replace(live.agent.diagnose(), ranks=(RankDiagnosis(0, choices, (), {}),))

    with serve({"audit": live.agent.audit, "diagnose": diagnose}) as server:
        Peers(made.folder.endpoints).publish("runtime-0", server.url, "i")
        _, found = _verify(made, capsys)
    said = f"{exact}{taken}: storage holds what the loader makes of version 2"
    assert _details(found, "runtime-0") == [said]


def test_without_a_diagnosis_nothing_is_said_of_storage(
    made: StoredRun, capsys: pytest.CaptureFixture[str]
) -> None:
    live = _live(made, "runtime-0")
    with serve({"audit": live.agent.audit}) as server:
        Peers(made.folder.endpoints).publish("runtime-0", server.url, "i")
        _, found = _verify(made, capsys)
    (detail,) = _details(found, "runtime-0")
    assert "bit for bit" not in detail
    assert detail.startswith("5 tensors and 1 tied name have the audit digests of version 2;")


@pytest.mark.parametrize("tensor", ["embed", "norm", "scale", "mask"])
def test_one_flipped_bit_in_a_live_receiver_is_named(
    made: StoredRun, capsys: pytest.CaptureFixture[str], tensor: str
) -> None:
    with _serving(made, "runtime-0", "runtime-1") as live:
        live["runtime-1"].resident[tensor][-1] ^= 1
        code, found = _verify(made, capsys)
    failures = _failures(found)
    assert (code, found["proven"]) == (1, False)
    assert {failure["what"] for failure in failures} == {"runtime-1"}
    assert {failure["tensor"] for failure in failures} == (
        {"embed", "head"} if tensor == "embed" else {tensor}
    )


def test_a_receiver_that_is_away_while_others_are_alive_is_a_failure(
    made: StoredRun, capsys: pytest.CaptureFixture[str]
) -> None:
    with _serving(made, "runtime-0"):
        code, found = _verify(made, capsys)
    assert code == 1
    assert [failure["what"] for failure in _failures(found)] == ["runtime-1"]


def test_what_is_no_member_serves_nothing_and_is_not_asked(
    made: StoredRun, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was evicted: whether it hangs or holds an older version is no fault of what is served."""
    plane, run = SqliteControlPlane(made.folder.control), made.history.catalogue.run
    state = plane.read(run)
    plane.compare_and_set(state, leave(state, "runtime-1", epoch=state.epoch, nonce="n"))
    with _serving(made, "runtime-0", "runtime-1") as live:
        live["runtime-1"].resident["norm"][-1] ^= 1
        code, found = _verify(made, capsys)
    assert (code, found["proven"], _failures(found)) == (0, True, [])
    left_out = [finding for finding in found["findings"] if finding["what"] == "runtime-1"]
    assert [finding["verdict"] for finding in left_out] == ["not checked"]
    assert "left out" in left_out[0]["detail"]


def test_another_runs_receiver_at_an_old_address_does_not_count(
    made: StoredRun, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    other = stored_run(tmp_path / "other", run="cd" * 16)
    with _serving(other, "runtime-0") as live, serve({"audit": live["runtime-0"].agent.audit}) as server:
        Peers(made.folder.endpoints).publish("runtime-0", server.url, "i")
        code, found = _verify(made, capsys)
    assert (code, found["receivers_checked"]) == (0, False)


@pytest.mark.parametrize("attempt", ["0-0", "1-3", "2-6"])
def test_one_flipped_bit_in_a_stored_payload_is_named(
    made: StoredRun, capsys: pytest.CaptureFixture[str], attempt: str
) -> None:
    flip(made.payloads(attempt)[1])
    code, found = _verify(made, capsys)
    (failure,) = _failures(found)
    assert code == 1
    assert failure["version"] == int(attempt[0])
    assert failure["detail"].startswith(f"payload 1 of owner 0, attempt {attempt} is damaged")


def test_every_damaged_or_missing_payload_is_listed(
    made: StoredRun, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(made.payloads("1-3")[0])
    made.payloads("2-6")[2].unlink()
    first, second = made.payloads("0-0")[:2]
    first.chmod(0o644)
    first.write_bytes(second.read_bytes())  # whole, but another one
    _, found = _verify(made, capsys)
    details = [failure["detail"] for failure in _failures(found)]
    assert ["is another one" in details[0], "is damaged" in details[1], "is missing" in details[2]] == [
        True
    ] * 3


@pytest.mark.parametrize("kind", ["manifest", "audit", "catalogue"])
def test_one_flipped_bit_in_another_object_is_found(
    made: StoredRun, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    record = made.history.records[-1]
    digest = {"manifest": record.manifest, "audit": record.audit, "catalogue": record.catalogue}[kind]
    flip(next(made.folder.store.glob(f"*/{kind}/{digest}")))
    code, found = _verify(made, capsys)
    assert code == 1
    assert any(digest in failure["detail"] for failure in _failures(found))


def test_one_flipped_bit_in_a_tracker_is_named(made: StoredRun, capsys: pytest.CaptureFixture[str]) -> None:
    flip(made.folder.trackers / "rank-0" / "trackers.bin", at=0)
    code, found = _verify(made, capsys)
    (failure,) = _failures(found)
    assert (code, failure["what"], failure["tensor"]) == (1, "trackers of rank 0", "embed")


def test_trackers_behind_an_interrupted_fold_in_are_no_fault(
    made: StoredRun, capsys: pytest.CaptureFixture[str]
) -> None:
    made.history.commit(made.history.tensors[0], encoding=Encoding.XOR)
    made.commit()
    code, found = _verify(made, capsys)
    details = [finding["detail"] for finding in found["findings"] if finding["what"].startswith("trackers")]
    assert code == 0
    assert all("interrupted at version 2; resume=true completes it" in detail for detail in details)


def test_a_receiver_in_transition_is_asked_again(made: StoredRun) -> None:
    """Until it is clean at the committed version, or the deadline has passed."""
    live, pauses = _live(made, "runtime-0"), list[float]()
    lagging = live.agent.audit()

    def answer(*asked: Any, **_: Any) -> ReceiverAudit | ReceiverDiagnosis:
        if "diagnose" in asked:
            return live.agent.diagnose()
        if len(pauses) == 0:
            raise AttemptFailed("runtime-0 is mixed")
        if len(pauses) == 1:
            return ReceiverAudit("runtime-0", "i", lagging.catalogue, 1, AttemptId(3, 1), {})
        return live.agent.audit()

    opened = open_run(Path(made.root))
    auditor = Auditor(opened.site, opened.plane, answer, clock=lambda: 0.0, sleep=pauses.append)
    found = auditor.check("runtime-0")
    assert found is not None
    assert [finding.verdict for finding in found] == ["proven"]
    assert len(pauses) == 2


def test_a_receiver_that_never_settles_is_a_failure(made: StoredRun) -> None:
    def answer(*_: Any, **__: Any) -> ReceiverAudit:
        raise AttemptFailed("runtime-0 is mixed: only a clean version is audited")

    opened, now = open_run(Path(made.root)), iter(range(100))
    auditor = Auditor(opened.site, opened.plane, answer, clock=lambda: next(now) * 10.0, sleep=lambda _: None)
    found = auditor.check("runtime-0")
    assert found is not None
    assert (found[0].verdict, "mixed" in found[0].detail) == ("failed", True)


@pytest.mark.parametrize("moment", ["check_receivers", "check_archive"])
def test_a_run_that_goes_on_meanwhile_is_judged_by_its_newest_record(
    made: StoredRun, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """What only the record read first needs is pruned while receivers or the archive are looked at."""
    look = getattr(verify, moment)
    went_on: list[CommitRecord] = []

    def slow(*args: Any, **kwargs: Any) -> Any:
        if not went_on:
            went_on.append(made.history.records[-1])
            other = random_tensors(made.history.catalogue, np.random.default_rng(9))
            made.history.commit(other, encoding=Encoding.XOR)
            made.commit()
            _object(made, went_on[0].audit).unlink()
        return look(*args, **kwargs)

    monkeypatch.setattr(verify, moment, slow)
    code, found = _verify(made, capsys)
    assert (code, _failures(found)) == (0, [])
    assert found["version"] == went_on[0].version + 1


def _object(made: StoredRun, digest: str) -> Path:
    (found,) = made.folder.store.glob(f"*/audit/*{digest}*")
    return found
