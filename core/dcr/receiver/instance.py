"""One runtime instance of several ranks as one writer (paper section 6.1, DESIGN P11, B6, R13).

Every rank gets every payload and writes what it holds of it, side by side. A digest counts each
canonical element once and compares it between all ranks that hold it. One rank's failure fails the
attempt; the others are awaited first. Free of torch.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from dcr.audit import EMPTY, combine
from dcr.codec import Item, Payload
from dcr.errors import AttemptFailed, IntegrityError
from dcr.model import (
    AuditDigest,
    AuditTable,
    Bits,
    Catalogue,
    Classification,
    Encoding,
    PathClass,
    RankDiagnosis,
)
from dcr.receiver.failures import joined_failure
from dcr.receiver.join import Joined, diagnose, join
from dcr.receiver.locate import differing_ranges
from dcr.receiver.rank import ItemKey, PartDigests, RankPlacement, RankPort
from dcr.receiver.writer import PADDING, ApplyStats, Cancelled, Slice, never

T = TypeVar("T")


class _Written(NamedTuple):
    """What is kept of an item until ``check``: no arrays."""

    name: str
    num_entries: int
    target: AuditDigest | None
    absolute: bool


class InstanceWriter:
    """Implements ``Writer`` over ``ranks``, in rank order. ``prewarm`` first; never called concurrently."""

    def __init__(self, ranks: Sequence[RankPort], catalogue: Catalogue) -> None:
        self._ranks = tuple(ranks)
        self._specs = catalogue.by_name()
        self._key = catalogue.audit_key
        self._pool = ThreadPoolExecutor(len(ranks), "rank") if len(ranks) > 1 else None
        self._placements: list[RankPlacement] = []
        self._joined: Joined | None = None
        self._written: dict[ItemKey, _Written] = {}

    @property
    def joined(self) -> Joined:
        """What the ranks can take together."""
        assert self._joined is not None, "prewarm comes first"
        return self._joined

    def prewarm(self) -> Classification:
        """Learn on every rank and join the answers; anew if a rank's storage was rebuilt.

        Raises:
            UnsupportedPath: a rank refuses a tensor, or no rank holds some of its elements.
        """
        if self._joined is None or self.rebuilt():
            self._joined = None
            self._placements = self._each(lambda _, rank: rank.prewarm())
            joined = join(self._placements, self._specs)
            joined.require_supported()
            self._each(lambda r, rank: rank.divide(joined.shares(r)))
            self._joined = joined
        return dict(self._joined.classes)

    def rebuilt(self) -> str:
        """Why a rank's map no longer holds, naming the rank; empty if all hold."""
        reasons = self._each(lambda _, rank: rank.rebuilt())
        return "; ".join(f"rank {r}: {reason}" for r, reason in enumerate(reasons) if reason)

    def begin(self, *, clean: bool) -> None:
        """See ``Writer``."""
        self._written.clear()
        self._each(lambda _, rank: rank.begin(clean=clean))

    def apply(self, payload: Payload, *, allow_xor: bool = True, cancelled: Cancelled = never) -> ApplyStats:
        """Write ``payload`` on all ranks side by side.

        Raises:
            AttemptFailed: an item is not acceptable, a rank failed, or cancelled. All ranks have ended.
        """
        for item in payload.items:
            self._check_path(item)
        for position, item in enumerate(payload.items):
            key = (payload.owner, payload.sequence, position)
            absolute = item.encoding is Encoding.OVERWRITE
            self._written[key] = _Written(item.name, item.num_entries, item.target_digest, absolute)
        self._each(lambda _, rank: rank.apply(payload, allow_xor=allow_xor, cancelled=cancelled))
        placed = [item for item in payload.items if item.name in self.joined.parts]
        return ApplyStats(
            len(payload.items),
            sum(self.joined.classes[item.name] is PathClass.SKIP for item in payload.items),
            sum(item.num_entries for item in placed),
        )

    def synchronize(self) -> None:
        """See ``Writer``."""
        self._each(lambda _, rank: rank.synchronize())

    def check(self) -> None:
        """Every item's target digest is what the ranks read back of it together (R13).

        Raises:
            AttemptFailed: names the tensor and the ranks that hold it.
        """
        partials = self._each(lambda _, rank: rank.check())
        for key, item in self._written.items():
            if item.num_entries and item.name in self.joined.parts:
                try:
                    digest = self._count(item.name, [partial.get(key, ()) for partial in partials])
                except IntegrityError as err:
                    raise AttemptFailed(str(err)) from err
                self._compare(item, digest)

    def restore(
        self, tensors: Mapping[str, Bits], table: AuditTable, *, cancelled: Cancelled = never
    ) -> None:
        """Load a whole version on every rank and prove it against ``table``; learns anew if need be.

        ``tensors``: flat stored bits [num_elements] by primary name.

        Raises:
            IntegrityError: resident bits are not those of ``table``; names tensor and ranks.
            UnsupportedPath, AttemptFailed: see ``RankPort.restore``.
        """
        self._written.clear()
        self.prewarm()
        self._each(lambda _, rank: rank.restore(tensors, cancelled=cancelled))
        for name, digest in self.audit().items():
            if digest != table.get(name):
                raise IntegrityError(
                    f"{name}: restored bits on {self._holders(name)} have the audit digest {digest}, "
                    f"the record's table says {table.get(name)}"
                )

    def audit(self) -> AuditTable:
        """Digest everything resident on all ranks, each element once.

        Raises:
            IntegrityError: copies differ on a rank or between ranks, or a rank cannot read a tensor.
        """
        tables = self._each(lambda _, rank: rank.audit())
        return {
            name: self._count(name, [table.get(name, ()) for table in tables]) for name in self.joined.parts
        }

    def scan(self, slices: Sequence[Slice]) -> list[AuditDigest]:
        """Digest of each slice, as ``audit`` counts. Raises IntegrityError as ``audit``."""
        answers = self._each(lambda _, rank: rank.scan(slices))
        return [
            EMPTY if piece == PADDING else self._count(piece.name, [answer[i] for answer in answers])
            for i, piece in enumerate(slices)
        ]

    def locate(self, name: str, truth: Bits) -> dict[int, tuple[tuple[int, int], ...]]:
        """See ``Writer``: each rank against ``truth``, so that a replica is blamed on its own rank."""
        parts = self.joined.parts[name].of_rank

        def ranges(r: int, rank: RankPort) -> tuple[tuple[int, int], ...]:
            return differing_ranges(rank.scan, name, truth, parts[r], key=self._key) if parts[r] else ()

        return {r: found for r, found in enumerate(self._each(ranges)) if found}

    def diagnose(self) -> tuple[RankDiagnosis, ...]:
        """See ``Writer``; also after a refused ``prewarm``. Empty before the first one."""
        return diagnose(self._placements, self._specs)

    def close(self) -> None:
        """End the threads; idempotent."""
        if self._pool is not None:
            self._pool.shutdown()

    def _check_path(self, item: Item) -> None:
        """Refuse, before any rank writes, what one of them could not take."""
        path = self.joined.classes.get(item.name)
        if path is None:
            raise AttemptFailed(f"{item.name}: the catalogue has no such tensor")
        if item.encoding is not Encoding.OVERWRITE and path not in (PathClass.XOR, PathClass.SKIP):
            raise AttemptFailed(
                f"{item.name}: its loader path takes {path.value} only, not {item.encoding.value}"
            )

    def _compare(self, item: _Written, digest: AuditDigest) -> None:
        if item.target is None and not item.absolute:
            raise AttemptFailed(f"{item.name}: a difference without a target digest cannot be checked")
        wanted = item.target if item.target is not None else AuditDigest(digest.total, item.num_entries)
        if digest != wanted:
            raise AttemptFailed(
                f"{item.name}: written bits on {self._holders(item.name)} have the audit digest {digest}, "
                f"the target is {wanted}; the resident base was not the committed version, or a write "
                "went astray"
            )

    def _count(self, name: str, answers: Sequence[PartDigests]) -> AuditDigest:
        """One digest from those of all ranks; each part counted once and equal wherever it is held."""
        parts = self.joined.parts[name]
        for rank, (answer, numbers) in enumerate(zip(answers, parts.numbers, strict=True)):
            if len(answer) != len(numbers):
                raise IntegrityError(
                    f"{name}: rank {rank} read back {len(answer)} of the {len(numbers)} parts that it holds"
                )
        counted = []
        for number, holders in enumerate(parts.holders):
            found = [answers[rank][parts.numbers[rank].index(number)] for rank in holders]
            if wrong := [rank for rank, digest in zip(holders, found, strict=True) if digest != found[0]]:
                raise IntegrityError(
                    f"{name}: its copies on ranks {wrong} differ from that on rank {holders[0]}"
                )
            counted.append(found[0])
        return combine(*counted)

    def _holders(self, name: str) -> str:
        if len(self._ranks) == 1:
            return "its only rank"
        return f"ranks {sorted({rank for ranks in self.joined.parts[name].holders for rank in ranks})}"

    def _each(self, call: Callable[[int, RankPort], T]) -> list[T]:
        """Answers of all ranks, which work side by side; raises when all have ended."""
        if self._pool is None:
            return [call(0, self._ranks[0])]
        tasks = [self._pool.submit(call, r, rank) for r, rank in enumerate(self._ranks)]
        failures = {r: err for r, task in enumerate(tasks) if (err := task.exception()) is not None}
        if failures:
            raise joined_failure(failures) from next(iter(failures.values()))
        return [task.result() for task in tasks]
