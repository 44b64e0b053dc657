"""Which coding a name stands for (DESIGN R7, B3). Decoding never depends on it."""

from dcr.errors import ConfigError
from dcr.model import Encoding, width_bytes

PUBLISHED = "published"
PLANES = "planes"
CODECS = (PUBLISHED, PLANES)
"""Names that ``codec.name`` may take.

published: the paper's coding: XOR masks, gaps in the smallest integer type, zstd.
planes: bit-pattern differences, byte planes, and per item the location kind with the fewest bytes.
"""


def require_known(name: str) -> None:
    """Refuse any other name.

    Raises:
        ConfigError: lists the known ones.
    """
    if name not in CODECS:
        raise ConfigError(f"codec.name is {name!r}; known: {', '.join(CODECS)}")


def combining(codec_name: str, dtype: str) -> Encoding:
    """How a changed element of ``dtype`` is sent to a path that combines with the resident bits.

    XOR under ``published``; under ``planes`` DELTA16 for dtypes of 2 bytes, else XOR.

    Raises:
        ConfigError: an unknown codec or dtype.
    """
    require_known(codec_name)
    if codec_name == PLANES and width_bytes(dtype) == 2:
        return Encoding.DELTA16
    return Encoding.XOR
