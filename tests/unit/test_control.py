"""Which control plane a run has, by name: in configurations, on command lines, in run folders."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dcr.commit.control_plane.sqlite import SqliteControlPlane
from dcr.commit.leadership.etcd import EtcdLeadership
from dcr.commit.leadership.sqlite import SqliteLeadership
from dcr.errors import ConfigError, StoreError
from dcr.refit import ControlSpec, parse_control
from dcr.testing.control_plane_suite import RUN
from dcr.testing.etcd import free_ports
from dcr.transport.peers import Peers
from dcr.transport.s3_client import S3Address
from dcr_recipes.cli import main
from dcr_recipes.compose import compose, recompose, save
from dcr_recipes.launch.driver import check_control
from dcr_recipes.launch.folder import choose
from dcr_recipes.layout import RunFolder
from dcr_recipes.processes.serving import control_of, post_of

_ETCD = ["commit=etcd", "commit.endpoints=[http://a:2379,http://b:2379]"]


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("sqlite:/runs/1/control.sqlite", ControlSpec("sqlite", Path("/runs/1/control.sqlite"))),
        ("sqlite:C:odd", ControlSpec("sqlite", Path("C:odd"))),
        ("s3:b", ControlSpec("s3", bucket=S3Address("b"))),
        ("s3:b/some/where", ControlSpec("s3", bucket=S3Address("b", prefix="some/where"))),
        ("etcd:http://a:2379", ControlSpec("etcd", endpoints=("http://a:2379",))),
        ("etcd:http://a:1, https://b:2,", ControlSpec("etcd", endpoints=("http://a:1", "https://b:2"))),
    ],
)
def test_a_control_plane_has_a_short_name(text: str, spec: ControlSpec) -> None:
    assert parse_control(text) == spec
    assert parse_control(spec.text()) == spec


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not one of sqlite, etcd"),
        ("s3:", "needs a bucket"),
        ("redis:x", "redis"),
        ("sqlite:", "sqlite:PATH"),
        ("etcd:,", "URLs"),
    ],
)
def test_what_names_none_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_control(text)


def test_each_comes_with_its_leadership(tmp_path: Path) -> None:
    sqlite = ControlSpec("sqlite", tmp_path / "c")
    assert isinstance(sqlite.plane(), SqliteControlPlane)
    assert isinstance(sqlite.leadership(RUN, "a", lease_s=1.0), SqliteLeadership)
    etcd = ControlSpec("etcd", endpoints=("http://127.0.0.1:1",))
    assert isinstance(etcd.leadership(RUN, "a", lease_s=1.0), EtcdLeadership)


def test_a_recipe_picks_one(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert control_of(folder, compose([])) == ControlSpec("sqlite", folder.control)
    config = compose([*_ETCD, "commit.coordinators=3", "commit.leader_lease_s=2.5", "runtime.instances=1"])
    assert control_of(folder, config) == ControlSpec("etcd", endpoints=("http://a:2379", "http://b:2379"))
    folder.run_id.write_text(RUN)
    folder.store.mkdir()
    post = post_of(folder, config)
    assert (post.world, post.receivers, post.leader_lease_s) == (2, ("runtime-0",), 2.5)
    moved = recompose(config, ["commit.endpoints=[http://c:2379]"])
    assert moved.commit.endpoints == ["http://c:2379"], "a cluster may move, its data with it"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["commit=etcd", "commit.endpoints=[]"], "commit.endpoints.*needs client URLs"),
        (["commit.endpoints=[http://a:2379]"], "commit.endpoints.*use commit=etcd"),
        (["commit=redis"], "accepted: etcd, s3, sqlite"),
        (["commit.name=redis"], "accepted: sqlite, etcd, s3"),
        (["commit.coordinators=0"], "commit.coordinators: must be at least 1"),
        (["commit.leader_lease_s=0.1"], "commit.leader_lease_s: must be at least 1"),
    ],
)
def test_what_does_not_go_together_is_named(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compose(words)


def test_a_run_keeps_its_control_plane() -> None:
    with pytest.raises(ConfigError, match=r"commit\.name: this run was started with 'sqlite'"):
        recompose(compose([]), ["commit=etcd", "commit.endpoints=[http://a:2379]"])


@pytest.mark.parametrize("group", [[], ["commit=etcd"]])
@pytest.mark.parametrize("resume", ["true", "TRUE", "1", "'yes'"])
def test_a_cluster_that_moved_is_named_when_its_run_is_resumed(
    group: list[str], resume: str, tmp_path: Path
) -> None:
    """Naming the control plane again resets nothing of it."""
    kept = ["commit.coordinators=3", "commit.mode=async", "commit.finish_deadline_s=7"]
    started = compose([*_ETCD, *kept])
    save(started, RunFolder(tmp_path).config)
    moved = ["commit.endpoints=[http://c:2379]", *group]
    folder, config = choose([*moved, f"resume={resume}", f"run_dir={tmp_path}"])
    assert folder.root == tmp_path
    started.commit.endpoints = ["http://c:2379"]
    assert config.commit == started.commit


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["commit.endpoints=[]"], "^commit.endpoints: commit.name=etcd needs client URLs"),
        (["commit.mode=half"], "^commit.mode: 'half' is not a choice"),
        (["commit.mod=async"], "^unknown key 'commit.mod'; nearest: commit.mode"),
        (["commit=redis"], "^commit: 'redis' is not a choice"),
        (["commit=sqlite"], "^commit.name: this run was started with 'etcd'; 'sqlite' needs a new run_dir"),
        (["commit=s3"], "^commit.name: this run was started with 'etcd'; 's3' needs a new run_dir"),
        (["transport.bucket=b"], "^transport.bucket: this run was started with ''; 'b' needs a new run_dir"),
        (["transport.region=eu"], "^transport.region: transport=directory has none"),
    ],
)
def test_what_a_resumed_run_cannot_be_told_is_named(words: list[str], message: str, tmp_path: Path) -> None:
    save(compose(_ETCD), RunFolder(tmp_path).config)
    with pytest.raises(ConfigError, match=message):
        choose(["resume=true", f"run_dir={tmp_path}", *words])


def test_an_etcd_that_does_not_answer_is_noticed_before_anything_starts() -> None:
    port = free_ports(1)[0]
    config = compose(["commit=etcd", f"commit.endpoints=[http://127.0.0.1:{port}]"])
    with pytest.raises(ConfigError, match=r"^commit\.endpoints: no etcd node answers"):
        check_control(config)
    config.refit = "dense"  # which has no control plane
    check_control(config)


_GIVEN = {
    "run": RUN, "store": "store", "endpoints": "endpoints", "control": "sqlite:control", "world": "1"
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"store": "s3:///x"}, "--store: 's3:///x' names no bucket"),
        ({"run": "12"}, "--run: '12' is not 32 hexadecimal digits"),
        ({"world": "0"}, "--world: must be at least 1"),
        ({"control": "sqlite:nowhere/control"}, "nowhere does not exist"),
        ({"control": "none"}, "'none' is not one of sqlite, etcd"),
        ({"control": ""}, "give --control as well"),
        ({"set": "patience=3"}, "--set: unknown key 'patience'; known: .*finish_deadline_s"),
        ({"set": "max_attempts=1.5"}, "--set: max_attempts must be a number"),
        ({"set": "finish_deadline_s=-1"}, "--set: finish_deadline_s must be at least 0"),
        ({"lease": "0"}, "--lease: must be at least 1"),
    ],
)
def test_mistakes_of_a_coordinators_arguments_are_one_line(
    changed: dict[str, str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [word for key, value in {**_GIVEN, **changed}.items() for word in (f"--{key}", value)]
    assert main(["coordinator", *words]) == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert shown.startswith("error: ")
    with pytest.raises(ConfigError, match=message):
        raise ConfigError(shown.strip())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name a RUN_DIR, or give --run, --store, --endpoints, --control, --world"),
        (["nowhere"], "nowhere holds no run"),
        (["somewhere", "--world", "2"], "drop --world, or RUN_DIR"),
    ],
)
def test_a_coordinator_is_told_which_run(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["coordinator", *words]) == 2
    assert message in capsys.readouterr().err


def test_an_etcd_that_does_not_answer_is_an_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    given = {**_GIVEN, "control": f"etcd:http://127.0.0.1:{free_ports(1)[0]}", "store": str(tmp_path / "s")}
    assert main(["coordinator", *(word for key, value in given.items() for word in (f"--{key}", value))]) == 1
    assert "no etcd node answers" in capsys.readouterr().err


def test_a_control_plane_that_is_none_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "notes").write_bytes(b"not a database " * 100)
    with pytest.raises(StoreError, match="not a control plane"):
        ControlSpec("sqlite", tmp_path / "notes").plane()


@pytest.mark.processes
def test_coordinators_of_ones_own_loop_hand_over(tmp_path: Path) -> None:
    """Two processes of the command; SIGTERM of the active one lets the other follow at once."""
    words = [word for key, value in {**_GIVEN, "lease": "600"}.items() for word in (f"--{key}", value)]
    peers = Peers(tmp_path / "endpoints")
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(_started("a", words, tmp_path))
        assert _line(first) == "a is the active coordinator\n"
        second = stack.enter_context(_started("b", words, tmp_path))
        assert _line(second) == "b stands by; a leads\n"
        first.send_signal(signal.SIGTERM)
        assert _line(first) == "a stands down: it ends\n"
        assert first.wait(30) == 0
        assert _line(second) == "b is the active coordinator\n"
        while peers.find("coordinator") is None:
            pass
        second.send_signal(signal.SIGINT)
        assert second.wait(30) == 0
        assert peers.find("coordinator") is None


@contextlib.contextmanager
def _started(name: str, words: list[str], folder: Path) -> Iterator["subprocess.Popen[str]"]:
    argv = [sys.executable, "-u", "-m", "dcr_recipes.cli", "coordinator", *words, "--name", name]
    with subprocess.Popen(argv, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline()
