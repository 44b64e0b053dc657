import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dcr.codec import Item, encode_payload
from dcr.model import AttemptId, Encoding
from dcr_recipes.cli import main
from dcr_recipes.config import RULES


def _dcr(*words: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "dcr_recipes.cli", *words], cwd=cwd, capture_output=True, text=True, timeout=60
    )


def test_help_lists_every_key_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["grpo", "--help"])
    shown = capsys.readouterr().out
    assert ended.value.code == 0
    assert all(f"{key}=" in shown for key in RULES)
    assert "steps=20" in shown
    assert "(dcr | dense)" in shown


def test_importing_the_command_is_light() -> None:
    heavy = "('torch', 'hydra', 'transformers', 'numpy', 'httpx', 'dcr.refit')"
    code = f"import sys, dcr_recipes.cli; print([m for m in {heavy} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_a_mistake_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    done = _dcr("grpo", "stpes=3", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: unknown key 'stpes'; nearest: steps\n"
    assert not list(tmp_path.iterdir())


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = _dcr("grpo", "stpes=3", "--debug", cwd=tmp_path)
    assert done.returncode != 0
    assert "Traceback" in done.stderr


def test_an_existing_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "config.yaml").write_text("")
    done = _dcr("grpo", "run_dir=old", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "old exists; pass resume=true to continue it or choose another run_dir" in done.stderr


@pytest.mark.parametrize("words", [("resume=true",), ("resume=true", "run_dir=none")])
def test_there_must_be_a_run_to_resume(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = _dcr("grpo", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert "holds no run" in done.stderr


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = _dcr("grpo", "model=tiny", "run_dir=file/run", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: run_dir: cannot use ")
    assert "file/run" in done.stderr


def test_a_store_that_cannot_be_made_leaves_no_run_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = _dcr("grpo", "model=tiny", "run_dir=run", "transport.path=file/store", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: transport.path: cannot use ")
    assert "file/store" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_name_that_is_too_long_is_one_line(tmp_path: Path) -> None:
    done = _dcr("grpo", "model=tiny", f"run_dir={'a' * 300}", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: run_dir: cannot use aaa")


def test_a_folder_of_other_things_is_not_offered_to_be_resumed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("")
    done = _dcr("grpo", "model=tiny", "run_dir=mine", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "error: run_dir: mine exists and is no run folder; choose another run_dir\n"


def test_standard_streams_that_the_caller_closed_are_opened_on_nothing(tmp_path: Path) -> None:
    """Else the run folder's lock takes the number of stdin, and no child inherits it."""
    code = "from dcr_recipes.cli import open_standard_streams as o; o(); import os; print(os.open('.', 0))"
    shell = f'exec {sys.executable} -c "{code}" <&-'
    done = subprocess.run(["sh", "-c", shell], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert int(done.stdout) > 2


@pytest.mark.parametrize("offset", [0, 1])
def test_a_port_in_use_is_noticed_before_anything_starts(tmp_path: Path, offset: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = _dcr("grpo", f"runtime.port={port - offset}", "run_dir=run", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: runtime.port: cannot listen on port {port}: Address already in use\n"
    assert not (tmp_path / "run").exists()


def test_a_reader_that_has_enough_is_no_error_message(tmp_path: Path) -> None:
    values = np.ones(4, "<u2")
    item = Item("w", (4,), "bfloat16", Encoding.XOR, np.arange(4, dtype=np.int64), values)
    path = tmp_path / "payload"
    path.write_bytes(encode_payload([item], attempt=AttemptId(1, 1), owner=0, sequence=0))
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "dcr_recipes.cli", "inspect", "--json", str(path)],
        stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60,
    )  # fmt: skip
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")
