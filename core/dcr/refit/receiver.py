"""The runtime's side: an agent over the runtime's own loader and gate."""

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

from dcr.commit.remote import HttpCaller
from dcr.config import CHECKS, ChainConfig, CommitConfig, RefitConfig, StagingConfig
from dcr.errors import ConfigError, Unreachable
from dcr.model import Catalogue, CommitRecord, new_nonce
from dcr.receiver.agent import ReceiverAgent
from dcr.receiver.area import Room
from dcr.receiver.catch_up import CatchUpPolicy, Lend
from dcr.receiver.instance import InstanceWriter
from dcr.receiver.ports import NativeLoader, RequestGate
from dcr.receiver.rank import RankPort
from dcr.receiver.writer import Writer
from dcr.refit.background import MIB
from dcr.refit.site import Site, find_record
from dcr.transport.depot import Depot


def await_record(site: Site, config: CommitConfig, *, deadline_s: float) -> CommitRecord:
    """Wait until the trainer has created the run and return its record: it names the catalogue.

    Raises:
        Unreachable: there was no coordinator or no run within ``deadline_s``.
    """
    caller = HttpCaller(site.peers)
    coordinator = site.coordinator(config, caller)
    end = time.monotonic() + deadline_s
    try:
        while (left := end - time.monotonic()) > 0:
            record = find_record(coordinator, left)
            if record is not None:
                return record
            time.sleep(0.1)
    finally:
        caller.close()
    raise Unreachable(f"run {site.run} was not created within {deadline_s} s; is the trainer running?")


def compose_receiver(
    name: str,
    site: Site,
    record: CommitRecord,
    *,
    loader: NativeLoader,
    gate: RequestGate,
    config: RefitConfig,
) -> ReceiverAgent:
    """An EMPTY receiver: prewarmed for the run's catalogue, gate closed, to be restored by the coordinator.

    Raises:
        ConfigError: ``config.check`` is none of ``dcr.config.CHECKS``.
        UnsupportedPath: the loader cannot take this catalogue's tensors exactly.
    """

    def writer(catalogue: Catalogue) -> Writer:
        from dcr.receiver.local import local_writer  # needs torch, which coordinators may lack

        return local_writer(loader, catalogue)

    policy = catch_up_policy(config.chain)
    return _compose(name, site, record, writer=writer, gate=gate, config=config, policy=policy)


def compose_instance(
    name: str,
    site: Site,
    record: CommitRecord,
    *,
    ranks: Callable[[Catalogue], Sequence[RankPort]],
    gate: RequestGate,
    config: RefitConfig,
) -> ReceiverAgent:
    """As ``compose_receiver``, for an instance whose ``ranks`` live elsewhere, given in rank order.

    Raises:
        ConfigError: ``config.check`` is none of ``dcr.config.CHECKS``.
        UnsupportedPath: a rank cannot take this catalogue's tensors exactly, or no rank holds some of them.
    """

    def writer(catalogue: Catalogue) -> Writer:
        return InstanceWriter(ranks(catalogue), catalogue)

    policy = catch_up_policy(config.chain, Depot(site.store).lend)
    return _compose(name, site, record, writer=writer, gate=gate, config=config, policy=policy)


def catch_up_policy(config: ChainConfig, lend: Lend = nullcontext) -> CatchUpPolicy | None:
    """How a receiver catches up; None: by dense loads. ``lend`` is for ranks in other processes."""
    return CatchUpPolicy(int(config.catch_up_mib * MIB), lend) if config.catch_up else None


def _compose(  # noqa: PLR0913 -- one collaborator each
    name: str,
    site: Site,
    record: CommitRecord,
    *,
    writer: Callable[[Catalogue], Writer],
    gate: RequestGate,
    config: RefitConfig,
    policy: CatchUpPolicy | None,
) -> ReceiverAgent:
    if config.check not in CHECKS:
        raise ConfigError(f"check: {config.check!r} is not a choice; accepted: {', '.join(CHECKS)}")
    catalogue = site.catalogue(record)
    return ReceiverAgent(
        name,
        writer(catalogue),
        gate,
        transport=site.transport,
        archive=site.archive,
        catalogue=catalogue,
        incarnation=new_nonce(),
        check=config.check,
        slice_bytes=int(config.audit.slice_mib * MIB),
        room=_room(name, site, config.staging),
        catch_up=policy,
    )


def _room(name: str, site: Site, config: StagingConfig) -> Room:
    """A folder of this receiver's own: runs and receivers may share ``config.path``, users may not."""
    common = Path(tempfile.gettempdir()) / f"dcr-staging-{os.getuid()}"
    base = Path(config.path).absolute() if config.path else common
    folder = base / f"{site.run}-{name}"
    return Room(int(config.memory_mib * MIB), int(config.disk_mib * MIB), folder)
