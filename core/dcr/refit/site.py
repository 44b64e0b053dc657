"""What the sides of one run share: its id, the store, and where its processes announce themselves."""

from dataclasses import dataclass
from pathlib import Path

from dcr.commit.context import Roster
from dcr.commit.remote import Caller, HttpCaller, Party
from dcr.config import CommitConfig
from dcr.errors import MissingObject
from dcr.model import Catalogue, CommitRecord, RunId, from_json
from dcr.refit.following import FollowingCaller
from dcr.transport.archive import StoreArchive
from dcr.transport.base import ObjectStore
from dcr.transport.object_transport import ObjectTransport
from dcr.transport.peers import Peers

COORDINATOR = "coordinator"


def owner_name(rank: int) -> str:
    """Name under which trainer rank ``rank`` announces its endpoint."""
    return f"owner-{rank}"


@dataclass(frozen=True, slots=True)
class Site:
    """One run as any of its processes sees it. ``endpoints`` is a folder that all of them can read.

    ``ahead``: payloads that a receiver fetches while it applies another one.
    """

    run: RunId
    store: ObjectStore
    endpoints: Path
    ahead: int = 0

    @property
    def archive(self) -> StoreArchive:
        """Immutable objects and committed payloads of the run."""
        return StoreArchive(self.store, self.run)

    @property
    def transport(self) -> ObjectTransport:
        """A fresh end of the payload transport; each side keeps its own."""
        return ObjectTransport(self.store, self.run, ahead=self.ahead)

    @property
    def peers(self) -> Peers:
        """Register of the run's processes."""
        return Peers(self.endpoints)

    def coordinator(self, config: CommitConfig, caller: Caller | None = None) -> Party:
        """The active coordinator, wherever it listens now and whoever takes its place meanwhile."""
        following = FollowingCaller(caller or HttpCaller(self.peers), self.peers)
        return Party(COORDINATOR, following, config)

    def catalogue(self, record: CommitRecord) -> Catalogue:
        """The run's catalogue, proven against the record's digest."""
        return from_json(Catalogue, self.archive.get_object("catalogue", record.catalogue))


def roster(world: int, receivers: tuple[str, ...]) -> Roster:
    """The fixed cast of a run: ``world`` trainer ranks and every receiver instance."""
    return Roster(tuple(owner_name(rank) for rank in range(world)), receivers)


def find_record(coordinator: Party, deadline_s: float) -> CommitRecord | None:
    """The committed record, or None if the run was never created.

    Raises:
        Unreachable: no coordinator answered within ``deadline_s``.
    """
    try:
        return coordinator.patiently("record", CommitRecord, deadline_s)
    except MissingObject:
        return None
