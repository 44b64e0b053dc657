"""Bounds that a payload must keep before anything of it is decompressed or allocated."""

from dataclasses import dataclass, fields

from dcr.errors import ConfigError

_GIB = 1 << 30
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

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 < value <= _LARGEST:
                raise ConfigError(f"limits.{field.name} is {value}; give a number in [1, 2**48]")
