"""What every process of the refit benchmark is given, and what it makes of it."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from dcr.config import AuditConfig, CodecConfig, CommitConfig, RefitConfig
from dcr.refit import ControlSpec, Post, Site
from dcr.transport.base import ObjectStore
from dcr.transport.directory import DirectoryStore
from dcr.transport.s3_client import S3Address
from dcr_recipes.bench.apply_model import Shape
from dcr_recipes.bench.refit_model import shape_for
from dcr_recipes.layout import RunFolder

DEADLINE_S = 1800.0
"""A link may be as slow as one likes: deadlines are no part of what is measured."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of the model and of payloads. A bucket is so small that each owner has several, as at 120B (482/32)."""

    gigabytes: float = 1.0
    bucket_mib: int = 32
    chunk_mib: int = 16
    quick: bool = False
    shape: Shape | None = None
    """In place of one of ``gigabytes``."""


@dataclass(frozen=True, slots=True)
class Setup:
    """One cluster. ``address`` is the bucket as the process's node sees it; None: a folder.

    ``ahead`` and ``poll_s`` are receivers': see ``dcr_recipes.config.TransportConfig``.
    """

    root: Path
    run: str
    num_owners: int
    num_nodes: int
    mode: str
    sizes: Sizes = field(default_factory=Sizes)
    address: S3Address | None = None
    ahead: int = 3
    poll_s: float = 0.1

    @property
    def folder(self) -> RunFolder:
        """Where its files are."""
        return RunFolder(self.root)

    def shape(self) -> Shape:
        """Of the model."""
        return self.sizes.shape or shape_for(self.sizes.gigabytes, quick=self.sizes.quick)

    def seen_through(self, url: str) -> "Setup":
        """The same for a process whose node reaches the bucket at ``url``."""
        if self.address is None:
            return self
        return replace(self, address=replace(self.address, endpoint=url))

    def store(self) -> ObjectStore:
        """This process's own handle on the store."""
        if self.address is None:
            return DirectoryStore(self.folder.store)
        from dcr.transport.s3 import S3Store

        return S3Store(self.address)

    def site(self, store: ObjectStore) -> Site:
        """Where it meets the others."""
        return Site(self.run, store, self.folder.endpoints, self.ahead)

    def config(self) -> RefitConfig:
        """The published codec sizes scaled to the model; nothing else differs from a run's defaults."""
        sizes = self.sizes
        commit = CommitConfig(
            mode=self.mode, lease_s=0.0, evict_after_s=0.0, max_attempts=1, collect_deadline_s=DEADLINE_S,
            fence_deadline_s=DEADLINE_S, restore_deadline_s=DEADLINE_S, construct_deadline_s=DEADLINE_S,
            finish_deadline_s=DEADLINE_S, fold_in_deadline_s=DEADLINE_S,
        )  # fmt: skip
        codec = CodecConfig(bucket_mib=sizes.bucket_mib, chunk_mib=sizes.chunk_mib)
        return RefitConfig(codec=codec, commit=commit, audit=AuditConfig(rate_mib_s=0.0))

    def post(self, store: ObjectStore) -> Post:
        """What the coordinator is given."""
        control = ControlSpec("sqlite", self.folder.control)
        return Post(
            self.config().commit, self.site(store), control, self.num_owners, self.receivers(), DEADLINE_S
        )

    def receivers(self) -> tuple[str, ...]:
        """Names of the serving instances, one a node."""
        return tuple(f"runtime-{number}" for number in range(self.num_nodes))
