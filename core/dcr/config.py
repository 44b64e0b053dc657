"""Typed configuration of the core. YAML holds only differences from these defaults.

Not frozen: OmegaConf merges into them. Below the composition root they are read only by convention.
"""

from dataclasses import dataclass, field

CHECKS = ("written", "full", "off")
"""What ``RefitConfig.check`` may be."""
MODES = ("sync", "async")
"""What ``CommitConfig.mode`` may be."""
TRACKERS = ("mapped", "memory")
"""What ``RefitConfig.trackers`` may be."""
CONTROL_PLANES = ("sqlite", "etcd", "s3")
"""Where a run's commit record may live; see ``dcr.refit.control``."""


@dataclass(slots=True)
class CodecConfig:
    """Payload construction (paper Appendix C). Sizes are MiB of source bytes before comparison.

    ``threads`` convert and encode, one more sends; 1 does everything in the caller's thread, one thing
    after the other; 0 takes as many as there are cores, at least 2 and at most 8. ``queue`` payloads at
    most are encoded or sent while the next is filled. A shard of which a larger share than ``dense_share``
    changed is sent whole. The payloads do not depend on ``threads`` and ``queue``.
    """

    name: str = "planes"
    zstd_level: int = 1
    chunk_mib: int = 64
    bucket_mib: int = 512
    threads: int = 0
    queue: int = 2
    dense_share: float = 0.3


@dataclass(slots=True)
class CommitConfig:
    """Deadlines (P12), all in seconds, how often a transition is retried, and who must take part (P11).

    After ``max_attempts`` attempts a last one sends every shard whole, then the transition is abandoned.
    A receiver serves while it holds a lease of ``lease_s`` (0: it needs none, and nobody is evicted).
    Two clocks that both measure one lease differ by ``lease_skew_s`` at most. A receiver that leaves
    calls unanswered for ``evict_after_s`` is evicted (0: never), unless fewer than ``min_receivers``
    would remain. ``mode``: gates shut at the first attempt and payloads are applied as they arrive
    (``sync``), or they shut once every receiver holds all of them (``async``, R19).
    """

    mode: str = "sync"
    collect_deadline_s: float = 300.0
    fence_deadline_s: float = 60.0
    restore_deadline_s: float = 300.0
    construct_deadline_s: float = 300.0
    finish_deadline_s: float = 300.0
    fold_in_deadline_s: float = 120.0
    max_attempts: int = 20
    retry_pause_s: float = 0.5
    lease_s: float = 60.0
    lease_skew_s: float = 1.0
    evict_after_s: float = 300.0
    min_receivers: int = 1

    @property
    def evicts(self) -> bool:
        """Whether receivers are evicted: without leases nobody knows when one has stopped to serve."""
        return self.lease_s > 0 and self.evict_after_s > 0

    def patience_s(self, deadline_s: float) -> float:
        """How long one call to a receiver waits: no longer than the straggler policy does."""
        return min(deadline_s, self.evict_after_s) if self.evicts else deadline_s


@dataclass(slots=True)
class AuditConfig:
    """Background audit of what receivers serve (B6).

    ``rate_mib_s`` MiB of weights are read a second at most, by all ranks of an instance together; 0: none.
    ``slice_mib`` are read at once, while refits wait, and for no more than half of the time.
    """

    rate_mib_s: float = 64.0
    slice_mib: float = 16.0


@dataclass(slots=True)
class StagingConfig:
    """Where receivers hold a delta until its gate shuts (``CommitConfig.mode`` async, R19).

    Up to ``memory_mib`` MiB of compressed payloads stay in host memory, up to ``disk_mib`` more go to files
    in a folder of this receiver's own below ``path``, by default the system's for temporary files. What
    fits in neither fails the attempt.
    """

    memory_mib: float = 1024.0
    disk_mib: float = 16384.0
    path: str = ""


@dataclass(slots=True)
class ChainConfig:
    """What becomes of committed payloads (B5).

    ``catch_up``: a receiver whose storage is proven to hold an older version takes one composed delta, made
    of ``catch_up_mib`` MiB of host memory at a time, in place of a dense load. The trainer writes an anchor,
    all planes of a version, when ``anchor_every`` versions have passed since the last one, or when the
    deltas since then exceed ``anchor_share`` of the checkpoint's bytes (0: not for this reason). Only
    the newest ``keep_versions`` versions need be kept (0: all): after a commit, what none of them and no
    reader needs is removed, as far as an anchor allows.
    """

    catch_up: bool = True
    catch_up_mib: float = 2048.0
    anchor_every: int = 0
    anchor_share: float = 2.0
    keep_versions: int = 0


@dataclass(slots=True)
class RefitConfig:
    """What one side of a refit needs to know.

    ``check`` is what a receiver proves before it acknowledges (R13): ``written`` re-reads every bit
    that was written, and audits the whole resident model after an attempt that failed; ``full`` always
    audits it; ``off`` reads nothing. ``ownership`` says which of several replicas owns an element: see
    ``dcr.source.shares.OwnedShards``. ``trackers`` of an owner are ``mapped`` files, which a restarted one
    proves, or in ``memory``, which it rebuilds from the archive (R3).
    """

    codec: CodecConfig = field(default_factory=CodecConfig)
    commit: CommitConfig = field(default_factory=CommitConfig)
    check: str = "written"
    ownership: str = "balanced"
    trackers: str = "mapped"
    audit: AuditConfig = field(default_factory=AuditConfig)
    staging: StagingConfig = field(default_factory=StagingConfig)
    chain: ChainConfig = field(default_factory=ChainConfig)
