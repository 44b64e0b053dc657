"""A local parameter and the Bridge's mapping of it, as closed forms see them."""

from dataclasses import dataclass
from typing import Any

from dcr.errors import UnsupportedPath
from dcr_adapters.megatron.pieces import Shape


@dataclass(frozen=True, slots=True)
class Source:
    """One local parameter and its mapping object; ``size`` and ``rank`` are of the axis that splits it."""

    mapping: Any
    module: Any
    shape: Shape
    size: int
    rank: int

    @property
    def num_rows(self) -> int:
        """R."""
        return self.shape[0] if self.shape else 1

    @property
    def config(self) -> Any:
        """The transformer configuration, as the mapping finds it."""
        return self.mapping._get_config(self.module)


def kind_of(mapping: Any, module: object) -> str:
    """How the inner automatic mapping of ``mapping``, or itself, is split: column, row or replicated.

    Raises:
        UnsupportedPath: the Bridge cannot tell.
    """
    auto = getattr(mapping, "_tp_mapping", mapping)
    if not hasattr(auto, "_detect_parallelism_type"):
        return "column"
    try:
        return str(auto._detect_parallelism_type(module))
    except ValueError as err:
        raise UnsupportedPath(f"parameter {mapping.megatron_param!r}: {str(err).splitlines()[0]}") from None
