"""Eight positions at once in compiled loops (see ``walk``), in vectors that LLVM splits where it must.

Apart from the loops because numba keeps compiled code by file: what these generate hardly changes.
"""

from importlib import import_module
from typing import Any

intrinsic: Any = import_module("numba.extending").intrinsic
types: Any = import_module("numba").types
ir: Any = import_module("llvmlite.ir")

_LANES = 8
_BIT, _BYTE, _LONG = ir.IntType(1), ir.IntType(8), ir.IntType(64)
_LONGS = ir.VectorType(_LONG, _LANES)
_HALF = ir.Constant(_LONGS, [0xFFFFFFFF] * _LANES)


@intrinsic  # type: ignore[untyped-decorator]  # numba has no types
def inside(typing_context: Any, address: Any, rows: Any, like: Any) -> Any:
    """Bits 0 to 7, lane by lane: whether a position lies in a box of rows of neighbours.

    ``address`` uint64 is that of the first of eight positions of the type of ``like``, int32 or int64.
    ``rows`` are six of uint64: where the box begins, ``inverse`` and ``shift`` (x // pitch is
    x * inverse >> shift, for x below 2^31), how far rows are apart, how many elements of each belong to it,
    and how many rows.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        numbers = (builder.extract_value(args[1], number) for number in range(6))
        first, inverse, shift, pitch, size, num_rows = (_all(builder, number) for number in numbers)
        at = builder.sub(_loaded(builder, args[0], like.dtype.bitwidth), first)
        row = builder.lshr(builder.mul(builder.and_(at, _HALF), inverse), shift)
        column = builder.sub(at, builder.mul(builder.and_(row, _HALF), pitch))
        in_row, is_row = (
            builder.icmp_unsigned("<", column, size), builder.icmp_unsigned("<", row, num_rows)
        )  # fmt: skip
        return builder.zext(builder.bitcast(builder.and_(in_row, is_row), _BYTE), _LONG)

    return types.uint64(types.uint64, types.UniTuple(types.uint64, 6), like), generate


def _loaded(builder: Any, address: Any, bits: int) -> Any:
    """Eight signed numbers of so many bits, widened to 64."""
    lanes = ir.VectorType(ir.IntType(bits), _LANES)
    loaded = builder.load(builder.inttoptr(address, lanes.as_pointer()))
    loaded.align = bits // 8
    return loaded if lanes == _LONGS else builder.sext(loaded, _LONGS)


def _all(builder: Any, value: Any) -> Any:
    """A vector with ``value`` in all lanes."""
    one = builder.insert_element(ir.Constant(_LONGS, ir.Undefined), value, ir.Constant(_LONG, 0))
    return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(ir.IntType(32), _LANES), [0] * _LANES))


@intrinsic  # type: ignore[untyped-decorator]
def lowest(typing_context: Any, bits: Any) -> Any:
    """Number of the lowest bit of ``bits`` uint64 that is set; there must be one."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(_BIT, 1))

    return types.uint64(types.uint64), generate


@intrinsic  # type: ignore[untyped-decorator]
def num_set(typing_context: Any, bits: Any) -> Any:
    """How many bits of ``bits`` uint64 are set."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.uint64(types.uint64), generate


@intrinsic  # type: ignore[untyped-decorator]
def fetch(typing_context: Any, address: Any) -> Any:
    """Ask for the cache line at ``address`` int64, which need not be anybody's memory."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        line = builder.inttoptr(args[0], _BYTE.as_pointer())
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), (line.type, number, number, number))
        function = builder.module.declare_intrinsic("llvm.prefetch", (line.type,), kind)
        builder.call(function, [line, *(ir.Constant(number, n) for n in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(types.int64), generate
