"""The trainer's side: what a training loop calls (paper Figure 4, DESIGN section 9).

Each rank composes one ``Refit``, calls ``open`` once and ``sync`` after every optimizer step::

    refit = Refit.compose(config, site, source=FsdpShards(model), rank=rank, trackers=folder)
    record = refit.open(resume=False)
    for step in range(1, steps + 1):
        train(model)
        report = refit.sync(step)
"""

import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from dcr.commit.remote import HttpCaller
from dcr.config import TRACKERS, RefitConfig
from dcr.errors import ConfigError, Unreachable
from dcr.model import (
    AuditTable,
    Catalogue,
    CommitRecord,
    Manifest,
    digest_hex,
    from_json,
    new_nonce,
    to_json,
)
from dcr.refit.anchoring import Anchorer
from dcr.refit.asking import Asker
from dcr.refit.claim import Claim, claim_folder
from dcr.refit.collecting import Collector
from dcr.refit.site import Site, find_record, owner_name
from dcr.source.baseline import Baseline
from dcr.source.owner import OwnerAgent, OwnerSetup
from dcr.source.ownership import owned
from dcr.source.ports import ShardSource
from dcr.source.residual import Exchange, ResidualSource
from dcr.source.residual_shards import ResidualShards
from dcr.source.shares import OwnedShards
from dcr.transport.announce import Announcement, announce


@dataclass(frozen=True, slots=True)
class SyncReport:
    """Figures of one committed transition, equal on every rank but for ``seconds`` and ``num_attempts``.

    ``num_changed`` of ``num_elements`` unique source elements changed; ``dense_bytes`` is what a
    dense refit would have moved. ``required`` are the receivers that took part (P11). ``num_attempts`` is
    None where it is not known: on ranks other than 0, and after a crash of the coordinator; ``pauses``,
    seconds that each receiver's gate was shut by name, is empty there.
    """

    record: CommitRecord
    num_changed: int
    num_elements: int
    num_payloads: int
    payload_bytes: int
    dense_bytes: int
    required: tuple[str, ...] = ()
    seconds: float | None = None
    num_attempts: int | None = None
    pauses: dict[str, float] = field(default_factory=dict)


