"""The probe around a refit: who it waits for, and what it finds."""

from dataclasses import dataclass, field, replace

import pytest

from dcr.errors import IntegrityError, Unreachable
from dcr_recipes.probe import PROMPT, Prober


@dataclass(frozen=True, slots=True)
class _Answer:
    version: int
    tokens: list[int]
    logprobs: list[float]
    hit: bool = False


@dataclass(frozen=True, slots=True)
class _Status:
    prompt_cache_hits: int = 3


@dataclass
class Instance:
    """Answers ``version`` once it was asked ``away`` times in vain."""

    version: int = 5
    logprob: float = -1.0
    away: int = 0
    stale: bool = False
    hit: bool = False
    asked: list[bool] = field(default_factory=list)

    def probe(self, *, prompt: list[int], max_new_tokens: int, fresh: bool) -> _Answer:
        assert tuple(prompt) == PROMPT
        self.asked.append(fresh)
        if len(self.asked) <= self.away:
            raise Unreachable("restarting")
        if fresh and self.stale:
            raise IntegrityError("runtime-0 answers its probe at version 5 from a stale prompt cache")
        return _Answer(self.version, list(range(max_new_tokens)), [self.logprob] * max_new_tokens, self.hit)

    def status(self) -> _Status:
        return _Status()


def _prober(*instances: Instance, waits: int = 100) -> Prober:
    now = iter(range(10_000))
    named = {f"runtime-{i}": instance for i, instance in enumerate(instances)}
    return Prober(named, deadline_s=waits, clock=lambda: float(next(now)), sleep=lambda _: None)


def test_equal_answers_are_proven_fresh() -> None:
    instances = (Instance(), Instance())
    assert _prober(*instances).after(5) == {"runtime/prompt_cache_hits": 6}
    assert [instance.asked for instance in instances] == [[True], [True]]


def test_before_a_refit_nobody_is_waited_for() -> None:
    instances = (Instance(), Instance(away=9), Instance(version=4))
    _prober(*instances).before(5)
    assert [instance.asked for instance in instances] == [[False], [False], [False]]


def test_answers_that_differ_in_one_logprob_are_an_error() -> None:
    prober = _prober(Instance(), Instance(), Instance(logprob=-1.0000001))
    for check in (prober.before, prober.after):
        with pytest.raises(IntegrityError, match="runtime-0 and runtime-2 answer one prompt differently"):
            check(5)


def test_answers_from_a_cache_are_compared_among_themselves() -> None:
    cached = (Instance(hit=True, logprob=-2.0), Instance(hit=True, logprob=-2.0))
    _prober(Instance(), *cached).before(5)
    with pytest.raises(IntegrityError, match="runtime-1 and runtime-3"):
        _prober(Instance(), *cached, Instance(hit=True)).before(5)


def test_a_stale_answer_is_an_error() -> None:
    with pytest.raises(IntegrityError, match="stale"):
        _prober(Instance(stale=True), Instance()).after(5)


def test_a_restarting_instance_is_waited_for() -> None:
    slow = Instance(away=3)
    _prober(Instance(), slow).after(5)
    assert len(slow.asked) == 4


@pytest.mark.parametrize("late", [Instance(away=10_000), Instance(version=4)])
def test_an_instance_that_never_serves_the_version_is_named(late: Instance) -> None:
    with pytest.raises(Unreachable, match="runtime-1 did not answer at version 5"):
        _prober(Instance(), late, waits=20).after(5)


def test_without_instances_there_is_nothing_to_compare() -> None:
    assert _prober().after(5) == {"runtime/prompt_cache_hits": 0}


def test_only_members_are_asked() -> None:
    evicted, member = Instance(version=4, logprob=-9.0), Instance()
    prober = replace(_prober(evicted, member), members=lambda: ("runtime-1",))
    prober.before(5)
    assert prober.after(5) == {"runtime/prompt_cache_hits": 6}
    assert (evicted.asked, member.asked) == ([], [False, True])


def test_one_that_hangs_is_left_out_in_time() -> None:
    hung, member = Instance(away=10**6), Instance()
    assert replace(_prober(hung, member), away_s=20.0).after(5) == {"runtime/prompt_cache_hits": 6}
    with pytest.raises(Unreachable, match="runtime-0 did not answer"):
        replace(_prober(hung, member), away_s=200.0).after(5)


def test_answers_of_a_diverged_policy_are_equal() -> None:
    nan, other = Instance(logprob=float("nan")), Instance(logprob=-float("nan"))
    _prober(nan, other).before(5)
    assert _prober(nan, other).after(5) == {"runtime/prompt_cache_hits": 6}
    with pytest.raises(IntegrityError, match="differently"):
        _prober(nan, Instance()).after(5)


def test_zeros_of_either_sign_are_different_bits() -> None:
    with pytest.raises(IntegrityError, match="differently"):
        _prober(Instance(logprob=0.0), Instance(logprob=-0.0)).after(5)
