import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from dcr.errors import ConfigError
from dcr_recipes.compose import compose
from dcr_recipes.scheduled_kills import stay_away, victims

WORDS = ["model=tiny", "steps=12", "faults.kill_runtime_every=3"]

CODE = """
import sys
from pathlib import Path
from dcr import observe
from dcr.errors import ConfigError
from dcr_recipes.compose import compose
from dcr_recipes.scheduled_kills import scheduled_killer
config = compose(sys.argv[3:])
with observe.listening(scheduled_killer(config, sys.argv[1], Path(sys.argv[2]))):
    for version in range(1, 13):
        for number in (1, 2):
            attempt = f"{version}-{2 * version + number}"
            observe.point("receiver.open_apply.after", attempt=attempt)
            for item in range(1, 11):
                observe.point("rank.apply", attempt=attempt)  # again for each payload
                observe.point("receiver.item.after")
                print(version, number, item, flush=True)
"""


def _run(name: str, marks: Path) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-c", CODE, name, str(marks), *WORDS]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60)


def test_every_third_version_has_a_victim_that_seed_and_version_decide() -> None:
    chosen = list(victims(compose(WORDS)))
    assert [victim.version for victim in chosen] == [3, 6, 9, 12]
    assert chosen == list(victims(compose(WORDS)))
    assert chosen != list(victims(compose([*WORDS, "seed=1"])))
    assert list(victims(compose(["model=tiny"]))) == []
    many = list(victims(compose(["model=tiny", "steps=200", "faults.kill_runtime_every=1"])))
    assert {victim.name for victim in many} == {"runtime-0", "runtime-1"}
    assert {victim.num_items for victim in many} == set(range(1, 9))


def test_a_victim_dies_once_in_the_midst_of_its_refit(tmp_path: Path) -> None:
    first = next(victims(compose(WORDS)))
    died = _run(first.name, tmp_path)
    assert died.returncode == -9
    assert died.stdout.splitlines()[-1:] == [f"{first.version} 1 {first.num_items - 1}"] or (
        first.num_items == 1 and died.stdout.splitlines()[-1] == f"{first.version - 1} 2 10"
    )
    later = [victim for victim in victims(compose(WORDS)) if victim.name == first.name]
    assert [_run(first.name, tmp_path).returncode for _ in later] == [*[-9] * (len(later) - 1), 0]
    assert _run("runtime-7", tmp_path).returncode == 0


AWAY = ["model=tiny", "steps=200", "faults.kill_runtime_every=5", "faults.restart_after_steps=5"]


def test_one_that_stays_away_is_not_chosen_before_it_is_back() -> None:
    chosen = list(victims(compose([*AWAY, "runtime.instances=3"])))
    assert len(chosen) == 40
    assert all(one.name != other.name for one, other in pairwise(chosen))
    assert {victim.name for victim in chosen} == {"runtime-0", "runtime-1", "runtime-2"}
    longer = [*AWAY, "faults.restart_after_steps=10", "runtime.instances=4"]
    for three in zip(*(list(victims(compose(longer)))[start:] for start in range(3)), strict=False):
        assert len({victim.name for victim in three}) == 3


def test_somebody_must_be_left() -> None:
    with pytest.raises(ConfigError, match=r"runtime.instances must be at least 3, got 2"):
        compose([*AWAY, "runtime.instances=2"])
    with pytest.raises(ConfigError, match="nobody is killed"):
        compose(["model=tiny", "faults.restart_after_steps=5"])


def test_a_victims_new_process_waits_for_its_step(tmp_path: Path) -> None:
    config = compose([*AWAY, "runtime.instances=3"])
    steps = iter([5, 8, 9, 99])
    first, *_ = victims(config)
    stay_away(config, first.name, tmp_path, steps_done=lambda: next(steps))
    assert next(steps) == 5, "nobody was killed yet"
    (tmp_path / first.mark).touch()
    stay_away(config, first.name, tmp_path, steps_done=lambda: next(steps), pause_s=0.0)
    assert next(steps) == 99, "back in step 10"
    stay_away(config, "runtime-9", tmp_path, steps_done=lambda: next(steps))
