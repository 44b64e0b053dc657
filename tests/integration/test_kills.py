"""Real ``kill -9`` of runtimes, trainer ranks, the coordinator and the driver, in runs of real processes.

A run with kills ends with the tokens, rewards and weights of an undisturbed one; its archive and the
journals of its processes show how it got there.
"""

import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from safetensors import safe_open
from safetensors.torch import save_file
from tests.integration.kill_runs import Finished, finish, processes_of, run, start
from tests.integration.kill_traces import (
    check_served_only_what_was_proven,
    encodings_of,
    opened_attempts,
    repaired_versions,
    restored_between,
)

from dcr.model import CommitRecord, Encoding, from_json, to_json
from dcr_recipes.compose import load
from dcr_recipes.grpo.checkpoint import CheckpointMeta
from dcr_recipes.grpo.shard_state import state_digest
from dcr_recipes.layout import RunFolder
from dcr_recipes.scheduled_kills import victims

if TYPE_CHECKING:
    import subprocess

pytestmark = pytest.mark.processes

STEPS = 8
RUNTIMES = ("runtime-0", "runtime-1")
KILLS = {
    "runtimes": (
        "runtime-0:receiver.item.copy:7:1",
        "runtime-0:receiver.restore.before:1:2",
        "runtime-1:receiver.item.after:70:1",
        "runtime-0:receiver.finish.before:4:3",
        "runtime-1:receiver.finish.after:4:2",
        "runtime-0:receiver.settle.before:4:4",
        "runtime-1:runtime.generate.before:2:3",
    ),
    "trainer": (
        "owner-0:owner.task.before:27:1",
        "owner-1:owner.publish.after:1:2",
        "owner-1:owner.close.after:2:3",
        "owner-1:owner.fold_in.task.before:1:4",
        "owner-0:owner.fold_in.task.after:25:5",
    ),
    "coordinator": (
        "coordinator:coordinator.prepare.after:1:1",
        "coordinator:coordinator.mark_opened.after:1:2",
        "coordinator:coordinator.construct.after:1:3",
        "coordinator:coordinator.finish.after:2:4",
        "coordinator:coordinator.commit.after:1:5",
        "coordinator:coordinator.fold_in.after:2:6",
    ),
}
"""The n-th occurrence counts from a process's start: kills of one process follow one another."""

