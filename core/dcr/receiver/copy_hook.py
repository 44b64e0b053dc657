"""The dispatch hook on the loader's final storage copies (paper section 6.1, Appendix A.2, DESIGN R9, R12).

While the loader runs, every operation that writes to resident storage passes through here. A copy
out of the scratch, at the place where prewarm saw it, updates active positions only; anything else
is a breach that fails the attempt before it has written.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NoReturn

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from dcr import observe
from dcr.errors import AttemptFailed
from dcr.model import Encoding
from dcr.receiver.geometry import Copy, describe_copy
from dcr.receiver.lanes import lanes
from dcr.receiver.resident import Residents
from dcr.receiver.scratch import Scratch

aten = torch.ops.aten
_FILLS = frozenset({aten.fill_.Scalar, aten.fill_.Tensor, aten.zero_.default})
SCALAR_READ = aten._local_scalar_dense.default


@cache
def _written_arguments(func: Any) -> tuple[tuple[int, str], ...]:
    """Position and name of each argument that the operator's schema marks as written."""
    arguments = enumerate(func._schema.arguments)
    return tuple((i, a.name) for i, a in arguments if a.alias_info is not None and a.alias_info.is_write)


def tensors_in(values: Sequence[object]) -> Iterator[torch.Tensor]:
    """Every tensor among ``values``, lists of tensors included."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)


def written_tensors(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors that this call writes and that have at least one element."""
    found = [args[i] if i < len(args) else kwargs.get(name) for i, name in _written_arguments(func)]
    return [tensor for tensor in tensors_in(found) if tensor.numel()]


