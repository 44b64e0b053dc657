"""The program of a warm process: it imports once what the processes of a run need, and forks each of them.

A child is forked twice: its first parent ends at once, so that the kernel gives it to the driver, which takes
orphans in meanwhile. So the driver is the parent of every process, as if it had started it itself: it learns
how they end, they end with it, and they outlive this process. ``warm`` is the driver's side.
"""

import contextlib
import ctypes
import gc
import json
import os
import runpy
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from dcr_recipes.processes.border import INCARNATION, die_with_parent

MESSAGE_BYTES = 1 << 16
_PID_BYTES = 32
_STDOUT, _STDERR = 1, 2
_ARG_START, _ARG_END = 45, 46
"""Fields 48 and 49 of /proc/PID/stat, counted after the name."""


@dataclass(frozen=True, slots=True)
class Request:
    """One process to fork: ``argv`` is ``(python, "-m", module, ...)``."""

    argv: tuple[str, ...]
    incarnation: int

    def to_bytes(self) -> bytes:
        """One message."""
        return json.dumps({"argv": self.argv, "incarnation": self.incarnation}).encode()


def parse_request(data: bytes) -> Request:
    """The inverse of ``Request.to_bytes``."""
    read = json.loads(data)
    return Request(tuple(read["argv"]), int(read["incarnation"]))


def main() -> None:
    """Import, serve, and in each child become what was asked for.

    Arguments: run folder, descriptor of the driver's socket, modules, and room for longer arguments.
    """
    die_with_parent()
    run_dir, descriptor, modules = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3].split(",")
    control = socket.socket(fileno=descriptor)
    control.set_inheritable(False)
    _prepare(run_dir, modules)
    control.send(b"ready")
    become(serve(control))


def _prepare(run_dir: Path, modules: list[str]) -> None:
    from dcr_recipes.processes.preload import preload

    gc.disable()  # imports make hardly any garbage, and looking for it takes a fifth of their time
    preload(run_dir, modules)
    gc.freeze()  # a collection in a child would write to, and so copy, every page that holds objects
    _rehearse()


def _rehearse() -> None:
    """Fork once: OpenBLAS ends its threads before a fork; then none may be left that a child would miss."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    names = [_name(task) for task in Path("/proc/self/task").iterdir()]
    if len(names) > 1:
        sys.exit(f"error: threads are alive after the imports: {', '.join(sorted(names))}")


def _name(task: Path) -> str:
    with contextlib.suppress(OSError):  # it has just ended
        return (task / "comm").read_text().strip()
    return "one that ended"


def serve(control: socket.socket) -> Request:
    """Fork what the driver asks for until it hangs up; returns in children only."""
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 1)
        if not data:
            os._exit(0)
        try:
            if _fork(control, descriptors[0]):
                return parse_request(data)
        except OSError as err:  # no process or memory left: the driver may have more luck
            control.send(json.dumps({"error": str(err)}).encode())
        os.close(descriptors[0])


def _fork(control: socket.socket, log: int) -> bool:
    """Fork a grandchild, tell the driver its id, then let it go on; true in the grandchild.

    Raises:
        OSError: nothing was forked.
    """
    told, telling = os.pipe()
    waiting, letting = os.pipe()
    middle = os.fork()
    if middle == 0:
        for descriptor in (told, letting, control.detach()):
            os.close(descriptor)
        _split(log, telling, waiting)
        return True
    try:
        os.close(telling)
        os.waitpid(middle, 0)  # now its child is the driver's
        pid = os.read(told, _PID_BYTES)
        if not pid:
            raise OSError("the second fork failed")
        control.send(json.dumps({"pid": int(pid)}).encode())
        os.write(letting, b"!")
    finally:
        for descriptor in (told, waiting, letting):
            os.close(descriptor)
    return False


def _split(log: int, telling: int, waiting: int) -> None:
    """Go on in a child of this process, which ends, when the warm process says that the driver has it."""
    try:
        if os.fork():
            os._exit(0)
        os.setsid()
        for stream in (_STDOUT, _STDERR):
            os.dup2(log, stream)
        os.write(telling, str(os.getpid()).encode())
        is_known = os.read(waiting, 1) == b"!"
        for descriptor in (log, telling, waiting):
            os.close(descriptor)
    except OSError:
        is_known = False
    if not is_known:  # the warm process died, or there is no second process: nobody waits for this one
        os._exit(1)


def become(request: Request) -> None:
    """Run the module that was asked for as the program of this process."""
    gc.enable()
    os.environ[INCARNATION] = str(request.incarnation)
    _, _, module, *words = request.argv
    sys.argv = ["-m", *words]
    sys.orig_argv = list(request.argv)
    _show_as(request.argv)
    _reseed()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _reseed() -> None:
    """Random states that a start draws from the system; Python's own module does it at each fork."""
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()  # the global state, which every import would have seeded


def _show_as(argv: tuple[str, ...]) -> None:
    """Overwrite the words that ``ps`` and ``/proc/PID/cmdline`` show, if they fit into the present ones."""
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
    text = b"".join(os.fsencode(word) + b"\0" for word in argv)
    if start > 0 and len(text) <= end - start:
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, text, len(text))


if __name__ == "__main__":
    main()
