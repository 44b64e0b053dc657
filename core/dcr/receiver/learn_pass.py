"""Suppressed passes of the native loader, in one stream or one tensor a call (DESIGN R11, B2)."""

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import torch

from dcr.errors import UnsupportedPath
from dcr.model import TensorSpec
from dcr.receiver.lanes import torch_dtype
from dcr.receiver.learn_hook import LearnHook
from dcr.receiver.ports import NativeLoader
from dcr.receiver.storages import Storages
from dcr.receiver.trace import Trace, Traces

_STOPPED = "the loader stopped after it and left the rest of the stream"
Scratch: TypeAlias = Callable[[TensorSpec], torch.Tensor]


def hollow(spec: TensorSpec) -> torch.Tensor:
    """Scratch [spec.shape] without contents, on the meta device; costs no memory."""
    return torch.empty(spec.shape, dtype=torch_dtype(spec.dtype), device="meta")


class Blank:
    """Scratch of zeros on the host, which costs no memory as long as a loader does not write to it.

    All tensors lie in the same pages of an array that nobody has touched; each has a storage of its own.
    """

    def __init__(self, specs: Iterable[TensorSpec]) -> None:
        self._bytes = np.zeros(max((spec.num_bytes for spec in specs), default=0), dtype=np.uint8)

    def __call__(self, spec: TensorSpec) -> torch.Tensor:
        """For one tensor."""
        if not spec.num_bytes:
            return torch.empty(spec.shape, dtype=torch_dtype(spec.dtype))
        raw = torch.from_numpy(self._bytes[: spec.num_bytes])
        return raw.view(torch_dtype(spec.dtype)).view(spec.shape)


def full_of(*numbers: float) -> Scratch:
    """Scratch on the host whose elements are ``numbers`` in turn, as far as their type can hold them."""

    def scratch(spec: TensorSpec) -> torch.Tensor:
        pattern = torch.tensor(numbers).repeat(-(-spec.num_elements // len(numbers)))
        return pattern[: spec.num_elements].to(torch_dtype(spec.dtype)).view(spec.shape)

    return scratch


class Fitting:
    """Scratch that the loader takes: ``contents`` by name, and zeros (``blank``) for all others."""

    def __init__(self, specs: Iterable[TensorSpec]) -> None:
        self.blank = Blank(specs)
        self.contents: dict[str, Scratch] = {}

    def __call__(self, spec: TensorSpec) -> torch.Tensor:
        """For one tensor."""
        return self.contents.get(spec.name, self.blank)(spec)


@dataclass(slots=True)
class PassResult:
    """``traces`` of every name that was fed; ``streamed`` as in ``LearnHook``."""

    traces: Traces = field(default_factory=lambda: {"": Trace()})
    streamed: bool = True
    hooks: list[LearnHook] = field(default_factory=list, repr=False)

    def refuse_kept(self) -> None:
        """Refuse tensors of which the loader keeps something, in memory that no method reaches."""
        if not any(hook.kept() for hook in self.hooks):
            self.hooks.clear()
            return
        gc.collect()
        for name in set().union(*(hook.kept() for hook in self.hooks)):
            self.traces[name].refuse("the loader keeps memory made of it that resident() does not list")
        self.hooks.clear()


@dataclass(slots=True)
class _Feed:
    """How far a stream has come: ``name`` is the current tensor."""

    num_fed: int = 0
    name: str = ""
    exhausted: bool = False


class Learner:
    """Runs passes over ``specs`` (by canonical name); the loader's storage is left as it was."""

    def __init__(self, loader: NativeLoader, specs: dict[str, TensorSpec], storages: Storages) -> None:
        self._loader = loader
        self.specs = specs
        self._storages = storages

    def stream(self, names: Sequence[str], scratch: Scratch) -> PassResult:
        """Feed all ``names`` to one ``load`` call; after an error go on behind the tensor that caused it.

        An error when the whole stream was taken cannot be laid to one tensor: then each gets its own call.
        """
        result = PassResult()
        rest = list(names)
        make = self._maker(names, scratch)
        while rest:
            hook = LearnHook(self._storages)
            feed = _Feed()
            error = self._load(hook, self._feed(hook, rest, make, feed))
            if self._put_back() or (error and feed.exhausted):
                return self.singly(names, scratch)
            if error or not feed.exhausted:
                hook.traces.setdefault(feed.name, Trace()).error = error or _STOPPED
            result.streamed = result.streamed and hook.streamed
            _merge(result.traces, hook.traces)
            result.hooks.append(hook)
            rest = rest[max(feed.num_fed, 1) :]
        del make
        result.refuse_kept()
        return result

    def singly(self, names: Sequence[str], scratch: Scratch, *, twins: bool = True) -> PassResult:
        """One call a tensor; a loader that rebinds its storage is told apart here."""
        result = PassResult(streamed=False)
        for name in names:
            hook = LearnHook(self._storages, twins=twins)
            feed = _Feed()
            error = self._load(hook, self._feed(hook, [name], self._maker([name], scratch), feed))
            stopped = "" if feed.exhausted else _STOPPED
            hook.traces.setdefault(name, Trace()).error = error or stopped
            if moved := self._put_back():
                hook.traces[name].refuse(
                    f"the loader rebinds resident {moved!r} instead of copying into it (put back now)"
                )
            _merge(result.traces, hook.traces)
            result.hooks.append(hook)
        result.refuse_kept()
        return result

    def _load(self, hook: LearnHook, weights: Iterator[tuple[str, torch.Tensor]]) -> str:
        try:
            with torch.no_grad(), hook:
                self._loader.load(weights)
        except Exception as err:  # noqa: BLE001 -- a loader may raise anything for a name it does not know
            return f"the loader raised {type(err).__name__}: {str(err)[:200]}"
        return ""

    def _feed(
        self, hook: LearnHook, names: Sequence[str], make: Callable[[str], torch.Tensor], feed: _Feed
    ) -> Iterator[tuple[str, torch.Tensor]]:
        for name in names:
            hook.idle = True
            tensor = make(name)
            hook.idle = False
            hook.begin(name, tensor)
            feed.name, feed.num_fed = name, feed.num_fed + 1
            yield name, tensor
            hook.end()
        feed.exhausted = True

    def _maker(self, names: Sequence[str], scratch: Scratch) -> Callable[[str], torch.Tensor]:
        """Scratch by name; what costs no memory is made now, for that is slower under the hook."""
        if scratch is hollow or isinstance(scratch, Blank):
            return {name: scratch(self.specs[name]) for name in names}.__getitem__
        return lambda name: scratch(self.specs[name])

    def _put_back(self) -> str | None:
        """Undo a rebinding; the name of a tensor that had moved.

        Raises:
            UnsupportedPath: a tensor cannot be put back.
        """
        now = self._loader.resident()
        moved = self._storages.moved(now)
        if moved and not self._storages.rebind(now):
            raise UnsupportedPath(
                f"the loader replaces resident {moved!r} and it cannot be put back: restart the runtime and "
                "use dense refits, or a loader that copies into its storage"
            )
        return moved


def _merge(into: Traces, new: Traces) -> None:
    """Add ``new``; what happens outside of any tensor is gathered."""
    outside = new.pop("")
    into[""].writes += outside.writes
    into[""].expected += outside.expected
    into[""].reads |= outside.reads
    into[""].refuse(outside.refusal)
    into.update(new)