class LoaderHook(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch ships it untyped
    """Sends copies and fills into resident storage to ``on_copy`` and ``on_fill``, refuses other writes.

    ``failure`` keeps the first breach: a loader may swallow the exception, its writes stay refused.
    """

    def __init__(self, residents: Residents, scratch: Scratch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.residents = residents
        self.scratch = scratch
        self.item = ""
        self.failure: BaseException | None = None
        self.number_read: Any = None

    @classmethod
    @override
    def _should_skip_dynamo(cls) -> bool:
        """Loaders are not compiled: spare each operation torch's wrapper, and the process its import."""
        return False

    @override
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Entry point of torch; see the class."""
        kwargs = kwargs or {}
        written = written_tensors(func, args, kwargs)
        if any(self.guarded(tensor) for tensor in written):
            try:
                return self._intercept(func, args, written)
            except BaseException as err:
                self.failure = self.failure or err
                raise
        return self.run(func, args, kwargs, written)

    def guarded(self, tensor: torch.Tensor) -> bool:
        """Whether writing ``tensor`` needs this hook's consent."""
        return self.scratch.owns(tensor) or self.residents.owner(tensor) is not None

    def run(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], written: list[torch.Tensor]
    ) -> Any:
        """Run an operation that writes nothing resident; a number read out of the scratch is kept."""
        result = func(*args, **kwargs)
        if func is SCALAR_READ and self.scratch.owns(args[0]):
            self.number_read = result
        return result

    def breach(self, resident: str, func: Any, reason: str) -> NoReturn:
        """Fail the attempt, naming canonical tensor, destination, operation and reason."""
        raise AttemptFailed(f"{self.item}: {func} into {resident!r}: {reason}")

    def on_copy(self, resident: str, target: torch.Tensor, source: torch.Tensor) -> None:
        """A copy out of the scratch."""
        raise AssertionError

    def on_fill(self, resident: str, target: torch.Tensor, number: Any) -> None:
        """A constant written to resident storage."""
        raise AssertionError

    def _intercept(self, func: Any, args: tuple[Any, ...], written: list[torch.Tensor]) -> Any:
        target = args[0]
        resident = self._destination(written)
        if self.failure is not None:
            self.breach(resident, func, "an earlier write of this attempt was refused")
        if func is aten.copy_.default:
            source = self._scratch_source(resident, func, args[1])
            self.on_copy(resident, target, source)
        elif func is aten.fill_.Tensor and self.scratch.owns(args[1]):
            self.on_copy(resident, target, self._scratch_source(resident, func, args[1]))
        elif func in _FILLS:
            number = args[1] if len(args) > 1 else 0
            self.on_fill(resident, target, number.item() if isinstance(number, torch.Tensor) else number)
        else:
            self.breach(resident, func, "only copy_ and constant fills may write resident storage")
        return target

    def _destination(self, written: list[torch.Tensor]) -> str:
        for tensor in written:
            if self.scratch.owns(tensor):
                self.breach("scratch", "a write", "the loader changes the tensor that was passed in")
        return next(name for name in map(self.residents.owner, written) if name is not None)

    def _scratch_source(self, resident: str, func: Any, source: Any) -> torch.Tensor:
        if not isinstance(source, torch.Tensor) or not self.scratch.owns(source):
            self.breach(resident, func, "the source was computed: it does not share storage with the scratch")
        if source.is_neg() or source.is_conj():
            self.breach(resident, func, "the source is a lazily negated or conjugated view")
        return source


def _same_number(a: Any, b: Any) -> bool:
    return bool(a == b or (a != a and b != b))


def holds_constant(target: torch.Tensor, number: Any) -> bool:
    """Whether every element of ``target`` has exactly the bits that ``fill_(number)`` would store."""
    constant = torch.empty((), dtype=target.dtype, device=target.device).fill_(number)
    return bool((lanes(target) == lanes(constant)).all())


def cast_like(copy: Copy, source: torch.Tensor) -> torch.Tensor:
    """What ``copy.target`` holds after the loader's own write of ``source``, in memory of its own.

    Runs the same operation on the same geometry: vectorized casts treat NaN by position.
    """
    target = torch.empty_strided(
        copy.shape, copy.target.stride(), dtype=copy.dtype, device=copy.target.device
    )
    return target.fill_(source.reshape(-1)[0].item()) if copy.scalar else target.copy_(source)


class ApplyHook(LoaderHook):  # type: ignore[no-untyped-call]
    """Applies one item after another; ``begin`` and ``end`` bracket what the loader does with each."""

    def __init__(self, residents: Residents, scratch: Scratch) -> None:
        super().__init__(residents, scratch)
        self._encoding = Encoding.OVERWRITE
        self._expected: tuple[Copy, ...] = ()
        self._num_done = 0
        self._masks: dict[tuple[Any, ...], torch.Tensor] = {}

    def begin(self, name: str, encoding: Encoding, expected: tuple[Copy, ...]) -> None:
        """The scratch now holds an item for ``name``, whose copies must be ``expected``, in order."""
        self.item, self._encoding, self._expected = name, encoding, expected
        self._num_done = 0
        self.number_read = None
        self._masks.clear()

    def end(self) -> None:
        """Check that the item arrived everywhere.

        Raises:
            AttemptFailed: the loader copied it less often than at prewarm.
        """
        if self._num_done != len(self._expected):
            missing = self._expected[self._num_done].resident
            raise AttemptFailed(
                f"{self.item}: the loader made {self._num_done} of {len(self._expected)} copies; "
                f"the one into {missing!r} is missing and nothing was skipped at prewarm"
            )
        self._expected, self._num_done = (), 0
        self._masks.clear()

    @override
    def on_copy(self, resident: str, target: torch.Tensor, source: torch.Tensor) -> None:
        """Update the active positions of ``target``; the loader's own copy does not run."""
        copy = self._next(describe_copy(resident, target, source))
        wide = source.expand(target.shape)
        if self._encoding is Encoding.XOR:
            self._xor(copy, target, wide)
        else:
            self._overwrite(copy, target, wide)
        self._copied(copy)

    @override
    def on_fill(self, resident: str, target: torch.Tensor, number: Any) -> None:
        """Accept a fill that changes nothing, or the loader's way to copy a single element."""
        expected = self._expected[self._num_done : self._num_done + 1]
        if expected and expected[0].scalar and expected[0].address == target.data_ptr():
            self._scalar(expected[0], target, number)
        elif not holds_constant(target, number):
            self.breach(resident, "fill_", f"it would overwrite live contents with {number!r}")

    def _xor(self, copy: Copy, target: torch.Tensor, source: torch.Tensor) -> None:
        if not copy.preserving or copy.broadcast:
            self.breach(copy.resident, "copy_", "XOR needs a copy of the same dtype, without broadcast")
        lanes(target).bitwise_xor_(lanes(source).to(target.device))

    def _overwrite(self, copy: Copy, target: torch.Tensor, source: torch.Tensor) -> None:
        key = (copy.address, copy.shape, copy.strides, copy.dtype)
        active = self._masks.get(key)
        if active is None:
            active = self._masks[key] = self.scratch.active(source).to(target.device)
        stored = source if copy.preserving else cast_like(copy, source)
        bits = lanes(target)
        bits.copy_(torch.where(active, lanes(stored).to(target.device), bits))

    def _scalar(self, copy: Copy, target: torch.Tensor, number: Any) -> None:
        if self._encoding is Encoding.XOR:
            self.breach(
                copy.resident, "fill_", "a mask is lost when it is read as a number; XOR is not possible"
            )
        if not _same_number(number, self.number_read):
            self.breach(copy.resident, "fill_", f"{number!r} was computed: item() gave {self.number_read!r}")
        target.fill_(number)
        self._num_done += 1
        self._copied(copy)

    def _next(self, got: Copy) -> Copy:
        done = self._num_done
        if done >= len(self._expected):
            self.breach(
                got.resident, "copy_", f"prewarm saw {len(self._expected)} copies of this tensor, not more"
            )
        if got != self._expected[done]:
            self.breach(got.resident, "copy_", f"copy {done} does not lie where prewarm saw it")
        self._num_done += 1
        return got

    def _copied(self, copy: Copy) -> None:
        observe.point("receiver.item.copy", tensor=self.item, resident=copy.resident)
