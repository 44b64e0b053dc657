import contextlib
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console

from dcr.errors import ConfigError
from dcr_recipes.compose import compose, load
from dcr_recipes.errors import RunFailed
from dcr_recipes.launch.driver import drive, program, run, specs
from dcr_recipes.launch.folder import choose, claim
from dcr_recipes.launch.memory import peak_rss_bytes
from dcr_recipes.launch.progress import Progress
from dcr_recipes.launch.supervisor import Spec, Supervisor
from dcr_recipes.layout import RunFolder
from dcr_recipes.processes.border import EXIT_FATAL

pytestmark = pytest.mark.processes

PRELUDE = """
import os, sys, time
from pathlib import Path
from dcr_recipes.processes.border import INCARNATION, die_with_parent
die_with_parent()
start = int(os.environ[INCARNATION])
here = Path(sys.argv[1])
"""
FOREVER = PRELUDE + "(here / f'{sys.argv[2]}.{start}').touch(); time.sleep(600)"
WAIT_FOR = (
    PRELUDE + "(here / f'{sys.argv[2]}.{start}').touch()\nwhile not (here / 'go').exists(): time.sleep(0.01)"
)


def _spec(name: str, code: str, folder: Path, *, group: str = "", finishes: bool = False) -> Spec:
    return Spec(name, (sys.executable, "-c", code, str(folder), name), group or name, finishes)


def _until(condition: Callable[[], bool], *, step: Callable[[], object] = lambda: None) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "did not happen within 30 s"
        step()
        time.sleep(0.02)


