"""What a receiver some versions behind costs: one composed delta, a dense restore, a dense refit."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from dcr import observe
from dcr.errors import IntegrityError
from dcr.model import AttemptId, Catalogue, CommitRecord
from dcr.receiver.agent import ReceiverAgent
from dcr.receiver.catch_up import CatchUpPolicy
from dcr.receiver.local import local_writer
from dcr.receiver.ports import NativeLoader
from dcr.transport.chain import links
from dcr.transport.directory import DirectoryStore
from dcr.transport.object_transport import ObjectTransport
from dcr_recipes.bench.apply_floor import Storages, hold, snapshot, storages_of
from dcr_recipes.bench.apply_model import config_of, specs_of
from dcr_recipes.bench.chain_data import Chain
from dcr_recipes.bench.hf_rank import loader_of
from dcr_recipes.bench.refit_model import shape_for
from dcr_recipes.bench.report import Column, Report, Row, Steps, grouped, percent, places

BEHIND = (1, 7, 50)
LINK_MB_S = 125.0
"""1 Gbit/s: what is read is divided by it for the last column; nothing is slowed down."""
_AUDIT_KEY = "00" * 16
_DENSE_KEY = "bench/dense"


def run(*, quick: bool, rate: float = 0.01, gigabytes: float = 1.0) -> Report:
    """Grow a chain of 50 versions, then bring a receiver to the last one from 1, 7 and 50 versions behind.

    The model has ``gigabytes`` (10^9 bytes) at least; takes about five times as much memory.

    Raises:
        IntegrityError: two ways end in other bits.
    """
    shape = shape_for(gigabytes, quick=quick)
    steps = Steps(BEHIND[-1] + len(BEHIND) + 2)
    catalogue = Catalogue("0" * 32, _AUDIT_KEY, specs_of(shape))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory(prefix="dcr-bench-") as folder:
            chain = Chain(DirectoryStore(Path(folder)), catalogue, rate)
            chain.grow(
                BEHIND[-1], anchor_at=BEHIND[-1] // 2, advance=lambda version: steps(f"version {version}")
            )
            rows = _rows(chain, loader_of(config_of(shape)), steps)
    finally:
        steps.end()
        torch.set_num_threads(threads)
    return _report(chain, rows)


def _rows(chain: Chain, loader: NativeLoader, steps: Steps) -> list[Row]:
    record = chain.records[-1]
    steps("dense refit")
    rows, wanted = [_dense_refit(chain, loader)], snapshot(storages_of(loader))
    steps("dense restore")
    empty = _agent(chain, loader, None)
    rows.append(_timed("dense restore", chain, lambda: _restore(empty, record)))
    _require_equal(loader, wanted, "dense restore")
    for behind in BEHIND:
        steps(f"composed delta, {behind} behind")
        since = record.version - behind
        _restore(_agent(chain, loader, None), chain.records[since])
        lagging = _agent(chain, loader, CatchUpPolicy())
        row = _timed("composed delta", chain, lambda one=lagging: _restore(one, record))  # type: ignore[misc]
        _require_equal(loader, wanted, f"composed delta over {behind}")
        manifests = links(chain.archive, record, since)
        sent = sum(manifest.num_bytes for manifest in manifests)
        retries = sum(manifest.overwrite_only for manifest in manifests)
        changed = sum(chain.num_changed[since + 1 :])
        rows.append(row | {"behind": behind, "retries": retries, "link_bytes": sent, "num_changed": changed})
    return rows


def _agent(chain: Chain, loader: NativeLoader, policy: CatchUpPolicy | None) -> ReceiverAgent:
    return ReceiverAgent(
        "bench",
        local_writer(loader, chain.catalogue),
        _Gate(),
        transport=ObjectTransport(chain.store, chain.catalogue.run),
        archive=chain.archive,
        catalogue=chain.catalogue,
        incarnation="bench",
        catch_up=policy,
    )


class _Gate:
    """Nobody asks for anything."""

    def close(self) -> None:
        """See ``RequestGate``."""

    def open(self, version: int, *, changed: bool) -> None:
        """See ``RequestGate``."""


_numbers = iter(range(1_000_000, 2_000_000))


def _restore(agent: ReceiverAgent, record: CommitRecord) -> None:
    attempt = AttemptId(number=next(_numbers), version=record.version + 1)
    agent.fence(attempt, record)
    agent.restore(attempt, record)


def _dense_refit(chain: Chain, loader: NativeLoader) -> Row:
    """The whole checkpoint as one object, read and loaded; neither checked nor audited."""
    words = dict(chain.words())
    chain.store.put(_DENSE_KEY, b"".join(each.tobytes() for each in words.values()))

    def work() -> None:
        data, start = bytearray(chain.store.get(_DENSE_KEY)), 0
        flat = torch.frombuffer(data, dtype=torch.bfloat16)

        def stream() -> Iterator[tuple[str, torch.Tensor]]:
            nonlocal start
            for spec in chain.catalogue.tensors:
                yield spec.name, flat[start : start + spec.num_elements].view(spec.shape)
                start += spec.num_elements

        with torch.no_grad():
            loader.load(stream())
        loader.synchronize()

    return _timed("dense refit", chain, work)


def _timed(way: str, chain: Chain, work: Callable[[], None]) -> Row:
    with _bytes_read() as read:
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {
        "way": way,
        "behind": None,
        "read_bytes": read[0],
        "checkpoint_bytes": chain.catalogue.num_bytes,
        "share": read[0] / chain.catalogue.num_bytes,
        "wall_s": wall,
        "cpu_s": cpu,
        "linked_s": wall + read[0] / (LINK_MB_S * 1e6),
    }


@contextmanager
def _bytes_read() -> Iterator[list[int]]:
    """How much was read from the store inside the block."""
    read = [0]

    def listen(event: observe.Event) -> None:
        if event.name == "store.get":
            read[0] += int(str(event.fields["num_bytes"]))

    with observe.listening(listen):
        yield read


def _require_equal(loader: NativeLoader, wanted: Storages, what: str) -> None:
    if not hold(storages_of(loader), wanted):
        raise IntegrityError(f"{what}: storage does not hold what a dense refit leaves")


def _report(chain: Chain, rows: list[Row]) -> Report:
    num_elements = sum(spec.num_elements for spec in chain.catalogue.tensors)
    rate = sum(chain.num_changed[1:]) / (len(chain.num_changed) - 1) / num_elements
    columns = [
        Column("way", "way"),
        Column("behind", "behind"),
        Column("retries", "retries"),
        Column("read_bytes", "bytes read", grouped),
        Column("share", "of checkpoint", percent(2)),
        Column("wall_s", "seconds", places(3)),
        Column("cpu_s", "cpu s", places(3)),
        Column("linked_s", "s at 1 Gbit/s", places(3)),
    ]
    notes = [
        f"{100 * rate:.2f}% of the bits change a version",
        "every tenth version is an overwrite retry, the one in the middle has an anchor",
        "every way ends in the same bits; restores prove them by audit, a dense refit checks nothing",
        "the last column adds the bytes over such a link to the seconds from a local disk",
    ]
    setup = {"checkpoint_bytes": chain.catalogue.num_bytes, "rate": rate, "versions": len(chain.records) - 1}
    return Report("catch-up", "Bringing a receiver to the committed version", columns, rows, setup, notes)
