"""The dispatch hook on the loader's final storage copies (paper section 6.1, Appendix A.2, DESIGN R9, R12).

While the loader runs, every operation that writes to resident storage passes through here. A copy
out of the scratch, at the place where prewarm saw it, updates active positions only; anything else
is a breach that fails the attempt before it has written.
"""

from typing import Any, NoReturn, TypeAlias

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from dcr import observe
from dcr.errors import AttemptFailed
from dcr.model import Encoding
from dcr.receiver.geometry import Copy, describe_copy
from dcr.receiver.lanes import lanes
from dcr.receiver.schema import COPY, FILLS, SCALAR_READ, Effect, aten, effect_of, written_by
from dcr.receiver.scratch import Scratch
from dcr.receiver.storages import Storages

_View: TypeAlias = tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype]


class ApplyHook(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch ships it untyped
    """Applies one item after another; ``begin`` and ``end`` bracket what the loader does with each.

    ``failure`` keeps the first breach: a loader may swallow the exception, its writes stay refused.
    ``composed`` takes the paper's rule for overwrites: a further copy into a view whose first copy came
    out of the scratch goes through that copy's mask, whatever it was computed from. It is exact only if
    each element is computed from itself alone, so receivers load such tensors whole instead.
    """

    def __init__(self, storages: Storages, scratch: Scratch, *, composed: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.item = ""
        self.failure: BaseException | None = None
        self._storages = storages
        self._scratch = scratch
        self._composed = composed
        self._number_read: Any = None
        self._encoding = Encoding.OVERWRITE
        self._expected: tuple[Copy, ...] = ()
        self._num_done = 0
        self._masks: dict[_View, torch.Tensor] = {}

    @classmethod
    @override
    def _should_skip_dynamo(cls) -> bool:
        """Loaders are not compiled: spare each operation torch's wrapper, and the process its import."""
        return False

    def begin(self, name: str, encoding: Encoding, expected: tuple[Copy, ...]) -> None:
        """The scratch now holds an item for ``name``, whose copies must be ``expected``, in order."""
        self.item, self._encoding, self._expected = name, encoding, expected
        self._num_done = 0
        self._number_read = None
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
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Entry point of torch; see the class."""
        kwargs = kwargs or {}
        if effect_of(func) is Effect.WRITE:
            written = written_by(func, args, kwargs)
            if any(self._guards(tensor) for tensor in written):
                try:
                    return self._intercept(func, args, written)
                except BaseException as err:
                    self.failure = self.failure or err
                    raise
        result = func(*args, **kwargs)
        if func is SCALAR_READ and self._scratch.owns(args[0]):
            self._number_read = result
        return result

    def _guards(self, tensor: torch.Tensor) -> bool:
        return self._scratch.owns(tensor) or self._storages.find(tensor) is not None

    def _breach(self, resident: str, func: Any, reason: str) -> NoReturn:
        """Fail the attempt, naming canonical tensor, destination, operation and reason."""
        raise AttemptFailed(f"{self.item}: {func} into {resident!r}: {reason}")

    def _intercept(self, func: Any, args: tuple[Any, ...], written: list[torch.Tensor]) -> Any:
        target = args[0]
        resident = self._destination(written)
        if self.failure is not None:
            self._breach(resident, func, "an earlier write of this attempt was refused")
        if func is COPY or (func is aten.fill_.Tensor and self._scratch.owns(args[1])):
            self._copy(resident, func, target, args[1])
        elif func in FILLS:
            number = args[1] if len(args) > 1 else 0
            self._fill(resident, target, number.item() if isinstance(number, torch.Tensor) else number)
        else:
            self._breach(resident, func, "only copy_ and constant fills may write resident storage")
        return target

    def _destination(self, written: list[torch.Tensor]) -> str:
        for tensor in written:
            if self._scratch.owns(tensor):
                self._breach("scratch", "a write", "the loader changes the tensor that was passed in")
        number = next(n for n in map(self._storages.find, written) if n is not None)
        return self._storages[number].name

    def _copy(self, resident: str, func: Any, target: torch.Tensor, source: torch.Tensor) -> None:
        """Update the active positions of ``target``; the loader's own copy does not run."""
        if not self._scratch.owns(source):
            if self._composed and (mask := self._masks.get(_view_of(target))) is not None:
                _store(target, source.expand(target.shape).to(target.dtype), mask)
                return
            self._breach(
                resident, func, "the source was computed: it does not share storage with the scratch"
            )
        if source.is_neg() or source.is_conj():
            self._breach(resident, func, "the source is a lazily negated or conjugated view")
        copy = self._next(describe_copy(resident, target, source))
        wide = source.expand(target.shape)
        if self._encoding is Encoding.OVERWRITE:
            self._overwrite(copy, target, wide)
        else:
            self._combine(copy, target, wide)
        self._copied(copy)

    def _fill(self, resident: str, target: torch.Tensor, number: Any) -> None:
        """Accept a fill that changes nothing, or the loader's way to copy a single element."""
        expected = self._expected[self._num_done : self._num_done + 1]
        if expected and expected[0].scalar and expected[0].address == target.data_ptr():
            self._scalar(expected[0], target, number)
        elif not holds_constant(target, number):
            self._breach(resident, "fill_", f"it would overwrite live contents with {number!r}")

    def _combine(self, copy: Copy, target: torch.Tensor, source: torch.Tensor) -> None:
        """XOR or add in lanes of exactly the element's width: a carry must not leave its element."""
        if not copy.preserving or copy.broadcast:
            self._breach(
                copy.resident, "copy_", f"{self._encoding} needs a copy of the same dtype, without broadcast"
            )
        bits = lanes(source).to(target.device)
        if self._encoding is Encoding.XOR:
            lanes(target).bitwise_xor_(bits)
        elif source.element_size() == 2:
            lanes(target).add_(bits)
        else:
            self._breach(copy.resident, "copy_", "delta16 needs lanes of 2 bytes")

    def _overwrite(self, copy: Copy, target: torch.Tensor, source: torch.Tensor) -> None:
        """Store where the item is active, which the canonical bits say, before any cast."""
        key = _view_of(target)
        active = self._masks.get(key)
        if active is None:
            active = self._masks[key] = self._scratch.active(source).to(target.device)
        _store(target, source if copy.preserving else cast_like(copy, source), active)

    def _scalar(self, copy: Copy, target: torch.Tensor, number: Any) -> None:
        if self._encoding is not Encoding.OVERWRITE:
            self._breach(
                copy.resident,
                "fill_",
                f"a difference is lost when it is read as a number; {self._encoding} is not possible",
            )
        if not _same_number(number, self._number_read):
            self._breach(
                copy.resident, "fill_", f"{number!r} was computed: item() gave {self._number_read!r}"
            )
        target.fill_(number)
        self._num_done += 1
        self._copied(copy)

    def _next(self, got: Copy) -> Copy:
        done = self._num_done
        if done >= len(self._expected):
            self._breach(
                got.resident, "copy_", f"prewarm saw {len(self._expected)} copies of this tensor, not more"
            )
        if got != self._expected[done]:
            self._breach(got.resident, "copy_", f"copy {done} does not lie where prewarm saw it")
        self._num_done += 1
        return got

    def _copied(self, copy: Copy) -> None:
        observe.point("receiver.item.copy", tensor=self.item, resident=copy.resident)


def holds_constant(target: torch.Tensor, number: Any) -> bool:
    """Whether every element of ``target``, of any shape, has the very bits that ``fill_(number)`` stores."""
    constant = torch.empty((), dtype=target.dtype, device=target.device).fill_(number)
    return bool((lanes(target) == lanes(constant)).all())


def cast_like(copy: Copy, source: torch.Tensor) -> torch.Tensor:
    """In memory of its own, what ``copy.target`` holds after the loader's write of ``source`` [copy.shape].

    Runs the same operation on the same geometry: vectorized casts treat NaN by position.
    """
    target = torch.empty_strided(
        copy.shape, copy.target.stride(), dtype=copy.dtype, device=copy.target.device
    )
    return target.copy_(source)


def _view_of(target: torch.Tensor) -> _View:
    return target.data_ptr(), tuple(target.shape), tuple(target.stride()), target.dtype


def _store(target: torch.Tensor, stored: torch.Tensor, active: torch.Tensor) -> None:
    bits = lanes(target)
    if target.device.type == "cpu":  # numpy skips what is inactive, torch moves everything twice
        np.copyto(bits.numpy(), lanes(stored).numpy(), where=active.numpy())
    else:
        torch.where(active, lanes(stored).to(target.device), bits, out=bits)


def _same_number(a: Any, b: Any) -> bool:
    return bool(a == b or (a != a and b != b))