def _gone(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


@contextlib.contextmanager
def _supervised(specs: list[Spec], logs: Path, max_restarts: int) -> Iterator[Supervisor]:
    supervisor = Supervisor(specs, logs, max_restarts=max_restarts)
    try:
        supervisor.start()
        yield supervisor
    finally:
        supervisor.stop()


def test_a_dead_process_is_restarted_alone(tmp_path: Path) -> None:
    made = [_spec("runtime-0", FOREVER, tmp_path), _spec("runtime-1", FOREVER, tmp_path)]
    with _supervised(made, tmp_path, 1) as supervisor:
        _until(lambda: (tmp_path / "runtime-0.1").exists())
        before = supervisor.pids()
        os.kill(before["runtime-0"], signal.SIGKILL)
        told: list[str] = []
        _until(lambda: bool(told), step=lambda: told.extend(supervisor.poll()))
        assert told[0].startswith("runtime-0 was killed by SIGKILL; restarted (log: ")
        _until(lambda: (tmp_path / "runtime-0.2").exists())
        assert supervisor.pids()["runtime-1"] == before["runtime-1"]
        assert "--- runtime-0, start 2" in (tmp_path / "runtime-0.log").read_text()


def test_a_group_is_restarted_together(tmp_path: Path) -> None:
    made = [_spec(f"owner-{i}", WAIT_FOR, tmp_path, group="the trainer", finishes=True) for i in range(2)]
    with _supervised(made, tmp_path, 1) as supervisor:
        _until(lambda: all((tmp_path / f"owner-{i}.1").exists() for i in range(2)))
        before = supervisor.pids()
        os.kill(before["owner-1"], signal.SIGKILL)
        told: list[str] = []
        _until(lambda: bool(told), step=lambda: told.extend(supervisor.poll()))
        assert len(told) == 1
        assert "restarted all 2 of the trainer" in told[0]
        assert _gone(before["owner-0"])
        (tmp_path / "go").touch()
        _until(lambda: supervisor.done, step=supervisor.poll)
        assert all((tmp_path / f"owner-{i}.2").exists() for i in range(2))


def test_the_restart_budget_ends_the_run_with_the_last_lines_of_the_log(tmp_path: Path) -> None:
    code = PRELUDE + "print('the disk is made of cheese', start, flush=True); sys.exit(7)"
    with _supervised([_spec("runtime-0", code, tmp_path)], tmp_path, 2) as supervisor:
        told: list[str] = []
        with pytest.raises(RunFailed) as caught:
            _until(lambda: False, step=lambda: told.extend(supervisor.poll()))
    assert len(told) == 2
    text = str(caught.value)
    assert "runtime-0 exited with code 7 and the budget of 2 restarts" in text
    assert "the disk is made of cheese 3" in text
    assert str(tmp_path / "runtime-0.log") in text


def test_a_fatal_exit_is_not_retried(tmp_path: Path) -> None:
    code = PRELUDE + f"print('error: port 80 is in use', flush=True); sys.exit({EXIT_FATAL})"
    with (
        _supervised([_spec("runtime-0", code, tmp_path)], tmp_path, 5) as supervisor,
        pytest.raises(RunFailed, match=r"^runtime-0: port 80 is in use$"),
    ):
        _until(lambda: False, step=supervisor.poll)
    assert "start 2" not in (tmp_path / "runtime-0.log").read_text()


def test_stop_ends_also_what_ignores_the_polite_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dcr_recipes.launch.supervisor._TERM_GRACE_S", 0.5)
    deaf = PRELUDE + "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + FOREVER
    supervisor = Supervisor([_spec("deaf", deaf, tmp_path)], tmp_path, max_restarts=0)
    supervisor.start()
    _until(lambda: (tmp_path / "deaf.1").exists())
    pid = supervisor.pids()["deaf"]
    supervisor.stop()
    assert _gone(pid)
    assert supervisor.pids() == {}
    supervisor.stop()


PARENT_OF_ONE = PRELUDE + (
    "import subprocess\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    "(here / f'child.{start}.tmp').write_text(str(child.pid))\n"
    "(here / f'child.{start}.tmp').rename(here / f'child.{start}')\n"
    "time.sleep(600)"
)


def test_what_a_process_started_ends_with_it(tmp_path: Path) -> None:
    with _supervised([_spec("runtime-0", PARENT_OF_ONE, tmp_path)], tmp_path, 1) as supervisor:
        _until(lambda: (tmp_path / "child.1").exists())
        first = int((tmp_path / "child.1").read_text())
        supervisor.poll()
        assert supervisor.peak_rss()["runtime-0"] > peak_rss_bytes(first) > 0
        os.kill(supervisor.pids()["runtime-0"], signal.SIGKILL)
        _until(lambda: (tmp_path / "child.2").exists(), step=supervisor.poll)
        _until(lambda: _gone(first))
        second = int((tmp_path / "child.2").read_text())
        assert not _gone(second)
    _until(lambda: _gone(second))


def test_what_a_process_started_ends_with_it_also_when_nobody_is_left_to_see(tmp_path: Path) -> None:
    watched = PARENT_OF_ONE.replace("import subprocess\n", "import subprocess; watch_group()\n")
    code = f"from dcr_recipes.launch.group import watch_group\n{watched}"
    with _supervised([_spec("runtime-0", code, tmp_path)], tmp_path, 0) as supervisor:
        _until(lambda: (tmp_path / "child.1").exists())
        child = int((tmp_path / "child.1").read_text())
        assert not _gone(child)
        os.kill(supervisor.pids()["runtime-0"], signal.SIGKILL)  # and it is not polled
        _until(lambda: _gone(child))


def test_a_process_is_quoted_with_its_own_last_error(tmp_path: Path) -> None:
    said = "print('error: old'); print('error: the prompt is too long'); print('a library says goodbye')"
    code = PRELUDE + f"{said}; sys.stdout.flush(); sys.exit({EXIT_FATAL})"
    with (
        _supervised([_spec("runtime-0", code, tmp_path)], tmp_path, 5) as supervisor,
        pytest.raises(RunFailed, match=r"^runtime-0: the prompt is too long$"),
    ):
        _until(lambda: False, step=supervisor.poll)


DRIVER = """
import sys, time
from pathlib import Path
from dcr_recipes.compose import compose
from dcr_recipes.launch.folder import claim
from dcr_recipes.launch.supervisor import Spec, Supervisor
from dcr_recipes.layout import RunFolder
root, code = Path(sys.argv[1]), sys.argv[2]
with claim(RunFolder(root), compose([])) as lock:
    made = [Spec("child", (sys.executable, "-c", code, str(root), "child"), "child")]
    supervisor = Supervisor(made, root / "logs", max_restarts=0, lock=lock)
    supervisor.start()
    (root / "pid").write_text(str(supervisor.pids()["child"]))
    time.sleep(600)
"""


@contextlib.contextmanager
def _driver(root: Path) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen([sys.executable, "-c", DRIVER, str(root), FOREVER])
    try:
        _until(lambda: (root / "child.1").exists() and (root / "pid").exists())
        yield process
    finally:
        process.kill()
        process.wait()


def test_nothing_outlives_a_killed_driver_and_the_lock_goes_with_the_last(tmp_path: Path) -> None:
    root = tmp_path / "run"
    with _driver(root) as driver:
        pid = int((root / "pid").read_text())
        assert not _gone(pid)
        driver.kill()
        driver.wait()
        with claim(RunFolder(root), compose(["resume=true"])):
            assert _gone(pid)


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "run"
    with _driver(root):
        with pytest.raises(ConfigError, match="exists; pass resume=true"):
            choose([f"run_dir={root}"])
        with (
            pytest.raises(ConfigError, match="is in use by another run"),
            claim(RunFolder(root), compose([f"run_dir={root}"])),
        ):
            pytest.fail("claimed a folder in use")


def test_a_new_run_takes_its_folder_and_a_resumed_one_its_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder, config = choose(["seed=7", "steps=3"])
    assert folder.root.parent == tmp_path / "runs"
    assert not folder.root.exists()
    with claim(folder, config):
        run_id = folder.run_id.read_text()
        assert len(bytes.fromhex(run_id)) == 16
        assert (tmp_path / "runs/latest").resolve() == folder.root
    again, resumed = choose(["resume=true", "steps=5"])
    assert again.root == folder.root
    assert (resumed.seed, resumed.steps) == (7, 5)
    (folder.endpoints / "stale.json").touch()
    with claim(again, resumed):
        assert folder.run_id.read_text() == run_id
        assert load(folder.config).steps == 5
        assert not list(folder.endpoints.iterdir())
    other, _ = choose(["seed=7"])
    assert other.root != folder.root


@pytest.mark.parametrize("in_the_way", ["run/logs", "run/lock/x"])
def test_a_folder_that_cannot_be_prepared_is_an_error_that_names_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_the_way: str
) -> None:
    monkeypatch.chdir(tmp_path)
    folder, config = choose(["run_dir=run"])
    Path(in_the_way).parent.mkdir(parents=True)
    Path(in_the_way).touch()
    with pytest.raises(ConfigError, match="run_dir: cannot use"), claim(folder, config):
        pytest.fail("claimed it")


