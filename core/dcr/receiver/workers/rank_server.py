"""A worker's side of ``RankPort``: answers calls that arrive as JSON text, one at a time.

Never raises: an exception in one worker of a collective call leaves the answers of the others unread,
and the next call would get them. Errors travel as class name and message.
"""

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dcr.codec import Limits, Payload, decode_payload
from dcr.errors import AttemptFailed, ConfigError, RefitError
from dcr.model import Catalogue, from_json, to_json
from dcr.receiver.ports import NativeLoader
from dcr.receiver.rank import RankPort
from dcr.receiver.workers import exchange
from dcr.receiver.workers.messages import (
    Answer,
    Apply,
    Begin,
    Call,
    Checked,
    Configure,
    Divide,
    File,
    Greeting,
    Nothing,
    Scan,
)
from dcr.receiver.workers.turns import Turns
from dcr.transport.archive import StoreArchive
from dcr.transport.base import ObjectStore
from dcr.transport.directory import DirectoryStore
from dcr.transport.keys import payload_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

_log = logging.getLogger(__name__)
Further = Mapping[str, tuple[type[Any], Callable[[Any], object]]]
"""Calls beyond those of ``RankPort``: name -> class of the parameters, and what it does."""
MakeRank = Callable[[NativeLoader, Catalogue], RankPort]


class _Configured(NamedTuple):
    setup: Configure
    rank: RankPort
    store: ObjectStore
    limits: Limits


class RankServer:
    """Calls by name on one rank. ``make_rank`` builds the port once the catalogue is known."""

    def __init__(
        self,
        loader: NativeLoader,
        greeting: Greeting,
        *,
        make_rank: MakeRank,
        open_store: Callable[[Path], ObjectStore] = DirectoryStore,
        further: Further | None = None,
    ) -> None:
        self._loader = loader
        self._greeting = greeting
        self._make_rank = make_rank
        self._open_store = open_store
        self._configured: _Configured | None = None
        self._turns = Turns()
        self._calls: Further = {
            **(further or {}),
            "hello": (Nothing, lambda _: replace(self._greeting, ticket=self._turns.issue())),
            "configure": (Configure, self._configure),
            "prewarm": (Nothing, lambda _: self._rank.prewarm()),
            "divide": (Divide, lambda p: self._rank.divide(p.parts)),
            "rebuilt": (Nothing, lambda _: self._rank.rebuilt()),
            "begin": (Begin, lambda p: self._rank.begin(clean=p.clean)),
            "apply": (Apply, self._apply),
            "synchronize": (Nothing, lambda _: self._rank.synchronize()),
            "check": (Nothing, lambda _: Checked(list(self._rank.check().items()))),
            "restore": (File, lambda p: self._rank.restore(exchange.read(Path(p.path)))),
            "audit": (Nothing, lambda _: self._rank.audit()),
            "scan": (Scan, lambda p: self._rank.scan(p.slices)),
            "digests": (Nothing, lambda _: resident_digests(self._loader)),
            "load_dense": (File, self._load_dense),
        }

    @property
    def rank(self) -> int:
        """This rank's number in its engine."""
        return self._greeting.rank

    def answer(self, call: Call) -> Answer:
        """Do what ``call`` asks; whatever goes wrong is part of the answer."""
        rank = self._greeting.rank
        try:
            return Answer(rank, value=to_json(self._do(call)).decode())
        except RefitError as err:
            return Answer(rank, error=type(err).__name__, message=str(err))
        except Exception as err:  # noqa: BLE001 -- the border: recorded here, reported to the front
            _log.exception("%s failed on rank %d", call.method, rank)
            return Answer(rank, error=AttemptFailed.__name__, message=f"{type(err).__name__}: {err}")

    def _do(self, call: Call) -> object:
        if call.method not in self._calls:
            raise ConfigError(f"no method {call.method!r}; known: {', '.join(sorted(self._calls))}")
        self._turns.admit(call)
        kind, step = self._calls[call.method]
        return step(from_json(kind, call.params))

    @property
    def _rank(self) -> RankPort:
        return self._ready().rank

    def _ready(self) -> _Configured:
        if self._configured is None:
            raise AttemptFailed("this rank knows of no run yet (a restarted worker?): configure comes first")
        return self._configured

    def _configure(self, setup: Configure) -> None:
        """Join a run; the same again changes nothing, so that what prewarm learned is kept."""
        if self._configured is not None and self._configured.setup == setup:
            return
        store = self._open_store(Path(setup.store))
        archive = StoreArchive(store, setup.run)
        catalogue = from_json(Catalogue, archive.get_object("catalogue", setup.catalogue))
        rank = self._make_rank(self._loader, catalogue)
        self._configured = _Configured(setup, rank, store, Limits.of_catalogue(catalogue))

    def _apply(self, wanted: Apply) -> object:
        rank, payload = self._rank, self._fetch(wanted)
        return rank.apply(payload, allow_xor=wanted.allow_xor)

    def _fetch(self, wanted: Apply) -> Payload:
        setup, _, store, limits = self._ready()
        data = store.get(payload_key(setup.run, wanted.attempt, wanted.owner, wanted.sequence))
        payload = decode_payload(data, limits=limits)
        found = (payload.attempt, payload.owner, payload.sequence, payload.digest)
        if found != (wanted.attempt, wanted.owner, wanted.sequence, wanted.digest):
            raise AttemptFailed(f"the store holds another payload than was admitted: {found}, not {wanted}")
        return payload

    def _load_dense(self, file: File) -> None:
        """A stock dense refit from one safetensors file; what a run of deltas holds here is then lost."""
        self._configured = None
        self._loader.load(_safetensors(file.path))
        self._loader.synchronize()


def resident_digests(loader: NativeLoader) -> dict[str, str]:
    """BLAKE2b-128 of the bytes of every parameter and buffer, by runtime name."""
    return {name: _digest(tensor) for name, tensor in loader.resident().items()}


def _digest(tensor: "torch.Tensor") -> str:
    import torch

    flat = tensor.detach().cpu().contiguous().view(-1)
    data = flat.view(torch.uint8).numpy().data if flat.numel() else b""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _safetensors(path: str) -> "Iterator[tuple[str, torch.Tensor]]":
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 -- not a dict
            yield name, file.get_tensor(name)


def local_rank(loader: NativeLoader, catalogue: Catalogue) -> RankPort:
    """The port over a native loader of this process."""
    from dcr.receiver.apply import RankApplier

    return RankApplier(loader, catalogue)
