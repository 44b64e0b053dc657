"""What is particular to the folder store: the disk under it fails, fills up, and its writers die."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dcr.errors import ConfigError, Conflict, MissingObject, StoreError
from dcr.transport.directory import DirectoryStore

DATA = bytes(range(256)) * 4096


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


def temporaries(root: Path) -> list[Path]:
    return sorted(root.rglob(".tmp-*"))


# ---- the folder -----------------------------------------------------------------------------------


def test_a_missing_folder_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere does not exist; create it"):
        DirectoryStore(tmp_path / "nowhere")


def test_a_file_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"file is not a folder"):
        DirectoryStore(tmp_path / "file")


def test_a_vanished_folder_is_not_made_anew(tmp_path: Path) -> None:
    """An unmounted disk must not turn into an empty store on the disk below it."""
    (tmp_path / "root").mkdir()
    store = DirectoryStore(tmp_path / "root")
    store.put("a/b", b"x")
    (tmp_path / "root").rename(tmp_path / "unmounted")
    acts = (lambda: store.put("a/c", b"y"), lambda: store.get("a/b"), lambda: store.list("a/"))
    for act in acts:
        with pytest.raises(StoreError, match="is gone") as caught:
            act()
        assert not isinstance(caught.value, MissingObject)
    assert not (tmp_path / "root").exists()


def test_foreign_files_are_no_objects(store: DirectoryStore, tmp_path: Path) -> None:
    store.put("a/b", b"x")
    for name in (".DS_Store", "a/.nfs000", "a/read me.txt", "a/.tmp-1-2"):
        (tmp_path / name).write_bytes(b"?")
    assert store.list("") == store.list("a/") == ["a/b"]


def test_the_listing_of_an_unreadable_folder_is_an_error(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that cannot be read must not look empty: a receiver would wait for ever."""
    store.put("a/b", b"x")
    failing(monkeypatch, "scandir", errno.EACCES)
    with pytest.raises(StoreError, match="no permission"):
        store.list("")


# ---- the disk -------------------------------------------------------------------------------------


def failing(monkeypatch: pytest.MonkeyPatch, function: str, code: int, after: int = 0) -> None:
    """Let ``os.function`` fail with ``code`` once it has been called ``after`` times."""
    real = getattr(os, function)
    calls = iter(range(after))

    def fail(*args: object, **kwargs: object) -> object:
        if next(calls, None) is not None:
            return real(*args, **kwargs)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, function, fail)