@pytest.mark.parametrize("text", [None, "", "\n"])
def test_a_run_whose_name_is_lost_is_not_begun_anew(tmp_path: Path, text: str | None) -> None:
    folder, config = choose([f"run_dir={tmp_path / 'run'}"])
    with claim(folder, config):
        pass
    folder.run_id.unlink()
    if text is not None:
        folder.run_id.write_text(text)
    again, resumed = choose(["resume=true", f"run_dir={tmp_path / 'run'}"])
    with pytest.raises(ConfigError, match=r"run_id is missing or empty.*put it back"), claim(again, resumed):
        pytest.fail("claimed it")


def test_a_folder_for_staged_payloads_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder, config = choose([f"run_dir={tmp_path / 'run'}", f"staging.path={tmp_path / 'file' / 'x'}"])
    with pytest.raises(ConfigError, match=r"staging\.path: cannot use"), claim(folder, config):
        pytest.fail("claimed it")


def test_a_run_folder_elsewhere_leaves_latest_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder, config = choose(["run_dir=mine"])
    with claim(folder, config):
        assert not (tmp_path / "latest").exists()
        assert not (tmp_path / "runs").exists()


def test_the_command_is_named_as_a_shell_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "my env" / "dcr"
    command.parent.mkdir()
    command.touch(mode=0o755)
    monkeypatch.setattr("sys.argv", [str(command), "grpo"])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program() == f"'{command}'"
    monkeypatch.setenv("PATH", str(command.parent))
    assert program() == "dcr"


