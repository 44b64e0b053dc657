"""``dcr doctor``: every tensor that is not scattered is explained, and what is ill is an exit code."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.run_folders import StoredRun, stored_run

from dcr.errors import AttemptFailed
from dcr.model import (
    AttemptId,
    AuditFinding,
    AuditProgress,
    PathClass,
    RankDiagnosis,
    ReceiverDiagnosis,
    ReceiverState,
    TensorChoice,
)
from dcr.transport.peers import Peers
from dcr.transport.rpc import serve
from dcr_recipes.cli import main

LEARNED = TensorChoice("learned", PathClass.XOR, 3 << 20)
WHOLE = TensorChoice("whole", PathClass.OVERWRITE, 1 << 20, "the loader computes with what it reads")
FINDING = AuditFinding("norm", 4, AttemptId(4, 9), ((5, 6),), "norm: not those of version 4; rank 1 at 5..5")
WELL = ReceiverDiagnosis(
    receiver="runtime-0",
    incarnation="i",
    state=ReceiverState.CLEAN,
    version=2,
    rebuilt="",
    ranks=(
        RankDiagnosis(0, {"embed": LEARNED, "mixer.A": WHOLE}, ("_expert_map",), {}),
        RankDiagnosis(1, {"embed": LEARNED}, (), {}),
    ),
    audit=AuditProgress(64.0, 3, 12 << 20, 0.5, 1),
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> StoredRun:
    return stored_run(tmp_path_factory.mktemp("doctor") / "run", num_versions=1)


@contextmanager
def _serving(made: StoredRun, *answers: ReceiverDiagnosis | AttemptFailed) -> Iterator[None]:
    """``runtime-0`` and so on answer as told, and are gone afterwards."""
    with ExitStack() as stack:
        for i, answer in enumerate(answers):
            server = stack.enter_context(serve({"diagnose": _handler(answer)}))
            Peers(made.folder.endpoints).publish(f"runtime-{i}", server.url, "i")
        yield


def _handler(answer: ReceiverDiagnosis | AttemptFailed) -> Callable[[], ReceiverDiagnosis]:
    def diagnose() -> ReceiverDiagnosis:
        if isinstance(answer, AttemptFailed):
            raise answer
        return answer

    return diagnose


def _doctor(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = main(["doctor", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_methods_are_counted_and_exceptions_explained(
    made: StoredRun, capsys: pytest.CaptureFixture[str]
) -> None:
    with _serving(made, WELL, replace(WELL, receiver="runtime-1")):
        code, found = _doctor(capsys, made.root)
        assert main(["doctor", made.root]) == 0
        shown = capsys.readouterr().out
    assert (code, found["well"], found["away"]) == (0, True, {})
    rank = found["instances"][0]["ranks"][0]
    assert rank["methods"] == {
        "learned": {"num_tensors": 1, "num_bytes": 3 << 20},
        "whole": {"num_tensors": 1, "num_bytes": 1 << 20},
    }
    assert rank["tensors"]["mixer.A"]["reason"] == WHOLE.reason
    assert "learned 1 tensors, 3.0 MiB (75.0%); whole 1 tensors, 1.0 MiB (25.0%)" in shown
    assert "mixer.A" in shown
    assert "the map depends on: _expert_map" in shown
    assert "3 passes, 12.0 MiB in 0.50 s of work (24 MiB/s), 1 tensors begun again" in shown
    assert shown.endswith("well\n")


@pytest.mark.parametrize(
    ("ill", "word"),
    [
        (replace(WELL, state=ReceiverState.EMPTY, version=-1), "empty"),
        (replace(WELL, rebuilt="rank 0: resident 'qkv' moved"), "resident 'qkv' moved"),
        (replace(WELL, ranks=(RankDiagnosis(0, {}, (), {"w13": "re-blocked; use triton"}),)), "use triton"),
        (AttemptFailed("a worker died"), "a worker died"),
    ],
)
def test_what_is_ill_is_said_and_is_the_exit_code(
    made: StoredRun, capsys: pytest.CaptureFixture[str], ill: ReceiverDiagnosis | AttemptFailed, word: str
) -> None:
    with _serving(made, WELL, ill):
        code, found = _doctor(capsys, made.root)
        assert main(["doctor", made.root]) == 1
    assert (code, found["well"]) == (1, False)
    assert word in capsys.readouterr().out


def test_a_repaired_mismatch_is_told_but_is_no_illness(
    made: StoredRun, capsys: pytest.CaptureFixture[str]
) -> None:
    found_once = replace(WELL, audit=replace(WELL.audit, finding=FINDING))
    with _serving(made, found_once, replace(WELL, receiver="runtime-1")):
        code, found = _doctor(capsys, made.root)
        assert main(["doctor", made.root]) == 0
    assert code == 0
    assert found["instances"][0]["audit"]["finding"]["ranges"] == [[5, 6]]
    assert "rank 1 at 5..5" in capsys.readouterr().out


def test_a_run_that_is_not_alive(made: StoredRun, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = _doctor(capsys, made.root)
    assert (code, found["instances"]) == (1, [])
    assert set(found["away"]) == {"runtime-0", "runtime-1"}
    assert main(["doctor", made.root]) == 1
    assert "no receiver of this run is alive" in capsys.readouterr().out


def test_a_loader_without_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = _doctor(capsys, "--model", "tiny")
    (rank,) = found["instances"][0]["ranks"]
    assert (code, found["well"]) == (0, True)
    assert set(rank["methods"]) == {"learned"}
    assert "model.embed_tokens.weight" in rank["tensors"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--model", "tiny", "x"), "not both"),
        (("--set", "seed=1"), "--set goes with --model"),
        (("--model", "tiny", "--set", "runtime=vllm"), "is asked while it runs"),
        (("nowhere",), "nowhere holds no run"),
    ],
)
def test_mistakes_are_one_line(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *words]) == 2
    assert message in capsys.readouterr().err
