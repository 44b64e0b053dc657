"""Memory by address in compiled loops, which numba does not offer by itself; see ``compiled``.

Apart from the loops because numba keeps compiled code by file: what these generate hardly changes.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

numba: Any = import_module("numba")  # its types do not say what it exports
intrinsic: Any = import_module("numba.extending").intrinsic
types: Any = numba.types


def kept(function: Callable[..., Any]) -> Any:
    """Compiled code on disk, or in this process only where the installation is read-only."""
    try:
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:
        return numba.njit(nogil=True)(function)


@intrinsic  # type: ignore[untyped-decorator]  # numba has no types
def pointer(typing_context: Any, address: Any, like: Any) -> Any:
    """``address`` as a pointer to elements of ``like``."""
    to = types.CPointer(like.dtype)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return to(types.int64, like), generate
