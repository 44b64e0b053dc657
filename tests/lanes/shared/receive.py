"""``dcr receive``: a server of somebody else joins a live run, follows it and leaves (docs/servers.md)."""

import os
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from tests.lanes.shared.recipe import DRIVER, asked, live, num_steps
from tests.lanes.shared.servers import until

NAME = "server-0"
_REFITS = 3


def check_receive(
    folder: Path,
    engine: str,
    key: str,
    serve: Callable[[Path], AbstractContextManager[str]],
    status: Callable[[str], int],
) -> None:
    """``serve`` serves a checkpoint under a lease; ``status`` is that of a request to its URL."""
    run, base = folder / "run", folder / "base"
    with live(run):
        code, _ = asked("export", run, "--version", "1", "--out", str(base))
        assert code == 0
        with serve(base) as url:
            assert status(url) == 503, "nobody has granted a lease yet"
            with _receiving(run, engine, url, key) as process:
                assert process.stdout is not None
                told = [process.stdout.readline() for _ in range(2)]
                assert told[0].startswith(f"{NAME} is being restored to version "), told
                assert told[1] == f"{NAME} is admitted and serves\n"
                _follows(run, url, status)
                process.terminate()
                assert process.wait(60) == 0
            until(lambda: status(url) == 503)
            _goes_on(run)
    _, proof = asked("verify", run)
    assert not [one for one in proof["findings"] if one["what"] == NAME]


def _receiving(run: Path, engine: str, url: str, key: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [
            *(str(DRIVER), "-m", "dcr_recipes.cli", "receive", str(run)),
            *("--engine", engine, "--url", url, "--name", NAME),
        ],
        env={**os.environ, "DCR_SERVER_KEY": key},
        stdout=subprocess.PIPE,
        text=True,
    )


def _follows(run: Path, url: str, status: Callable[[str], int]) -> None:
    """It takes part in refits, holds what is committed, and answers."""
    _goes_on(run)
    code, proof = asked("verify", run)
    assert code == 0, proof
    (found,) = [one for one in proof["findings"] if one["what"] == NAME]
    assert "bit for bit" in found["detail"]
    until(lambda: status(url) == 200)  # between refits


def _goes_on(run: Path) -> None:
    before = num_steps(run)
    until(lambda: num_steps(run) >= before + _REFITS)
