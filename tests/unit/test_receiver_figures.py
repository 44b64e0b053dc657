"""What receivers tell reaches the summary, and is written only now and then."""

import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from tests.unit.test_command_doctor import FINDING, WELL

from dcr.model import ReceiverDiagnosis
from dcr_recipes.layout import RunFolder
from dcr_recipes.receiver_figures import TellingReceiver, figures


@dataclass
class Agent:
    """Only what is asked."""

    answer: ReceiverDiagnosis = WELL
    lost: threading.Event = field(default_factory=threading.Event)

    def examine(self) -> int:
        return 7

    def diagnose(self) -> ReceiverDiagnosis:
        return self.answer


def test_methods_and_audit_reach_the_summary(tmp_path: Path) -> None:
    folder, agent = RunFolder(tmp_path), Agent()
    TellingReceiver(cast("Any", agent), folder.receivers / "runtime-0.json").tell()
    told = figures(folder)["runtime-0"]
    assert told["ranks"][0]["learned"] == {"num_tensors": 1, "num_bytes": 3 << 20}
    assert (told["audit_passes"], told["audit_bytes"], told["audit_finding"]) == (3, 12 << 20, None)


def test_it_is_written_now_and_then(tmp_path: Path) -> None:
    folder, agent, now = RunFolder(tmp_path), Agent(), [100.0]
    telling = TellingReceiver(cast("Any", agent), folder.receivers / "runtime-0.json", clock=lambda: now[0])
    assert telling.lost is agent.lost
    assert telling.examine() == 7
    agent.answer = replace(WELL, audit=replace(WELL.audit, finding=FINDING))
    telling.examine()
    assert figures(folder)["runtime-0"]["audit_finding"] is None
    now[0] += 6
    telling.examine()
    assert figures(folder)["runtime-0"]["audit_finding"] == FINDING.detail


def test_without_receivers_there_is_nothing(tmp_path: Path) -> None:
    assert figures(RunFolder(tmp_path)) == {}
