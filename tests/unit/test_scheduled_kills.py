import subprocess
import sys
from pathlib import Path

from dcr_recipes.compose import compose
from dcr_recipes.scheduled_kills import victims

WORDS = ["model=tiny", "steps=12", "faults.kill_runtime_every=3"]

CODE = """
import sys
from pathlib import Path
from dcr import observe
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
