"""Trainer ranks on gloo, forked from one process, and a coordinator in the first of them: no runtimes."""

import multiprocessing
import os
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist

from dcr.config import CommitConfig, RefitConfig
from dcr.model import CommitRecord
from dcr.refit import ControlSpec, Post, Site, coordinate
from dcr.transport.directory import DirectoryStore
from dcr.transport.replay import Tensors, replay

RUN = "ab" * 16
CONFIG = RefitConfig(
    commit=CommitConfig(collect_deadline_s=60.0, max_attempts=2, retry_pause_s=0.0, min_receivers=0)
)
_DEADLINE_S = 180.0


def fork_ranks(folder: Path, world: int, body: Callable[[int], None]) -> None:
    """Run ``body(rank)`` in ``world`` processes of one gloo group; tracebacks go to ``failed-<rank>``.

    None of them is left when it returns.
    """
    folder.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=_rank, args=(folder, world, rank, body)) for rank in range(world)]
    for process in ranks:
        process.start()
    for rank, process in enumerate(ranks):
        process.join(_DEADLINE_S)
        if process.is_alive():
            process.kill()
            process.join()
        failure = folder / f"failed-{rank}"
        if process.exitcode and not failure.exists():
            failure.write_text(f"rank {rank} hung and was killed, or died: exit code {process.exitcode}")


def require_success(folder: Path) -> None:
    """Fail with the tracebacks of all ranks that failed, if any: one may only have waited for another."""
    failures = sorted(folder.glob("failed-*"))
    assert not failures, "\n".join(each.read_text()[-3000:] for each in failures)


def _rank(folder: Path, world: int, rank: int, body: Callable[[int], None]) -> None:
    try:
        where = (folder / "rendezvous").absolute().as_uri()
        dist.init_process_group("gloo", init_method=where, rank=rank, world_size=world)
        body(rank)
        dist.barrier()
    except BaseException:  # noqa: BLE001 -- a child's failure is read by the test
        (folder / f"failed-{rank}").write_text(traceback.format_exc())
        os._exit(1)
    os._exit(0)


@contextmanager
def coordinated(folder: Path) -> Iterator[Site]:
    """The run of this group in ``folder``; the first rank coordinates it until all have left the block."""
    if dist.get_rank() == 0:
        (folder / "store").mkdir(exist_ok=True)
    dist.barrier()
    site = Site(RUN, DirectoryStore(folder / "store"), folder / "endpoints")
    stop = threading.Event()
    control = ControlSpec("sqlite", folder / "control.sqlite")
    post = Post(CONFIG.commit, site, control, dist.get_world_size(), (), leader_lease_s=5.0)
    thread = threading.Thread(
        target=coordinate, args=("coordinator", post, stop), kwargs={"tell": lambda _: None}, daemon=True
    )
    if dist.get_rank() == 0:
        thread.start()
    yield site
    dist.barrier()
    if dist.get_rank() == 0:
        stop.set()
        thread.join()


def committed(site: Site, record: CommitRecord) -> Tensors:
    """What the archive makes of the version, from anchor and payloads."""
    return replay(site.archive, record, site.catalogue(record))
