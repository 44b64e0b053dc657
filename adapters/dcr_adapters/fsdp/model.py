"""The canonical tensors of an FSDP2 model: names, served dtypes, ties, and the way back to live weights."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor

from dcr.errors import ConfigError, UnsupportedPath
from dcr.model import TensorSpec, known_dtypes

SERVED_DTYPES = ("bfloat16", "float16", "float32")
_CAST = (torch.float32, torch.bfloat16, torch.float16)
_WRAPPER = "_checkpoint_wrapped_module."  # activation checkpointing; its state_dict leaves the prefix out


@dataclass(frozen=True, slots=True)
class Place:
    """One attribute of one module."""

    module: torch.nn.Module
    attribute: str

    @property
    def is_parameter(self) -> bool:
        """Whether the module registers it as a parameter."""
        return self.attribute in self.module._parameters

    def get(self) -> torch.Tensor | None:
        """The tensor that is registered now."""
        held = self.module._parameters if self.is_parameter else self.module._buffers
        return held.get(self.attribute)


@dataclass(frozen=True, slots=True)
class Slot:
    """One canonical tensor and the module attributes that hold it, the primary name's first."""

    spec: TensorSpec
    places: tuple[Place, ...]

    @property
    def is_parameter(self) -> bool:
        """Whether it is a parameter, which is cast, or a buffer, which is not."""
        return self.places[0].is_parameter

    def live(self) -> torch.Tensor | None:
        """What the attributes hold now; None if it is gone or the names are no longer tied.

        After a forward pass FSDP may still keep a gathered copy there.
        """
        first, *others = [place.get() for place in self.places]
        if first is None or not all(_is_same(first, other) for other in others):
            return None
        return first


def canonical_slots(model: torch.nn.Module, served_dtype: str) -> dict[str, Slot]:
    """Slots by primary name, in state_dict order; further names of a tied tensor are its aliases.

    The primary is the first name in state_dict order, which is the one that ``named_parameters``
    yields and ``save_pretrained`` keeps.

    Raises:
        ConfigError: the served dtype is not one of ``SERVED_DTYPES``.
        UnsupportedPath: an entry is no tensor, has no attribute, or a dtype that cannot be refitted;
            the model is wrapped by the first FSDP.
    """
    if served_dtype not in SERVED_DTYPES:
        raise ConfigError(f"served_dtype {served_dtype!r} must be one of {', '.join(SERVED_DTYPES)}")
    _refuse_flat_parameters(model)
    state = model.state_dict()
    places = dict(_places(model))
    names: dict[object, list[str]] = {}
    for name, tensor in state.items():
        if not isinstance(tensor, torch.Tensor) or name not in places:
            raise UnsupportedPath(
                f"state_dict entry {name!r} is no parameter or buffer; take it out of the model"
            )
        names.setdefault(_identity(places[name].get(), tensor), []).append(name)
    return {tied[0]: _slot(tied, places, state, served_dtype) for tied in names.values()}


def _refuse_flat_parameters(model: torch.nn.Module) -> None:
    """The first FSDP keeps a module's parameters in one flat tensor, cut anywhere; its state_dict gathers."""
    for name, module in model.named_modules():
        if isinstance(module, FullyShardedDataParallel):
            inside = next((path for path, _ in torch.nn.Module.named_parameters(module)), "")
            path = f"{name}.{inside}".replace("_fsdp_wrapped_module.", "").strip(".")
            raise UnsupportedPath(
                f"parameter {path!r} is in a flat parameter of "
                "FullyShardedDataParallel, whose parts are no blocks of it; shard the model with fully_shard"
            )


def _slot(
    tied: list[str], places: dict[str, Place], state: dict[str, torch.Tensor], served_dtype: str
) -> Slot:
    name, *aliases = tied
    dtype = served_dtype_of(name, state[name], places[name].is_parameter, served_dtype)
    spec = TensorSpec(name, tuple(state[name].shape), dtype, tuple(aliases))
    return Slot(spec, tuple(places[one] for one in tied))


def served_dtype_of(name: str, tensor: torch.Tensor, is_parameter: bool, served_dtype: str) -> str:
    """Stored dtype on the serving side: ``served_dtype`` for 16 and 32 bit float parameters, else its own.

    Raises:
        UnsupportedPath: the dtype has no defined stored bits (complex, quantized).
    """
    if is_parameter and tensor.dtype in _CAST:
        return served_dtype
    own = str(tensor.dtype).removeprefix("torch.")
    if own not in known_dtypes():
        raise UnsupportedPath(f"tensor {name!r} has dtype {own}, which cannot be refitted: {known_dtypes()}")
    return own


def _places(model: torch.nn.Module) -> Iterator[tuple[str, Place]]:
    for prefix, module in model.named_modules(remove_duplicate=False):
        path = f"{prefix}.".replace(_WRAPPER, "") if prefix else ""
        for attribute in (*module._parameters, *module._buffers):
            yield path + attribute, Place(module, attribute)


def _identity(held: torch.Tensor | None, saved: torch.Tensor) -> object:
    """Equal for names of one tensor, and decided alike on every rank.

    A sharded parameter is its object, since empty shards have no address; a plain tensor, whole on
    every rank, is its storage range.
    """
    if isinstance(saved, DTensor) or saved.numel() == 0:
        return id(held)
    return saved.data_ptr(), tuple(saved.shape), saved.stride(), saved.dtype


def _is_same(first: torch.Tensor, other: torch.Tensor | None) -> bool:
    return other is first or (other is not None and _identity(first, first) == _identity(other, other))
