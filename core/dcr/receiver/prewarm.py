"""One suppressed pass of the native loader over the catalogue (paper section 6.1, DESIGN R11, P15).

Nothing resident changes. Afterwards every canonical tensor has a path class, and an unsupported
loader path is refused before any delta is sent.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dcr.errors import AttemptFailed, UnsupportedPath
from dcr.model import Bits, Catalogue, stored_bits
from dcr.receiver.classify import classify
from dcr.receiver.lanes import torch_dtype
from dcr.receiver.learn_hook import LearnHook, Trace
from dcr.receiver.placement import PlacementTable
from dcr.receiver.ports import NativeLoader
from dcr.receiver.resident import Residents
from dcr.receiver.scratch import Scratch


class Prewarm:
    """Learns from ``loader`` where the tensors of ``catalogue`` go; use once, then ``run``."""

    def __init__(self, loader: NativeLoader, catalogue: Catalogue, scratch: Scratch) -> None:
        self._loader = loader
        self._catalogue = catalogue
        self._scratch = scratch
        self._specs = catalogue.by_name()
        self._residents = Residents(loader.resident())
        self._probe_bits = {spec.dtype: _bits_of_probe(spec.dtype) for spec in catalogue.tensors}

    def run(self) -> PlacementTable:
        """Learn, with every resident bit as it was before.

        Raises:
            UnsupportedPath: the loader rebinds storage or writes it where no hook can see.
        """
        before = self._residents.digest()
        traces = {name: self._one(name) for name in self._specs}
        loadable = [name for name, trace in traces.items() if trace.copies and not trace.refusal]
        streamable = self._streams_alike(loadable, traces)
        if self._residents.digest() != before:
            raise UnsupportedPath(
                "the loader wrote resident storage past the dispatch hook (a custom kernel or numpy); "
                "use dense refits, or a loader that copies with torch operations"
            )
        return classify(self._loader, self._catalogue, traces, streamable=streamable)

    def _one(self, name: str) -> Trace:
        """What one call with ``name`` alone does."""
        hook = LearnHook(self._residents, self._scratch)
        hook.begin(name)
        try:
            with torch.no_grad(), hook, self._probed(name) as view:
                self._loader.load([(name, view)])
        except AttemptFailed as err:
            hook.traces[name].refusal = str(err)
        except Exception as err:  # noqa: BLE001 -- a loader may raise anything for a name it does not know
            hook.traces[name].refusal = f"the loader raised {type(err).__name__}: {str(err)[:200]}"
        hook.end()
        if hook.failure is not None:  # also where the loader swallowed it
            hook.traces[name].refusal = str(hook.failure)
        self._require_unmoved(name)
        return hook.traces[name]

    def _streams_alike(self, names: list[str], traces: dict[str, Trace]) -> bool:
        """Whether one call with all ``names`` makes the same copies, each before the next is asked for."""
        hook = LearnHook(self._residents, self._scratch)
        try:
            with torch.no_grad(), hook:
                self._loader.load(self._stream(hook, names))
        except Exception:  # noqa: BLE001 -- whatever it is, this loader is then called once a tensor
            return False
        finally:
            self._require_unmoved("the stream of all tensors")
        return all(hook.traces.get(name) == traces[name] for name in names)

    def _stream(self, hook: LearnHook, names: list[str]) -> Iterator[tuple[str, torch.Tensor]]:
        for name in names:
            hook.begin(name)
            with self._probed(name) as view:
                yield name, view
            hook.end()

    @contextmanager
    def _probed(self, name: str) -> Iterator[torch.Tensor]:
        """The zeroed scratch; a one-element tensor holds an unusual number while it is lent."""
        spec = self._specs[name]
        bits = self._scratch.bits(spec)  # numpy: the hook, which may be on, refuses torch writes here
        if bits.size == 1:
            bits[:] = self._probe_bits[spec.dtype]
        try:
            yield self._scratch.view(spec)
        finally:
            bits[: bits.size if bits.size == 1 else 0] = 0

    def _require_unmoved(self, name: str) -> None:
        now = self._loader.resident()
        if moved := self._residents.moved(now):
            restored = "put back" if self._residents.rebind(now) else "not put back"
            raise UnsupportedPath(
                f"{name}: the loader rebinds resident {moved!r} instead of copying into it ({restored} now); "
                "use dense refits, or a loader that keeps its storage"
            )


def _bits_of_probe(dtype: str) -> Bits:
    return stored_bits(torch.full((1,), 3.0).to(torch_dtype(dtype)))