def test_ctrl_c_ends_everything_and_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids: dict[str, int] = {}
    shown = io.StringIO()

    def stand_ins(folder: RunFolder, _config: object) -> list[Spec]:
        return [
            _spec("runtime-0", FOREVER, folder.root),
            _spec("owner-0", FOREVER, folder.root, finishes=True),
        ]

    def interrupting(_progress: Progress) -> None:
        root = tmp_path / "run"
        if (root / "owner-0.1").exists() and (root / "runtime-0.1").exists():
            pids.update(supervisors[0].pids())
            os.kill(os.getpid(), signal.SIGTERM)

    supervisors: list[Supervisor] = []

    def remembered(*args: object, **options: object) -> Supervisor:
        supervisors.append(Supervisor(*args, **options))  # type: ignore[arg-type]  # passes through
        return supervisors[0]

    monkeypatch.setattr("dcr_recipes.launch.driver.specs", stand_ins)
    monkeypatch.setattr(Progress, "update", interrupting)
    monkeypatch.setattr("dcr_recipes.launch.driver.Supervisor", remembered)
    code = run([f"run_dir={tmp_path / 'run'}"], Console(file=shown, width=200))
    assert code == 130
    assert f"resume with: dcr grpo resume=true run_dir={tmp_path / 'run'}" in shown.getvalue()
    assert set(pids) == {"runtime-0", "owner-0"}
    assert all(map(_gone, pids.values()))


def test_a_run_of_stand_ins_shows_each_step_once(tmp_path: Path) -> None:
    row = (
        '{{"step": {0}, "version": {0}, "reward/mean": 0.5, "refit/changed_fraction": 0.04, '
        '"refit/payload_bytes": 1234, "refit/dense_bytes": 50000, "refit/seconds": 0.25, '
        '"verify/differing_bits": 0}}\n'
    )
    rows = "".join(row.format(step) for step in (1, 2, 3))
    code = PRELUDE + (
        "import json\n"
        f"rows = {rows!r}.splitlines(keepends=True)\n"
        "out = here / 'metrics.jsonl'\n"
        "for text in [rows[0], rows[0] + rows[1], rows[0], ''.join(rows)]:\n"
        "    out.write_text(text); time.sleep(0.3)\n"
    )
    shown = io.StringIO()
    supervisor = Supervisor([_spec("owner-0", code, tmp_path, finishes=True)], tmp_path, max_restarts=0)
    with Progress(tmp_path / "metrics.jsonl", 3, Console(file=shown, width=200)) as progress:
        drive(supervisor, progress)
    lines = shown.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == ["step", "1/3", "2/3", "3/3"]
    assert "4.000%    1.2 kB   50.0 kB   0.25 s       v1     0 bits" in lines[1]


def test_the_processes_of_a_run(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    made = specs(folder, compose(["runtime.instances=3"]))
    names = ["coordinator", "oracle", "runtime-0", "runtime-1", "runtime-2", "owner-0", "owner-1"]
    assert [spec.name for spec in made] == names
    assert {spec.group for spec in made if spec.finishes} == {"the trainer"}
    dense = specs(folder, compose(["refit=dense", "verify=off"]))
    assert [spec.name for spec in dense] == ["runtime-0", "runtime-1", "owner-0", "owner-1"]
