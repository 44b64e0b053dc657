"""The dispatch hook in learning mode: nothing resident is written, everything is noted (DESIGN R11, B2).

Canonical tensors are *scratch*: without contents on the meta device, or with fixed contents on the host.
A copy whose source is a view of one is a placement. Clones and casts of it are *twins*, whose elements are
known one by one (``mirror``), so copies of their views are placements too. What else is made of scratch or
of resident memory is followed by storage; a write from it is computed.
"""

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from dcr.receiver import schema
from dcr.receiver.mirror import Mirror
from dcr.receiver.schema import COPY, Effect, effect_of, tensors_in
from dcr.receiver.storages import Storages
from dcr.receiver.touched import touched
from dcr.receiver.trace import (
    NOBODY,
    NOTHING,
    Extent,
    Kind,
    Made,
    Number,
    Source,
    Trace,
    Traces,
    Write,
    digest_of,
    extent_of,
)


class LearnHook(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch ships it untyped
    """Suppresses every write to resident storage and notes it under the tensor that it belongs to.

    ``traces`` may be read afterwards. ``streamed``: each placement happened while its own tensor was
    the current one. ``idle``: the caller is at work and nothing is noted. ``twins`` false makes clones and
    casts computed, as they are for the apply hook.
    """

    def __init__(self, storages: Storages, *, twins: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.traces: Traces = {"": Trace()}
        self.streamed = True
        self._storages = storages
        self._resident = storages.identities
        self._twins = twins
        self.idle = False
        self._effects: dict[int, Effect] = {}
        self._name = ""
        self._mirrors: dict[int, Mirror] = {}
        self._made: dict[int, Made] = {}
        self._number: Number | None = None
        self._scratch = 0, 0
        self._alive: list[
            StorageWeakRef
        ] = []  # an identity is not used again while one of these points to it

    @classmethod
    @override
    def _should_skip_dynamo(cls) -> bool:
        """Loaders are not compiled: spare each operation torch's wrapper, and the process its import."""
        return False

    def begin(self, name: str, scratch: torch.Tensor) -> None:
        """``scratch``, contiguous from the start of its storage, is now given to the loader as ``name``."""
        self._name = name
        self.traces[name] = Trace()
        self._number = None
        self._mirror(scratch, Mirror(name, scratch.dtype))
        address = scratch.data_ptr()  # 0: no memory
        self._scratch = address, address + scratch.nbytes

    def end(self) -> None:
        """What follows belongs to no tensor."""
        self._name = ""

    def kept(self) -> set[str]:
        """Names of tensors of which the loader still holds scratch, or something that was made of it."""
        names: set[str] = set()
        for alive in self._alive:
            if not alive.expired():  # type: ignore[no-untyped-call]
                mirror = self._mirrors.get(alive.cdata)
                made = self._made.get(alive.cdata, Made())
                names |= made.names if mirror is None else {mirror.name}
        return names

    @override
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Entry point of torch; see the class."""
        if self.idle:
            return func(*args, **(kwargs or {}))
        if func is COPY:
            return self._copy(args[0], args[1])
        effect = self._effects.get(id(func))
        if effect is None:  # hashing an operator costs more than asking for its address
            effect = self._effects[id(func)] = effect_of(func)
        kwargs = kwargs or {}
        if effect is Effect.VIEW:
            if func is schema.NEW_CONSTANT:
                self._follow(args[0], Made())
            return func(*args, **kwargs)
        if effect is Effect.PURE:
            return self._compute(func, args, kwargs)
        return self._write(func, args, kwargs)

    # --- what is read

    def _compute(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        made = self._made_of((*args, *kwargs.values()))
        if func is schema.SCALAR_READ:
            return self._read_number(args[0], made)
        if func in schema.CASTS and made.names:
            if args[0].device.type == "meta" and "device" in kwargs:
                kwargs = {**kwargs, "device": args[0].device}  # contents that are not there cannot move
            result = func(*args, **kwargs)
            if not self._twin(args[0], result):
                self._follow(result, made)
            return result
        decides = not func._schema.returns or "Tensor" not in str(func._schema.returns[0].type)
        if decides:
            self._read_values(made)
        result = func(*args, **kwargs)
        for tensor in tensors_in((result,)):
            self._follow(tensor, made)
        return result

    def _made_of(self, values: tuple[Any, ...]) -> Made:
        """Canonical names and resident bytes behind ``values``; the latter count as read."""
        names, reads = NOBODY, NOTHING
        for tensor in tensors_in(values):
            identity = tensor.untyped_storage()._cdata
            mirror = self._mirrors.get(identity)
            if mirror is not None:
                names |= {mirror.name}
            elif (known := self._made.get(identity)) is not None:
                names, reads = names | known.names, reads | known.reads
            elif (name := self._scratch_at(tensor)) is not None:
                names |= {name}
            elif tensor.numel() and (number := self._storages.find(tensor)) is not None:
                extent = self._extent(number, tensor)
                self.traces[self._name].reads.add(extent)
                reads |= {extent}
        return Made(names, reads)

    def _scratch_at(self, tensor: torch.Tensor) -> str | None:
        """The current tensor, where ``tensor`` shares its scratch's memory by address only (numpy, say)."""
        start, stop = self._scratch
        if start and tensor.device.type != "meta" and start <= tensor.untyped_storage().data_ptr() < stop:
            return self._name
        return None

    def _read_values(self, made: Made) -> None:
        for name in made.names:
            self.traces[name].reads_values = True

    def _read_number(self, tensor: torch.Tensor, made: Made) -> Any:
        """A number out of the scratch; without contents it is 3 or True, and the tensor is tried again."""
        self._read_values(made)
        for name in made.names if tensor.dtype is not torch.bool else ():
            self.traces[name].takes_numbers = True
        if tensor.device.type == "meta":
            number = torch.ones((), dtype=tensor.dtype).mul_(3).item()
        else:
            number = tensor.item()
        mirror = self._mirrors.get(tensor.untyped_storage()._cdata)
        source = mirror.read_by(tensor) if mirror is not None and mirror.through is None else None
        if mirror is not None and source is not None:
            self._number = Number(mirror.name, number, source.offset, tensor.dtype)
        return number

    def _twin(self, tensor: torch.Tensor, clone: torch.Tensor) -> bool:
        """Whether ``clone``, a clone or cast of ``tensor``, plainly holds elements of a scratch."""
        mirror = self._mirrors.get(tensor.untyped_storage()._cdata) if self._twins else None
        twin = mirror.twin(tensor, clone) if mirror is not None else None
        if twin is not None:
            self._mirror(clone, twin)
        return twin is not None

    def _mirror(self, tensor: torch.Tensor, mirror: Mirror) -> None:
        storage = tensor.untyped_storage()
        self._alive.append(StorageWeakRef(storage))  # type: ignore[no-untyped-call]
        self._mirrors[storage._cdata] = mirror

    def _follow(self, tensor: torch.Tensor, made: Made) -> None:
        """``tensor`` is a result: unless it views known memory, it is a temporary."""
        storage = tensor.untyped_storage()
        identity = storage._cdata
        if identity in self._made:
            self._made[identity] = self._made[identity].joined(made)
        elif identity not in self._mirrors and self._storages.find(tensor) is None:
            self._alive.append(StorageWeakRef(storage))  # type: ignore[no-untyped-call]
            self._made[identity] = made

    # --- what is written

    def _copy(self, target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        number = self._resident.get(target.untyped_storage()._cdata)
        if number is None:
            number = self._destination(target)
        mirror = self._mirrors.get(source.untyped_storage()._cdata)
        if number is None or mirror is None or source.is_neg() or source.is_conj():
            if target.numel():
                self._write(COPY, (target, source), {})
            return target
        if not target.numel():
            return target
        if source.shape != target.shape:
            source = source.expand(target.shape)
        origin = mirror.read_by(source)
        if origin is None:
            self._store(COPY, (target, source), {}, [target])
        else:
            self._note(mirror.name, self._place(Kind.COPY, number, target, origin))
        return target

    def _write(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        written = schema.written_by(func, args, kwargs)
        numbers = [self._destination(tensor) for tensor in written]
        if all(number is None for number in numbers):
            return self._write_elsewhere(func, args, kwargs, written)
        if func is schema.FOREACH_COPY:
            for target, source in zip(args[0], args[1], strict=True):
                self._copy(target, source)
        elif func in schema.FILLS:
            self._fill(func, args[0], args[1] if len(args) > 1 else 0)
        else:
            self._store(func, args, kwargs, written)
        result = written[0] if written else args[0]
        return result if func._schema.returns else None

    def _destination(self, tensor: torch.Tensor) -> int | None:
        identity = tensor.untyped_storage()._cdata
        if identity in self._mirrors or identity in self._made:
            return None
        return self._storages.find(tensor)

    def _fill(self, func: Any, target: torch.Tensor, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            if value.untyped_storage()._cdata in self._mirrors:
                self._copy(target, value)
                return
            made = self._made_of((value,))
            if made.names or made.reads or value.device.type == "meta":
                self._store(func, (target, value), {}, [target])
                return
            value = value.item()
        number = self._destination(target)
        assert number is not None
        read = self._number
        if read is not None and target.numel() == 1 and read.equals(value):
            origin = Source(read.offset, (0,) * target.dim(), read.dtype, None, direct=True)
            self._note(read.name, self._place(Kind.SCALAR, number, target, origin))
        else:
            expected = torch.full((), value, dtype=target.dtype).expand(target.shape)
            self._constant(number, target, expected)

    def _store(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], written: list[torch.Tensor]
    ) -> None:
        """A write of something that is no view of scratch."""
        trace = self.traces[self._name]
        if func is COPY and not (made := self._made_of((args[1],))).names and not made.reads:
            number = self._destination(args[0])
            assert number is not None
            self._constant(number, args[0], args[1].expand(args[0].shape).to(args[0].dtype))
            return
        outputs = {id(tensor) for tensor in written}
        inputs = tuple(t for t in tensors_in((*args, *kwargs.values())) if id(t) not in outputs)
        made = self._made_of(inputs)
        for tensor in written:
            number = self._destination(tensor)
            place = None if number is None else self._place(Kind.COMPUTED, number, tensor)
            if refusal := self._refusal(func, place, writes_only=schema.writes_only(func, args, kwargs)):
                trace.refuse(refusal)
            elif place is not None:
                for piece in touched(func, args, place):
                    self._note_computed(piece, str(func), made)

    def _refusal(self, func: Any, place: Write | None, *, writes_only: bool) -> str:
        """Why ``func`` may not write ``place``, None where that is not resident; empty if it may."""
        if place is None:
            return f"{func} writes resident and other memory at once"
        name = self._storages[place.storage].name
        if func.overloadpacket is schema.SET_STORAGE:
            return f"the loader's {func} replaces the storage of resident {name!r}"
        if not writes_only and not self._written_before(place):
            return (
                f"{func} into {name!r} depends on what was there: "
                "only copies and constant fills may write resident storage"
            )
        return ""

    def _note_computed(self, place: Write, what: str, made: Made) -> None:
        write = place._replace(what=what, names=made.names, reads=made.reads)
        for name in made.names | {self._name}:
            self._note(name, write)

    def _constant(self, number: int, target: torch.Tensor, expected: torch.Tensor) -> None:
        expected = expected.cpu().clone() if any(expected.stride()) else expected.cpu()
        write = self._place(Kind.CONSTANT, number, target)._replace(what=digest_of(expected))
        self._note(self._name, write)
        self.traces[self._name].expected.append(expected)

    def _written_before(self, place: Write) -> bool:
        """Whether the current tensor's load has already stored exactly these elements."""
        same = (place.storage, place.offset, place.shape, place.strides, place.dtype)
        return any(write[1:6] == same for write in self.traces[self._name].writes)

    def _write_elsewhere(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], written: list[torch.Tensor]
    ) -> Any:
        """A write to scratch, to temporaries, or to memory that nobody has named."""
        made = self._made_of((*args, *kwargs.values()))
        known = True
        for tensor in written:
            identity = tensor.untyped_storage()._cdata
            mirror = self._mirrors.pop(identity, None)
            known = known and (mirror is not None or identity in self._made)
            if mirror is not None or identity in self._made:
                self._made[identity] = made.joined(self._made.get(identity, Made()))
        if known:
            hollow = func is COPY and args[1].device.type == "meta" != args[0].device.type
            return args[0] if hollow else func(*args, **kwargs)
        for name in made.names | {self._name}:
            self.traces[name].refuse(f"the loader's {func} writes to storage that resident() does not list")
        if made.names:
            return written[0] if func._schema.returns else None
        return func(*args, **kwargs)

    # --- notes

    def _note(self, name: str, write: Write) -> None:
        self.streamed = self.streamed and name == self._name
        self.traces[name].writes.append(write)

    def _place(self, kind: Kind, number: int, target: torch.Tensor, source: Source | None = None) -> Write:
        offset = int(target.storage_offset())
        if target.untyped_storage()._cdata not in self._resident:  # memory shared by address only
            offset = (target.data_ptr() - self._storages[number].address) // target.element_size()
        return Write(kind, number, offset, tuple(target.shape), target.stride(), target.dtype, source)

    def _extent(self, number: int, tensor: torch.Tensor) -> Extent:
        place = self._place(Kind.CONSTANT, number, tensor)
        return extent_of(number, place.offset, place.shape, place.strides, place.dtype.itemsize)