class Refit:
    """One trainer rank. Rank 0 also asks the coordinator for each transition; the others follow."""

    def __init__(
        self,
        config: RefitConfig,
        site: Site,
        *,
        source: ShardSource,
        rank: int,
        trackers: Path,
        exchange: Exchange | None = None,
    ) -> None:
        if config.trackers not in TRACKERS:
            raise ConfigError(f"trackers: {config.trackers!r} must be one of {', '.join(TRACKERS)}")
        self._config = config
        self._site = site
        self._source: ShardSource = OwnedShards(source, rank, ownership=config.ownership)
        self._residual = _residual(self._source, source, exchange)
        self._source = self._residual or self._source
        self._rank = rank
        self._trackers = trackers
        self._catalogue = _catalogue(site, source)
        self._caller = HttpCaller(site.peers)
        self._coordinator = site.coordinator(config.commit, self._caller)
        self._incarnation = new_nonce()
        self._asker = Asker(self._coordinator, site.archive, self._catalogue, self._incarnation)
        self._anchorer = Anchorer(site, config.chain, self._catalogue, rank=rank)
        self._collector = Collector(site, config.chain.keep_versions)
        self._claim: Claim | None = None
        self._agent: OwnerAgent | None = None
        self._server: Announcement | None = None
        self._record: CommitRecord | None = None

    @classmethod
    def compose(
        cls,
        config: RefitConfig,
        site: Site,
        *,
        source: ShardSource,
        rank: int,
        trackers: Path,
        exchange: Exchange | None = None,
    ) -> "Refit":
        """Bind a rank's shards to a run; nothing is read, written or contacted before ``open``.

        ``trackers`` is this rank's own folder on a local disk; a restarted rank finds its baseline there,
        unless ``config.trackers`` keeps it in memory.
        ``exchange`` carries parts of residual tensors between the trainer's ranks, if ``source`` has any
        (``dcr.source.residual``); ``dcr.source.exchange_torch.TorchExchange`` is one.

        Raises:
            ConfigError: ``config.ownership`` or ``config.trackers`` is no choice, or residual tensors need an
                ``exchange``.
        """
        return cls(config, site, source=source, rank=rank, trackers=trackers, exchange=exchange)

    @property
    def record(self) -> CommitRecord:
        """What is committed, as far as this rank has seen.

        Raises:
            ConfigError: ``open`` was not called.
        """
        if self._record is None:
            raise ConfigError("Refit.open comes first")
        return self._record

    def open(self, *, resume: bool) -> CommitRecord:
        """Create the run from the present weights as v0, or join what is committed. All ranks call it.

        With ``resume`` a run that exists is taken over (P1), else it is created all the same. After
        it this rank's baseline is the returned record's version, whatever its weights are (P13).

        Raises:
            UnsupportedPath: a new run, and the source's weights are not ready to be read.
            ConfigError: the run exists and ``resume`` is false, or it is of another model (P15), which is
                noticed before trackers are touched; or this was called before; or the trackers'
                folder is another rank's.
            Unreachable: coordinator or another rank did not come up in time.
        """
        if self._agent is not None:
            raise ConfigError("Refit.open was called before; compose another Refit to open a run again")
        deadline = self._config.commit.collect_deadline_s
        found = find_record(self._coordinator, deadline)
        if found is not None:
            self._require_ours(found, resume=resume)
        self._claim = claim_folder(self._trackers)
        self._start(self._baseline(found))
        if self._rank == 0 and found is not None:
            self._asker.resume_run(deadline)
        elif self._rank == 0:
            self._asker.create_run(lambda: self._opened().collect(None).close, deadline)
        self._record = self._await_open(deadline)
        if self._residual is not None and found is None:
            self._residual.settled(self._record.attempt)
        if self._rank == 0 and found is not None:
            self._collector.at_start(self._record)
            self._collector.prune(self._record)
        return self._record

    def sync(self, step: int) -> SyncReport:
        """Publish the present weights, those of ``step``, as the next version. All ranks call it.

        Returns when the version is committed, every receiver serves it, and this rank's baseline
        holds it. The weights must not be written meanwhile (P5).

        Raises:
            AttemptFailed: the transition was given up; the committed version is untouched.
            UnsupportedPath: a receiver cannot take one of the tensors.
            Unreachable: a party stayed away; after a restart with ``resume`` the step can be repeated.
            StoreError: the version is committed (``record``) and served, and the store is away: its figures
                could not be read.
        """
        agent, parent = self._opened(), self.record
        start = time.monotonic()
        if self._residual is not None:
            self._residual.collect(parent.attempt)
        agent.present(step)
        attempts, pauses = None, dict[str, float]()
        if self._rank == 0:
            report = self._asker.transition(step, parent.version, self._patience_s())
            attempts, pauses = report.num_attempts or None, report.pauses
        self._record = agent.wait_committed(step, timeout_s=self._patience_s())
        if self._residual is not None:
            self._residual.settled(self._record.attempt)
        seconds = time.monotonic() - start
        self._tidy(parent, self._record, agent)
        return replace(self._report(seconds, attempts), pauses=pauses)

    def last(self) -> SyncReport:
        """Figures of the committed version, from the archive; times are not kept there."""
        return self._report(None, None)

    @property
    def audit_key(self) -> str:
        """Key of the run's audit digests (DESIGN B6)."""
        return self._catalogue.audit_key

    def audit(self) -> AuditTable:
        """Digests that the committed version's tensors have: a checkpoint that claims it must serve them."""
        return from_json(AuditTable, self._site.archive.get_object("audit", self.record.audit))

    def close(self) -> None:
        """Answer no more calls, and end those under way and ``sync``. Idempotent.

        Raises:
            AttemptFailed: a call that uses the trackers did not end in time; they are let go all the same.
        """
        if self._server is not None:
            self._server.close()
        try:
            if self._agent is not None:
                self._agent.withdraw()
        finally:
            self._let_go()

    # ---- inside ----

    def _let_go(self) -> None:
        self._server = self._agent = None  # the trackers are mapped as long as any of them is there
        if self._claim is not None:
            self._claim.release()
        self._caller.close()

    def _require_ours(self, found: CommitRecord, *, resume: bool) -> None:
        if not resume:
            raise ConfigError(
                f"run {self._site.run} exists at version {found.version}; pass resume=true to take it over"
            )
        if found.catalogue != self._catalogue.digest():
            raise ConfigError(
                f"run {self._site.run} was created with other names, shapes or dtypes than this trainer's; "
                "start a new run"
            )

    def _baseline(self, found: CommitRecord | None) -> Baseline:
        tasks = owned(self._source.tasks(), self._rank)
        key, persistent = self._catalogue.audit_key, self._config.trackers == "mapped"
        if found is None:
            self._source.counters()  # refuses weights that an optimizer has not handed on yet
        if self._residual is not None and found is None:
            self._residual.collect(None)
        if found is None:
            baseline = Baseline.create(
                self._trackers, tasks, self._source.read, audit_key=key, persistent=persistent
            )
        else:
            baseline = Baseline.load(self._trackers, tasks, audit_key=key, persistent=persistent)
        if self._residual is not None:
            self._residual.bind(baseline)
        return baseline

    def _start(self, baseline: Baseline) -> None:
        site, incarnation = self._site, self._incarnation
        site.archive.put_object("catalogue", to_json(self._catalogue))
        deadline = self._config.commit.collect_deadline_s
        setup = OwnerSetup(
            self._catalogue, site.archive, site.transport, baseline, self._config.codec, incarnation, deadline
        )
        agent = OwnerAgent(self._rank, self._source, setup)
        calls = (
            agent.anchor, agent.collect, agent.fence, agent.construct, agent.stop_and_wait, agent.fold_in
        )  # fmt: skip
        handlers = {call.__name__: call for call in calls}
        self._server = announce(site.peers, owner_name(self._rank), handlers, incarnation=incarnation)
        self._agent = agent

    def _await_open(self, deadline_s: float) -> CommitRecord:
        """Wait until the coordinator, asked by rank 0, has told every rank what is committed (P1).

        What the record says before may be overtaken yet: by a transition of this trainer's former life.
        """
        try:
            return self._opened().wait_told(timeout_s=deadline_s)
        except Unreachable as err:
            raise ConfigError(f"{err}; did rank 0 call open?") from err

    def _tidy(self, parent: CommitRecord, record: CommitRecord, agent: OwnerAgent) -> None:
        """What is no part of the transition: receivers serve ``record``'s version already."""
        self._anchorer.after_commit(record, agent)
        if self._rank == 0:
            self._collector.after_commit(parent.attempt, record)
            self._collector.prune(record)

    def _patience_s(self) -> float:
        commit = self._config.commit
        one = commit.fence_deadline_s + commit.restore_deadline_s + commit.construct_deadline_s
        return commit.collect_deadline_s + (commit.max_attempts + 1) * (one + commit.finish_deadline_s)

    def _opened(self) -> OwnerAgent:
        if self._agent is None:
            raise ConfigError("Refit.open comes first")
        return self._agent

    def _report(self, seconds: float | None, attempts: int | None) -> SyncReport:
        record = self.record
        manifest = from_json(Manifest, self._site.archive.get_object("manifest", record.manifest))
        return SyncReport(
            record=record,
            num_changed=sum(close.num_changed for close in manifest.owners),
            num_elements=sum(close.num_elements for close in manifest.owners),
            num_payloads=len(manifest.payloads),
            payload_bytes=sum(ref.num_bytes for ref in manifest.payloads),
            dense_bytes=self._catalogue.num_bytes,
            required=manifest.required,
            seconds=seconds,
            num_attempts=attempts,
        )


def _residual(direct: ShardSource, source: ShardSource, exchange: Exchange | None) -> ResidualShards | None:
    """The residual path of ``source``; None if every tensor is direct."""
    if not isinstance(source, ResidualSource) or not source.conversions():
        return None
    if exchange is None:
        first = source.conversions()[0]
        raise ConfigError(
            f"exchange: {', '.join(first.outputs[:4])} cannot be projected directly ({first.reason}), so the "
            "trainer's ranks must exchange parts: pass exchange=TorchExchange()"
        )
    return ResidualShards(direct, source, exchange)


def _catalogue(site: Site, source: ShardSource) -> Catalogue:
    """Every rank makes the same one. The key is for accidents, not secrecy: it follows from the run id."""
    return Catalogue(site.run, digest_hex(f"audit key of run {site.run}".encode()), source.tensors())