TOGETHER = ("coordinator:coordinator.commit.after:2:1", "owner-1:owner.fold_in.task.before:21:1")
"""Both in the transition to version 2: the trainer dies right after a commit that nobody remembers."""
RESUMED = ("runtime-0:receiver.restore.before:1:1", "runtime-1:receiver.item.copy:3:1")
ABSENCES = (
    "runtime.instances=3",
    "faults.kill_runtime_every=3",
    "faults.restart_after_steps=3",
    "commit.lease_s=1",
    "commit.evict_after_s=5",
)
"""The experiment of the paper's section 8.1 with killed receivers, in small.

Eviction waits so long that a living runtime on a busy machine is not taken for a dead one.
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Finished]]:
    """All runs that need nothing of one another, two at a time: each mostly waits for a restart.

    Those with kills share one store (P1).

    The processes of the calm one are started from nothing, those of the others forked from a warm one.
    """
    folder = tmp_path_factory.mktemp("runs")
    with ThreadPoolExecutor(2) as pool:
        begun: dict[str, Future[Finished]] = {}
        for name in ("calm", "trainer", "runtimes", "coordinator", "dense", "absences"):
            words = [f"steps={STEPS}", f"refit={'dense' if name == 'dense' else 'dcr'}"]
            words += [f"transport.path={folder / 'store'}"] if name in KILLS else []
            words += ABSENCES if name == "absences" else []
            kills, warm = KILLS.get(name, ()), name != "calm"
            begun[name] = pool.submit(run, folder / name, *words, kills=kills, warm=warm)
        yield lambda name: begun[name].result()
        pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def calm(runs: Callable[[str], Finished]) -> Finished:
    return runs("calm")


@pytest.mark.parametrize("name", ["calm", "dense", *KILLS])
def test_kills_change_no_token_reward_or_weight(
    runs: Callable[[str], Finished], calm: Finished, name: str
) -> None:
    done = runs(name)
    assert done.unfired == set()
    assert done.shown.count("was killed by SIGKILL") == len(done.kills)
    assert done.shown.count("; restarted") == len(done.kills), "nothing else died"
    assert done.outcome == calm.outcome
    assert (done.summary["differing_bits"], done.summary["final_version"]) == (0, STEPS)
    assert processes_of(done.folder.root) == []


def test_runtimes_that_are_killed_and_stay_away_change_nothing(runs: Callable[[str], Finished]) -> None:
    """Against dense refits: tokens, rewards, KL, final weights; the others go on, and each comes back."""
    done, dense = runs("absences"), runs("dense")
    assert done.outcome == dense.outcome
    columns = ("reward/mean", "train/gen_kl_error", "train/loss", "rollout/token_digest")
    rows = [[[row[name] for name in columns] for row in run.rows] for run in (done, dense)]
    assert rows[0] == rows[1]
    first, second = victims(load(done.folder.config))
    required = {manifest.attempt.version: set(manifest.required) for manifest in done.manifests()}
    everyone = {"runtime-0", "runtime-1", "runtime-2"}
    assert required[1] == required[2] == everyone
    assert required[3] == required[4] == required[5] == everyone - {first.name}
    assert second.name not in required[6] | required[7] | required[8]
    assert first.name in required[8]
    assert done.shown.count("was killed by SIGKILL") == 2


@pytest.mark.parametrize("name", ["runtimes", "coordinator"])
def test_the_survivor_is_repaired_by_overwrites_only(runs: Callable[[str], Finished], name: str) -> None:
    """The candidate lives on: once an attempt at it was opened, only absolute values are sent (P3, P6)."""
    done = runs(name)
    repaired = repaired_versions(done)
    assert len(repaired) >= (3 if name == "runtimes" else 2)
    encodings = {m.attempt.version: {item.encoding for item in done.items(m)} for m in done.manifests()}
    for manifest in done.manifests():
        version = manifest.attempt.version
        assert manifest.overwrite_only == (version in repaired), f"version {version}"
        if manifest.overwrite_only:
            assert encodings[version] == {Encoding.OVERWRITE}
    assert any(Encoding.DELTA16 in found for found in encodings.values()), (
        "no undisturbed transition to compare"
    )


def test_the_survivor_itself_applied_the_overwrites(runs: Callable[[str], Finished]) -> None:
    """runtime-1 lived through the first death of runtime-0: torn storage, no restore, absolute values."""
    done = runs("runtimes")
    lines = [line for line in done.journal("runtime-1") if line["incarnation"] == 1]
    first, *retries = [a for a in opened_attempts(lines) if a.version == 1]
    assert restored_between(lines, first, retries[-1]) is None
    applied = encodings_of(lines, retries[-1])
    assert len(applied) == len(list(done.items(done.manifests()[0])))
    assert set(applied) == {"overwrite"}
    assert "delta16" in encodings_of(lines, first)


@pytest.mark.parametrize("name", list(KILLS))
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_restarted_runtime_restores_the_committed_version_before_it_serves(
    runs: Callable[[str], Finished], name: str, runtime: str
) -> None:
    check_served_only_what_was_proven(runs(name).journal(runtime))


def test_a_restarted_trainer_takes_its_lost_candidate_back(runs: Callable[[str], Finished]) -> None:
    """P5: receivers that opened an attempt of the lost candidate are restored; the new one may combine."""
    done = runs("trainer")
    for runtime in RUNTIMES:
        journal = done.journal(runtime)
        attempts = opened_attempts(journal)
        pairs = [pair for pair in pairwise(attempts) if pair[0].version == pair[1].version]
        assert len(pairs) >= 3, "the trainer did not die while attempts were open"
        assert all(restored_between(journal, *pair) == pair[0].version - 1 for pair in pairs)
    assert not any(manifest.overwrite_only for manifest in done.manifests())


@pytest.mark.parametrize("name", list(KILLS))
def test_no_step_is_lost_or_committed_twice(runs: Callable[[str], Finished], name: str) -> None:
    manifests = runs(name).manifests()
    assert [manifest.attempt.version for manifest in manifests] == list(range(1, STEPS + 1))
    assert runs(name).record().step == STEPS


def test_recipes_on_one_store_keep_to_their_own_keys(runs: Callable[[str], Finished]) -> None:
    """P1: three runs of the same seed, in part at the same time, under kills; each chain is whole."""
    done = [runs(name) for name in KILLS]
    ids = {each.folder.run_id.read_text() for each in done}
    store = done[0].folder.root.parent / "store"
    assert len(ids) == len(KILLS)
    assert {path.name for path in store.iterdir()} == ids
    assert all(list(each.items(manifest)) for each in done for manifest in each.manifests())


@dataclass(frozen=True)
class Resumed:
    """A copy of a run whose driver was killed, as a new driver works on it; ``record``: as it was left."""

    driver: "subprocess.Popen[str]"
    folder: Path
    record: CommitRecord


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Resumed]]:
    """One run whose driver was killed, resumed as it is, with an older checkpoint, and with a forged one.

    Copies of one abandoned run, because what a killed run leaves behind is all that a new driver has.
    """
    base = tmp_path_factory.mktemp("resumed")
    folder, old = base / "abandoned", base / "version-00000002-step-00000002"
    _abandon(folder, old)
    record = Finished(RunFolder(folder), (), "").record()
    copies = {name: base / name for name in ("as it is", "older", "forged")}
    for copy in copies.values():
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*.points"))
    shutil.rmtree(copies["older"] / "checkpoints")
    shutil.copytree(old, copies["older"] / "checkpoints" / old.name)
    committed = f"version-{record.version:08d}-step-{record.step:08d}"
    _forge(copies["forged"] / "checkpoints" / committed / "rank-1.safetensors")
    kills = {"as it is": RESUMED}
    drivers = {
        name: start(copy, "resume=true", f"faults.kill=[{','.join(kills.get(name, ()))}]")
        for name, copy in copies.items()
    }
    try:
        yield {name: Resumed(driver, copies[name], record) for name, driver in drivers.items()}
    finally:
        for driver in drivers.values():
            driver.kill()
            driver.wait()


def _abandon(folder: Path, old: Path) -> None:
    """Kill the driver of a run in ``folder`` after step 4; ``old`` gets the checkpoint of version 2."""
    driver = start(folder, f"steps={STEPS}", f"faults.kill=[{','.join(TOGETHER)}]")
    try:
        _until(lambda: _num_rows(folder) >= 2)
        shutil.copytree(folder / "checkpoints" / old.name, old)
        _until(lambda: _num_rows(folder) >= 4)
        working = processes_of(folder)
        assert len(working) == 8, "driver, warm process, coordinator, oracle, two runtimes, two trainer ranks"
    finally:
        driver.kill()
        driver.communicate()
    _until(lambda: processes_of(folder) == [], deadline_s=60)
    assert Finished(RunFolder(folder), TOGETHER, "").unfired == set()


def test_a_run_whose_driver_was_killed_goes_on(resumed: dict[str, Resumed], calm: Finished) -> None:
    mine = resumed["as it is"]
    done = finish(mine.driver, mine.folder, RESUMED)
    assert done.unfired == set()
    assert done.outcome == calm.outcome
    assert done.summary["final_version"] == STEPS
    for runtime in RUNTIMES:
        check_served_only_what_was_proven(done.journal(runtime))
    assert processes_of(mine.folder) == []


def test_a_lost_checkpoint_makes_an_older_one_the_next_version(
    resumed: dict[str, Resumed], calm: Finished
) -> None:
    """P13: versions run ahead of steps; the steps that were lost are made again."""
    mine = resumed["older"]
    assert mine.record.version == mine.record.step >= 4
    done = finish(mine.driver, mine.folder)
    assert done.outcome == calm.outcome
    last = mine.record.version + 1 + STEPS - 2
    assert (done.summary["final_version"], done.record().step) == (last, STEPS)
    manifests = done.manifests()
    assert [manifest.attempt.version for manifest in manifests] == list(range(1, last + 1))
    back = manifests[mine.record.version]
    assert back.parent == (mine.record.attempt, mine.record.manifest), "it does not follow what was committed"
    assert any(True for _ in done.items(back))
    assert processes_of(mine.folder) == []


def test_a_checkpoint_with_other_bits_than_the_committed_ones_is_refused(
    resumed: dict[str, Resumed],
) -> None:
    """P9: a well-formed checkpoint of the right version and step is still proven against the record."""
    mine = resumed["forged"]
    shown, _ = mine.driver.communicate(timeout=240)
    assert mine.driver.returncode not in (0, None), shown
    assert "tensors are not as committed" in shown
    assert "Traceback" not in shown
    assert processes_of(mine.folder) == []
    assert Finished(RunFolder(mine.folder), (), "").record() == mine.record


def _forge(path: Path) -> None:
    """Change one served value of a rank's checkpoint and everything in the file that vouches for it."""
    with safe_open(path, framework="pt") as file:
        meta = from_json(CheckpointMeta, file.metadata()["dcr"])
        state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 -- not a dict
    name = next(key for key, value in state.items() if key.startswith("model/") and value.numel())
    state[name].view(-1)[0] += 1
    forged = replace(meta, digest=state_digest(state))
    assert forged != meta
    save_file(state, path, metadata={"dcr": to_json(forged).decode()})


def _num_rows(folder: Path) -> int:
    rows = folder / "metrics.jsonl"
    return rows.read_text().count("\n") if rows.exists() else 0


def _until(condition: Callable[[], bool], *, deadline_s: float = 240) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"did not happen within {deadline_s} s"
        time.sleep(0.02)
