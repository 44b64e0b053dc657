"""A shard source whose residual tensors are collected before each transition (paper section 5, R5)."""

import logging
from collections.abc import Iterable, Mapping, Sequence

from dcr import observe
from dcr.errors import AttemptFailed, ConfigError, RefitError
from dcr.indexmap import IndexMap
from dcr.model import AttemptId, Bits, TensorSpec, from_json, to_json
from dcr.source.baseline import Baseline
from dcr.source.detect import Candidate
from dcr.source.ownership import stable_hash
from dcr.source.parts_wire import pack_parts, unpack_parts
from dcr.source.ports import ShardSource
from dcr.source.residual import (
    Exchange,
    ResidualSource,
    assemble,
    by_owner,
    check_conversions,
    required_tensors,
)
from dcr.source.task import AffineTask

_log = logging.getLogger(__name__)
_PREFIX = "residual:"


class ResidualShards:
    """``direct``'s tasks and, of the residual tensors of ``source``, those that this rank puts together.

    Every rank calls ``collect`` before it presents a candidate, ``bind`` once its trackers exist, and
    ``settled`` when the candidate is committed. Nothing else here talks to other ranks.

    Raises:
        ConfigError: a residual tensor is unknown or also direct.
    """

    def __init__(self, direct: ShardSource, source: ResidualSource, exchange: Exchange) -> None:
        self._direct = direct
        self._source = source
        self._exchange = exchange
        self._specs = {spec.name: spec for spec in direct.tensors()}
        self._conversions = tuple(source.conversions())
        held = (task.name for task in source.tasks())
        names = check_conversions(self._conversions, self._specs, held)
        self._owner = {name: stable_hash(name) % exchange.world for name in names}
        mine = (self._specs[name] for name in names if self._owner[name] == exchange.rank)
        self._tasks = (*direct.tasks(), *(_task(spec, exchange.rank) for spec in mine))
        self._assembled: dict[str, Bits] = {}
        self._presented: Mapping[str, str] = {}
        self._committed: Mapping[str, str] = {}
        self._base: AttemptId | None = None
        self._baseline: Baseline | None = None

    def tensors(self) -> tuple[TensorSpec, ...]:
        """See ``ShardSource``."""
        return self._direct.tensors()

    def tasks(self) -> Sequence[AffineTask]:
        """See ``ShardSource``; the residual ones come last, whole, owned by this rank."""
        return self._tasks

    def read(self, task: AffineTask) -> Candidate:
        """See ``ShardSource``. A residual tensor that no changed input feeds has its tracker's bits.

        Raises:
            ConfigError: ``collect`` was not called, or not bound.
        """
        if not task.key.startswith(_PREFIX):
            return self._direct.read(task)
        if task.name in self._assembled:
            return self._assembled[task.name]
        if self._baseline is None:
            raise ConfigError(f"residual tensor {task.name!r} was not collected; call collect before present")
        return self._baseline.bits(task)

    def counters(self) -> str:
        """See ``ShardSource``."""
        return self._direct.counters()

    def bind(self, baseline: Baseline) -> None:
        """``baseline`` has this source's trackers."""
        self._baseline = baseline

    def collect(self, base: AttemptId | None) -> tuple[str, ...]:
        """Have what changed since ``base`` (the attempt that made v) converted; names that were required.

        All ranks call it, in the trainer's thread, with the candidate's weights in place. If ``base`` is
        not the commit that ``settled`` was told of last, everything counts as changed.

        Raises:
            AttemptFailed: on every rank, if one could not digest or convert, or parts are missing or
                disagree; names tensor, ranges and senders.
        """
        if not self._conversions:
            return ()
        with observe.stage("owner.residual"):
            names = required_tensors(self._union(*self._digested(base)), self._conversions)
            converted, failure = self._converted(names)
            received = self._exchange.route(converted)
            assembled: dict[str, Bits] = {}
            try:
                assembled = self._assemble(names, received)
            except Exception as err:  # noqa: BLE001 -- whatever it is, the others wait for this rank
                failure = failure or _why(err)
            self._agree(failure)
            self._assembled = assembled
        return names

    def settled(self, attempt: AttemptId) -> None:
        """The collected candidate was committed by ``attempt``; its copies are let go."""
        self._committed, self._base = self._presented, attempt
        if self._baseline is not None:
            self._assembled = {}

    def _digested(self, base: AttemptId | None) -> tuple[list[str], str]:
        """What changed here since ``base``, and why it is not known if the inputs could not be digested."""
        self._presented = {}
        try:
            self._presented = dict(self._source.input_digests())
            return self._dirty(base), ""
        except Exception as err:  # noqa: BLE001 -- border to the framework, as in _converted
            _log.warning("the inputs of residual conversions could not be digested", exc_info=True)
            return [], _why(err)

    def _converted(self, names: tuple[str, ...]) -> tuple[list[bytes], str]:
        """A message of parts to each rank, and why they are empty if conversion failed here."""
        try:
            parts = by_owner(self._source.convert(names), self._owner, self._exchange.world)
            return [pack_parts(each) for each in parts], ""
        except Exception as err:  # noqa: BLE001 -- border to the framework: the others wait for this rank's messages
            _log.warning("residual conversion failed", exc_info=True)
            return [pack_parts(())] * self._exchange.world, _why(err)

    def _assemble(self, names: tuple[str, ...], received: Sequence[bytes]) -> dict[str, Bits]:
        """Those of ``names`` that this rank owns, from every rank's parts."""
        lists = [(f"rank {rank}", unpack_parts(message)) for rank, message in enumerate(received)]
        mine = [name for name in names if self._owner[name] == self._exchange.rank]
        return {
            name: assemble(
                self._specs[name],
                ((sender, part) for sender, parts in lists for part in parts if part.name == name),
            )
            for name in mine
        }

    def _agree(self, failure: str) -> None:
        """Nobody presents a candidate of which some rank lacks a tensor."""
        told = self._exchange.route([to_json(failure)] * self._exchange.world)
        _require_none(from_json(str, each) for each in told)

    def _dirty(self, base: AttemptId | None) -> list[str]:
        if base is None or base != self._base:
            return sorted({name for each in self._conversions for name in each.inputs})
        return sorted(n for n, digest in self._presented.items() if digest != self._committed.get(n))

    def _union(self, mine: list[str], failure: str) -> set[str]:
        """What changed on any rank; AttemptFailed on every rank if one does not know."""
        sent = self._exchange.route([to_json((mine, failure))] * self._exchange.world)
        told = [from_json(tuple[list[str], str], message) for message in sent]
        _require_none(why for _, why in told)
        return {name for names, _ in told for name in names}


def _why(err: Exception) -> str:
    """Never empty."""
    return (isinstance(err, RefitError) and str(err)) or f"{type(err).__name__}: {err}"


def _require_none(failures: Iterable[str]) -> None:
    """Raise AttemptFailed with the first failure of a rank, all of which are told in order."""
    for rank, why in enumerate(failures):
        if why:
            raise AttemptFailed(f"{why} (found on rank {rank})")


def _task(spec: TensorSpec, rank: int) -> AffineTask:
    whole = IndexMap.identity(spec.num_elements)
    return AffineTask(
        _PREFIX + spec.name, spec.name, spec.dtype, spec.num_elements, whole, (rank,), spec.aliases
    )