@pytest.mark.parametrize(
    ("function", "code", "message"),
    [
        ("write", errno.ENOSPC, "no space left under {root}.*; free space and retry; nothing was lost"),
        ("write", errno.EDQUOT, "quota exhausted under {root}.*retry; nothing was lost"),
        ("write", errno.EIO, "disk under {root}.*I/O error"),
        ("fsync", errno.EIO, "disk under {root}.*I/O error"),
        ("fsync", errno.ENOSPC, "no space left under {root}"),
        ("open", errno.EACCES, "no permission for {root}"),
        ("open", errno.EROFS, "{root}.*read-only"),
        ("open", errno.EMFILE, "{root}.*Too many open files"),
        ("link", errno.EPERM, "{root}.*hard links"),
        ("link", errno.EOPNOTSUPP, "{root}.*no hard links"),
        ("mkdir", errno.ENOSPC, "no space left under {root}"),
    ],
)
def test_a_failing_disk_is_explained_and_leaves_nothing(
    store: DirectoryStore, tmp_path: Path, function: str, code: int, message: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        failing(patch, function, code)
        with pytest.raises(StoreError, match=message.format(root=tmp_path)):
            store.put("a/b/c", DATA)
    assert store.list("") == []
    assert temporaries(tmp_path) == []
    store.put("a/b/c", DATA)
    assert store.get("a/b/c") == DATA


def test_a_failing_folder_flush_is_not_success(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The object is there but perhaps not durable: the writer must ask again."""
    store.put("first", b"x")
    with monkeypatch.context() as patch:
        failing(patch, "fsync", errno.EIO, after=1)
        with pytest.raises(StoreError):
            store.put("second", b"y")
    store.put("second", b"y")
    assert store.list("") == ["first", "second"]


def test_short_writes_are_continued(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: real(handle, data[:1000]))
    store.put("k", DATA)
    assert store.get("k") == DATA


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc which file a descriptor is")
def test_data_are_flushed_before_the_name_and_the_name_before_the_answer(
    store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = []
    fsync, link = os.fsync, os.link

    def traced_fsync(handle: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        trace.append("data" if path.name.startswith(".tmp-") else str(path.relative_to(tmp_path)))
        fsync(handle)

    def traced_link(source: Path, target: Path) -> None:
        trace.append("link")
        link(source, target)

    monkeypatch.setattr(os, "fsync", traced_fsync)
    monkeypatch.setattr(os, "link", traced_link)
    store.put("a/b/c", DATA)
    assert trace == [".", "a", "data", "link", "a/b"]
    trace.clear()
    DirectoryStore(tmp_path).put("a/b/c", DATA)  # another process's retry: it may have seen no flush
    assert trace == [".", "a", "a/b"]


def test_a_retry_of_a_stored_object_needs_no_space(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("k", DATA)
    failing(monkeypatch, "write", errno.ENOSPC)
    store.put("k", DATA)
    with pytest.raises(Conflict):
        store.put("k", DATA[1:])


@contextmanager
def tiny_disk(path: Path) -> Iterator[bool]:
    """Mount a 64 KiB file system at ``path`` if this user may; whether it did."""
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(path)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", str(path)], check=True)


def test_a_really_full_disk(tmp_path: Path) -> None:
    """On a mounted tiny file system where possible, else under a file size limit (next test too)."""
    with tiny_disk(tmp_path) as mounted:
        store = DirectoryStore(tmp_path)
        store.put("a/small", b"x" * 1000)
        if mounted:
            with pytest.raises(StoreError, match=r"no space left under .*a/large; free space and retry"):
                store.put("a/large", DATA)
        assert store.list("") == ["a/small"]
        assert temporaries(tmp_path) == []
        store.put("a/next", b"y" * 1000)
        assert store.get("a/small") == b"x" * 1000


# ---- the writers ----------------------------------------------------------------------------------

LIMITED = """
import resource, sys
from dcr.errors import StoreError
from dcr.transport.directory import DirectoryStore
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
store = DirectoryStore(sys.argv[1])
store.put("a/small", b"x" * 1000)
try:
    store.put("a/large", b"x" * 100_000)
except StoreError as err:
    print(err)
"""

STOPPING = """
import os, sys, time
from dcr.transport.directory import DirectoryStore
where, data = sys.argv[2], bytes(range(256)) * 4096
real_write, real_link, real_fsync = os.write, os.link, os.fsync

def stop():
    print("here", flush=True)
    time.sleep(600)

def write(handle, part):
    done = real_write(handle, part[: len(part) // 2])
    stop()
    return done

def fsync(handle):
    stop()

def link(source, target):
    real_link(source, target)
    stop()

setattr(os, where, {"write": write, "fsync": fsync, "link": link}[where])
DirectoryStore(sys.argv[1]).put("key", data)
"""


def script(text: str, *args: object) -> list[str]:
    return [sys.executable, "-c", text, *map(str, args)]


def test_a_write_beyond_the_file_size_limit(tmp_path: Path) -> None:
    """A real refusal by the kernel in the middle of a write, which any user can provoke."""
    done = subprocess.run(script(LIMITED, tmp_path), capture_output=True, text=True, check=True)
    assert f"{tmp_path}/a/large exceeds the file size limit" in done.stdout
    assert DirectoryStore(tmp_path).list("") == ["a/small"]
    assert temporaries(tmp_path) == []


@contextmanager
def stopped_writer(root: Path, where: str) -> Iterator[subprocess.Popen[str]]:
    """A process that hangs in its put: half written, written but not flushed, or linked."""
    with subprocess.Popen(script(STOPPING, root, where), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.processes
@pytest.mark.parametrize("where", ["write", "fsync", "link"])
def test_a_killed_writer_leaves_all_or_nothing(tmp_path: Path, where: str) -> None:
    store = DirectoryStore(tmp_path)
    with stopped_writer(tmp_path, where) as process:
        assert store.sweep() == 0, "a live writer's temporary is not ours to remove"
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert len(temporaries(tmp_path)) == 1
    assert store.list("") == (["key"] if where == "link" else [])
    if where == "link":
        assert store.get("key") == DATA
    assert store.sweep() == 1
    assert temporaries(tmp_path) == []
    store.put("key", DATA)
    assert store.get("key") == DATA


def test_a_writer_whose_temporary_was_swept_writes_it_again(
    store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep can come between the creation of the temporary and its lock."""
    real = os.fsync
    swept: list[Path] = []

    def sweeping(handle: int) -> None:
        if not swept:
            swept.extend(temporaries(tmp_path))
            for path in swept:
                path.unlink()
        real(handle)

    store.put("first", b"x")
    monkeypatch.setattr(os, "fsync", sweeping)
    store.put("k", DATA)
    assert len(swept) == 1
    assert store.get("k") == DATA


def test_writing_works_where_files_cannot_be_locked(
    store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some shared file systems have no locks: then nothing is ever taken for dead."""
    import fcntl

    def no_locks(handle: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    store.put("k", DATA)
    (tmp_path / ".tmp-1-dead").write_bytes(b"?")
    assert store.sweep() == 0
    assert store.list("") == ["k"]
