"""The hook in learning mode: nothing is written, everything is noted (DESIGN R11, B2's mechanism)."""

from dataclasses import dataclass, field
from typing import Any

import torch
from typing_extensions import override

from dcr.receiver.copy_hook import SCALAR_READ, LoaderHook, tensors_in
from dcr.receiver.geometry import Copy, Fill, describe_copy
from dcr.receiver.resident import Residents
from dcr.receiver.scratch import Scratch

_NEW_CONSTANT = torch.ops.aten.lift_fresh.default


@dataclass(slots=True)
class Trace:
    """What the loader did with one canonical tensor; ``refusal`` is empty if all of it is allowed."""

    copies: list[Copy] = field(default_factory=list)
    fills: list[Fill] = field(default_factory=list)
    refusal: str = ""


class LearnHook(LoaderHook):  # type: ignore[no-untyped-call]
    """Suppresses every write to resident storage and records it under the current item.

    The caller puts an unusual number into a one-element scratch, so that ``fill_`` of ``item()``
    is told from a constant. Storages made while an item is loaded are followed: the loader may use
    them, but may neither write other memory nor decide by values.
    """

    def __init__(self, residents: Residents, scratch: Scratch) -> None:
        super().__init__(residents, scratch)
        self.traces: dict[str, Trace] = {}
        self._fresh: dict[int, tuple[torch.Tensor, bool]] = {}
        self._read_from = torch.empty(0)

    def begin(self, name: str) -> None:
        """What follows belongs to ``name``."""
        self.item = name
        self.traces[name] = Trace()
        self.number_read = None
        self._fresh.clear()

    def end(self) -> None:
        """Close the current item; later writes without ``begin`` are refused."""
        trace = self.traces[self.item]
        if self.number_read is not None and not any(copy.scalar for copy in trace.copies):
            trace.refusal = trace.refusal or "the loader reads values (item()) and may decide by them"
        self._fresh.clear()

    @override
    def on_copy(self, resident: str, target: torch.Tensor, source: torch.Tensor) -> None:
        """Note where the copy would have gone."""
        self.traces[self.item].copies.append(describe_copy(resident, target, source))

    @override
    def on_fill(self, resident: str, target: torch.Tensor, number: Any) -> None:
        """Note a constant, or the copy of a single element through a number."""
        trace = self.traces[self.item]
        if self.number_read is not None and number == self.number_read and target.numel() == 1:
            element = self._read_from.reshape(()).expand(target.shape)
            trace.copies.append(describe_copy(resident, target, element, scalar=True))
        else:
            trace.fills.append(Fill(resident, target.detach()))

    @override
    def run(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], written: list[torch.Tensor]
    ) -> Any:
        """Run an operation on temporaries, following which of them depend on the scratch."""
        for tensor in written:
            if tensor.untyped_storage().data_ptr() not in self._fresh:
                self._refuse(func, "writes to storage that resident() does not list")
        inputs = list(tensors_in((args, tuple(kwargs.values()))))
        tainted = any(self.scratch.owns(tensor) or self._is_tainted(tensor) for tensor in inputs)
        result = super().run(func, args, kwargs, written)
        outputs = list(tensors_in((result,)))
        if func is SCALAR_READ and self.scratch.owns(args[0]):
            self._read_from = args[0].detach()
        elif tainted and not outputs:
            self._refuse(func, "decides by the values that it is given")
        self._follow(func, inputs, outputs, tainted)
        return result

    def _follow(
        self, func: Any, inputs: list[torch.Tensor], outputs: list[torch.Tensor], tainted: bool
    ) -> None:
        known = {tensor.untyped_storage().data_ptr() for tensor in inputs}
        for tensor in outputs:
            address = tensor.untyped_storage().data_ptr()
            if address in self._fresh:
                self._fresh[address] = (tensor, tainted or self._fresh[address][1])
            elif address and (address not in known or func is _NEW_CONSTANT):
                self._fresh[address] = (tensor, tainted)

    def _is_tainted(self, tensor: torch.Tensor) -> bool:
        entry = self._fresh.get(tensor.untyped_storage().data_ptr())
        return entry is not None and entry[1]

    def _refuse(self, func: Any, reason: str) -> None:
        trace = self.traces[self.item]
        trace.refusal = trace.refusal or f"the loader's {func} {reason}"
