"""The checkers of a chaos run, each with the fault planted that it is there for."""

from dataclasses import replace
from pathlib import Path

import pytest

from dcr.errors import PayloadError
from dcr_recipes.chaos.answers import Answer, Replayed, is_mixed, read_lines, sample, stale, write_line
from dcr_recipes.chaos.history import Commit, lost_versions, uncommitted
from dcr_recipes.chaos.recoveries import Recovery, Struck
from dcr_recipes.chaos.replay import Verdict, replay
from dcr_recipes.chaos.report import Evidence, last_line, problems, summarize
from dcr_recipes.chaos.schedule import Kind

CHAIN = [Commit(version, f"{version}-{10 * version}", f"manifest {version}") for version in range(5)]


def _answer(version: int, asked_at: float = 0.0, got_at: float | None = None, *, like: int = -1) -> Answer:
    """An answer that says ``version``, and is what version ``like`` answers."""
    made = _dense_answer(version if like < 0 else like, [1, 2])
    got = asked_at + 0.5 if got_at is None else got_at
    return Answer(asked_at, got, "runtime-1", version, [1, 2], [7], made.tokens, made.logprobs)


def _dense_answer(version: int, prompt: list[int]) -> Replayed:
    """Tokens that few versions change, and log probabilities that every one does."""
    return Replayed([[sum(prompt) + version // 3]], [[-0.5 - version / 1024]])


class FakeDense:
    """Its files are named after their versions."""

    def __init__(self) -> None:
        self.version = -1
        self.fills = 0

    def fill(self, path: Path) -> None:
        self.version = int(path.name)
        self.fills += 1

    def answer(self, asked: Answer) -> Replayed:
        return _dense_answer(self.version, asked.prompt)


def _copy(version: int) -> Path | None:
    return Path(str(version)) if 0 <= version != 3 else None


def test_nothing_is_lost_when_each_version_is_seen_as_it_is_archived() -> None:
    assert lost_versions([CHAIN[0], CHAIN[2], CHAIN[2], CHAIN[4]], CHAIN) == {}
    assert lost_versions([], CHAIN) == {}


@pytest.mark.parametrize(
    ("seen", "chain", "lost"),
    [
        ([CHAIN[1], CHAIN[2], CHAIN[1]], CHAIN, {2}),  # the record went back
        ([CHAIN[4]], CHAIN[:4], {4}),  # it was committed and is in no archive
        ([replace(CHAIN[2], attempt="2-19")], CHAIN, {2}),  # another attempt took its number
        ([replace(CHAIN[2], manifest="other")], CHAIN, {2}),
        ([], [*CHAIN[:2], *CHAIN[3:]], {2}),  # the numbers do not follow
    ],
)
def test_a_planted_loss_is_found(seen: list[Commit], chain: list[Commit], lost: set[int]) -> None:
    assert set(lost_versions(seen, chain)) == lost


def test_versions_that_nobody_committed_are_named() -> None:
    assert uncommitted([0, 4, 4, 2], CHAIN) == []
    assert uncommitted([5, 1, 7], CHAIN) == [5, 7]


def test_whole_answers_are_no_mixture() -> None:
    dense = FakeDense()
    verdict = replay([_answer(version) for version in (0, 1, 1, 2)], dense, _copy)
    assert verdict == Verdict([], 4, 0, num_compared=2, num_told_apart=2)
    assert dense.fills == 5, "a version is filled once, and the one before it"


@pytest.mark.parametrize("like", [0, 2, 4])
def test_a_planted_mixture_is_found(like: int) -> None:
    """Also where the tokens are the same: 1 and 2 differ in log probabilities only."""
    planted = _answer(1, like=like)
    assert replay([_answer(1), planted, _answer(2)], FakeDense(), _copy).mixed == [planted]


def test_answers_without_a_dense_file_are_counted_not_trusted() -> None:
    verdict = replay([_answer(3, like=1), _answer(4, like=1)], FakeDense(), _copy)
    assert (verdict.num_replayed, verdict.num_without_copy, len(verdict.mixed)) == (1, 1, 1)
    assert verdict.num_compared == 0


def test_a_replay_that_cannot_tell_versions_apart_is_no_proof() -> None:
    verdict = replay([_answer(1)], FakeDense(), lambda _version: Path("1"))
    assert verdict.mixed == []
    assert any("proves nothing" in problem for problem in problems(_evidence(verdict=verdict)))


def test_an_old_version_after_a_newer_one_is_stale() -> None:
    calm = [_answer(1, 0.0), _answer(1, 1.0, 5.0), _answer(2, 2.0), _answer(2, 6.0)]
    assert stale(calm) == [], "asked before the newer one was got"
    planted = _answer(1, 2.6)
    assert stale([*calm, planted]) == [planted]


def test_a_sample_is_the_seeds_and_in_order_of_version() -> None:
    answers = [_answer(9 - place % 10, float(place)) for place in range(100)]
    some = sample(answers, 20, seed=1)
    assert some == sample(answers, 20, seed=1) != sample(answers, 20, seed=2)
    assert [answer.version for answer in some] == sorted(answer.version for answer in some)
    assert len(sample(answers, 1000, seed=1)) == 100


def test_answers_survive_their_file(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    assert read_lines(path) == []
    answers = [_answer(1), _answer(2, 3.25)]
    path.write_text("".join(map(write_line, answers)) + write_line(answers[0])[:20])
    assert read_lines(path) == answers
    path.write_text("{}\n")
    with pytest.raises(PayloadError):
        read_lines(path)


STRUCK = Struck(1, Kind.KILL_RUNTIME, "runtime-0", 17, 2.0, 2.0)


def _evidence(**changes: object) -> Evidence:
    sound = Evidence(
        seed=3,
        seconds=60.0,
        transitions=4,
        faults=[STRUCK, Struck(2, Kind.STOP_RUNTIME, "runtime-1", 18, 3.0, 4.5)],
        recoveries=[Recovery(STRUCK, 2.5), Recovery(STRUCK, 4.0)],
        unrecovered=[],
        restarts=1,
        rows=[{"version": version, "verify/differing_bits": 0} for version in (1, 2, 3, 4)],
        num_answers=10,
        num_refused=2,
        verdict=Verdict([], 10, 0, 3, 3),
        stale=[],
        lost={},
        uncommitted=[],
        failure="",
    )
    return replace(sound, **changes)  # type: ignore[arg-type]


def test_a_sound_run_says_so_in_one_line() -> None:
    summary = summarize(_evidence())
    assert summary["ok"]
    assert summary["problems"] == []
    assert last_line(summary) == (
        "chaos seed 3: 4 transitions, 1 kills (runtime 1) of 2 faults, 0 differing bits, 0 lost versions,"
        " 0 mixed answers of 10 replayed, recovery mean 3.25 s, worst 4.0 s: ok"
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rows": [{"version": n, "verify/differing_bits": 3 * n - 3} for n in (1, 2)]}, "3 bits"),
        ({"rows": [{"version": 1}]}, "not every refit"),
        ({"rows": []}, "not every refit"),
        (
            {"rows": [{"version": version, "verify/differing_bits": 0} for version in (1, 2, 4)]},
            "version 3 was never compared",
        ),
        ({"lost": {2: "gone"}}, "version 2 was lost: gone"),
        ({"uncommitted": [9]}, "version 9 was never committed"),
        ({"verdict": Verdict([_answer(2)], 10, 0, 3, 3)}, "mixed answer of runtime-1 at version 2"),
        ({"verdict": Verdict([], 0, 4, 0, 0)}, "no answer was replayed"),
        ({"stale": [_answer(2)]}, "stale answer of runtime-1 at version 2"),
        ({"unrecovered": [STRUCK]}, "fault 1 (kill runtime, runtime-0)"),
        ({"failure": "it died"}, "it died"),
    ],
)  # fmt: skip
def test_whatever_is_wrong_fails_the_run(change: dict[str, object], says: str) -> None:
    summary = summarize(_evidence(**change))
    assert not summary["ok"]
    assert any(says in problem for problem in summary["problems"])
    assert last_line(summary).endswith(": FAILED")


def test_an_answer_of_a_diverged_policy_is_not_mixed(tmp_path: Path) -> None:
    nan = float("nan")
    path = tmp_path / "answers.jsonl"
    path.write_text(write_line(replace(_answer(1), tokens=[[3]], logprobs=[[nan]])))
    (answer,) = read_lines(path)
    assert not is_mixed(answer, Replayed([[3]], [[-nan]]))
    assert is_mixed(answer, Replayed([[4]], [[nan]]))
    assert is_mixed(answer, Replayed([[3]], [[-0.5]]))
