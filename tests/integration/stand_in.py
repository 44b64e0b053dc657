"""A process of ``test_warm_starts``: tells who it is, then does what its name says."""

import gc
import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np

from dcr_recipes.processes.border import INCARNATION, die_with_parent

_BEFORE = random.random(), float(np.random.random())  # noqa: NPY002 -- the global state is what is looked at
"""Drawn by whoever imports this first; a child that did not import it anew would have its parent's."""
IMPORTED = "TEST_IMPORTED"


def main() -> None:
    die_with_parent()
    folder, name, action = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    told = {
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "session": os.getsid(0),
        "main": threading.current_thread() is threading.main_thread(),
        "argv": sys.argv[1:],
        "shown": Path("/proc/self/cmdline").read_bytes().decode().rstrip("\0").split("\0"),
        "descriptors": {fd: _target(fd) for fd in os.listdir("/proc/self/fd")},
        "env": dict(os.environ),
        "collects": gc.isenabled(),
        "cwd": str(Path.cwd()),
        "drawn": [random.random(), float(np.random.random())],  # noqa: NPY002 -- as above
        "dispositions": [signal.getsignal(number) is signal.SIG_DFL for number in (15, 11)],
    }
    path = folder / f"{name}.{os.environ[INCARNATION]}"
    path.with_suffix(".tmp").write_text(json.dumps(told))
    path.with_suffix(".tmp").rename(path)
    sys.stdout.write(f"{name} says\n")
    sys.stderr.write(f"{name} complains\n")
    if action.startswith("exit"):
        sys.exit(int(action.removeprefix("exit")))
    if action.startswith("signal"):
        os.kill(os.getpid(), int(action.removeprefix("signal")))
    if action == "raise":
        raise RuntimeError("out of cheese")
    time.sleep(600)


def _target(descriptor: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:  # the listing's own
        return ""


if os.environ.get(IMPORTED) == "thread" and __name__ != "__main__":
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
if os.environ.get(IMPORTED) == "exit" and __name__ != "__main__":
    sys.exit("error: no such library")
if __name__ == "__main__":
    main()
