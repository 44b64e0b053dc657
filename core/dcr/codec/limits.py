"""Bounds that a payload must keep before anything of it is decompressed or allocated."""

from dataclasses import dataclass, fields

from dcr.errors import ConfigError
from dcr.model import Catalogue

_GIB = 1 << 30
_TABLE_BYTES = 64 << 20
_LARGEST = 1 << 48  # keeps every sum and product of declared sizes inside int64


@dataclass(frozen=True, slots=True)
class Limits:
    """What one payload may claim. A whole 4 GiB tensor fits; a process with less memory lowers these.

    ``max_section_bytes`` bounds each section after decompression, ``max_entries`` the changed
    elements of all items together, ``max_dims`` and ``max_name_bytes`` one item.
    """

    max_payload_bytes: int = 4 * _GIB
    max_section_bytes: int = 4 * _GIB
    max_items: int = 1 << 18
    max_entries: int = 1 << 31
    max_dims: int = 16
    max_name_bytes: int = 1024

    @classmethod
    def of_catalogue(cls, catalogue: Catalogue) -> "Limits":
        """The least that admits every honest payload of a run: no element is claimed twice in one.

        A location takes at most as many bytes as its widest gap type, 8.
        """
        copies = [(spec, 1 + len(spec.aliases)) for spec in catalogue.tensors]
        num_entries = sum(spec.num_elements * number for spec, number in copies)
        num_bytes = sum(spec.num_bytes * number for spec, number in copies)
        section = max(8 * num_entries, num_bytes) + _TABLE_BYTES
        return cls(
            max_payload_bytes=2 * section,
            max_section_bytes=section,
            max_entries=max(num_entries, 1),
        )

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 < value <= _LARGEST:
                raise ConfigError(f"limits.{field.name} is {value}; give a number in [1, 2**48]")
