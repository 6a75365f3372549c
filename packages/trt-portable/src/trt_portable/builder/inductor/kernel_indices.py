"""Sizes that vary, in the indices that kernels of Inductor compute: as cheap as numbers would be where they can be.

Of numbers Inductor knows what it needs to know, of symbols much less, and says so by copies and divisions that kernels
for one size do not have. What it is taught here:

- To assume nothing that it can do without.
- Which of two orders of loops fits, if one of them fits at the usual sizes.
- A division by sizes of what lies densely in them: `(x + 64 * y) % (64 * n)` is what is divided, `y` being below `n`,
  and `n * (x // n) + x % n` is `x`.
- That numbers of 32 bits hold all that is computed of sizes, where they do.
- That a row is held while it is needed, if rows are not much longer than usual; with other rows it may share a mask.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import sympy

from trt_core.temporary import with_attributes
from trt_portable.size_arithmetic import bounds_of, is_whole


@contextlib.contextmanager
def sizes_in_indices() -> Iterator[None]:
    """Has Inductor compute indices of sizes that vary in these ways."""
    with _nothing_assumed(), _loops_ordered_by_hints(), _divisions_by_sizes(), _sizes_in_32_bits(), _rows_held():
        yield


@contextlib.contextmanager
def _nothing_assumed() -> Iterator[None]:
    """Has what Inductor may do without answered for all sizes, not for the usual ones, which code then serves alone.

    It asks whether rows of what is added to scores are of a multiple of 8, and copies them if nobody knows.
    """
    from trt_portable.internals import SizeVarAllocator

    def is_true(sizes: Any, statement: Any) -> bool:
        return bool(sizes.statically_known_true(statement))

    def may_be_true(sizes: Any, statement: Any) -> bool:
        return not sizes.statically_known_true(sympy.Not(statement))

    with with_attributes(SizeVarAllocator, guard_or_false=is_true, guard_or_true=may_be_true):
        yield


@contextlib.contextmanager
def _divisions_by_sizes() -> Iterator[None]:
    """Has divisions of indices by sizes done where it is known what comes out."""
    from trt_portable.internals import SizeVarAllocator

    simplify: Any = SizeVarAllocator._simplify_with_ranges

    def simplified(sizes: Any, expression: Any, loops: Mapping[Any, Any]) -> Any:
        if not expression.free_symbols - loops.keys():
            return simplify(sizes, expression, loops)
        found = simplify(sizes, joined(divided(expression, loops, sizes.shape_env)), loops)
        again = joined(divided(found, loops, sizes.shape_env))
        return found if again == found else simplified(sizes, again, loops)

    with with_attributes(SizeVarAllocator, _simplify_with_ranges=simplified):
        yield


def divided(expression: Any, loops: Mapping[Any, Any], env: Any) -> Any:
    """Returns an expression without the divisions of which is known what comes out.

    Args:
        expression: Of sympy, over whole numbers that are not negative: counters of loops, and sizes.
        loops: How far each counter counts.
        env: Knows the ranges of sizes.
    """
    from trt_portable.internals import FloorDiv, ModularIndexing

    def is_below(number: Any, limit: Any) -> bool:
        highest = number.xreplace({counter: count - 1 for counter, count in loops.items()})
        return _is_monotone(number) and bounds_of(sympy.expand(limit - 1 - highest), env.var_to_range)[0] >= 0

    def done(division: Any) -> Any:
        base, divisor, *modulus = division.args
        whole, rest = _divided(base, divisor)
        quotient = whole if is_below(rest, divisor) else whole + FloorDiv(rest, divisor)
        if not modulus:
            return quotient
        _, rest = _divided(quotient, *modulus)
        return rest if is_below(rest, *modulus) else division

    return expression.replace(lambda part: isinstance(part, (FloorDiv, ModularIndexing)), done)


def joined(expression: Any) -> Any:
    """Returns an expression with what was divided in place of its parts: `n * (x // n) + x % n` is `x`."""
    from trt_portable.internals import FloorDiv, ModularIndexing

    for part in expression.atoms(ModularIndexing):
        base, divisor, modulus = part.args
        whole = FloorDiv(base, divisor * modulus)
        if expression.has(whole):
            whole_again = sympy.expand(expression.xreplace({part: FloorDiv(base, divisor) - modulus * whole}))
            expression = expression if whole_again.has(whole) else whole_again
    return expression


def _divided(base: Any, divisor: Any) -> tuple[Any, Any]:
    """A sum as what a divisor divides, by that divisor, and the rest of the terms."""
    terms = sympy.Add.make_args(sympy.expand(base))
    quotients = [term / divisor for term in terms]
    whole = [quotient for quotient in quotients if is_whole(quotient)]
    rest = [term for term, quotient in zip(terms, quotients, strict=True) if not is_whole(quotient)]
    return sympy.Add(*whole), sympy.Add(*rest)


def _is_monotone(number: Any) -> bool:
    """Whether a number is not negative, and grows with each of its counters and sizes."""
    if isinstance(number, sympy.Add):
        return all(map(_is_monotone, number.args))
    coefficient, factors = number.as_coeff_mul()
    return not coefficient.is_negative and all(
        factor.is_Symbol
        or (type(factor).__name__ == "FloorDiv" and factor.args[1].is_Integer and _is_monotone(factor.args[0]))
        for factor in factors
    )


@contextlib.contextmanager
def _loops_ordered_by_hints() -> Iterator[None]:
    """Lets loops over sizes that vary change places where two kernels become one by that, as loops over numbers do.

    Inductor takes a size in an index for a loop that it knows nothing of. A tensor that one kernel writes as the next
    one does not read it was written and read once more then: every convolution of a sound, of images in windows.
    """
    from trt_portable.internals import MemoryDep, V

    decide: Any = MemoryDep.decide_loop_order_to_match

    def with_numbers(access: Any) -> Any:
        return replace(access, index=_usual(access.index, V.graph.sizevars.shape_env))

    with with_attributes(
        MemoryDep, decide_loop_order_to_match=lambda access, other: decide(with_numbers(access), with_numbers(other))
    ):
        yield


def _usual(expression: Any, env: Any) -> Any:
    """An expression with usual sizes in place of those that are not told by data."""
    sizes = [symbol for symbol in expression.free_symbols if symbol in env.var_to_range]
    hints = {symbol: env.create_symintnode(symbol, hint=None).node.hint for symbol in sizes}
    return expression.xreplace({symbol: hint for symbol, hint in hints.items() if hint is not None})


@contextlib.contextmanager
def _rows_held() -> Iterator[None]:
    """Lets kernels that sum along rows hold a row while they need it, also where it shares a mask with other rows.

    Inductor decides so by whether all that a kernel reads lies densely, and only later, for the sizes of blocks, by how
    much of it does. A softmax of scores with a mask read its rows three times. A block has room for the longest row,
    which is wasted on short ones, so rows that may get much longer than usual are read in parts.
    """
    from trt_portable.internals import ReductionHint, V, triton_codegen

    codegen: Any = triton_codegen
    kernels = codegen.TritonKernel
    decide: Any = kernels.should_use_persistent_reduction

    def decided(kernel: Any) -> bool:
        is_held = bool(decide(kernel))
        if is_held or not kernel.inside_reduction or kernel.cooperative_reduction:
            return is_held
        length, sizes = sympy.sympify(kernel.features.reduction_numel), V.graph.sizevars
        usual = sympy.sympify(_usual(length, sizes.shape_env))
        if not usual.is_Integer or kernel.features.get_reduction_hint(kernel.tiling_scores) is not ReductionHint.INNER:
            return False
        room = _SPARE << max(int(usual) - 1, 0).bit_length()
        return bool(sizes.statically_known_leq(length, min(room, _LONGEST_HELD)))

    with with_attributes(kernels, should_use_persistent_reduction=decided):
        yield


_LONGEST_HELD: Final = 1024
"""Elements of a row that Inductor holds where all lies densely."""
_SPARE: Final = 2
"""How many times the usual block a block for the longest row may be."""


@contextlib.contextmanager
def _sizes_in_32_bits() -> Iterator[None]:
    """Hands sizes to kernels in 32 bits where nothing that is computed of them is more.

    Inductor hands them over in 64, since a size times another may be more, and every index that has one in it is of 64
    bits by that: a division takes several times as long. How large sizes get is known here.
    """
    from trt_portable.internals import V, triton_codegen

    codegen: Any = triton_codegen
    kernels, make = codegen.TritonKernel, codegen.signature_to_meta
    rename: Any = kernels.rename_indexing
    computed: dict[Any, set[Any]] = {}

    def renamed(kernel: Any, index: Any) -> Any:
        found = rename(kernel, index)
        if not isinstance(found, list):  # whose parts came one by one
            computed.setdefault(kernel, set()).add(found)
        return found

    def signature(given: Any, *, size_dtype: str | None, **more: Any) -> dict[str, Any]:
        types: dict[str, Any] = make(given, size_dtype=size_dtype, **more)
        indices = computed.pop(V.kernel, ())
        if size_dtype != "tl.int32" or "i64" not in types.values():
            return types
        largest = _largest_numbers(V.kernel)
        sizes = {name for name in V.kernel.args.sizevars.values() if types.get(name) == "i64"}
        of_sizes = [index for index in indices if not sizes.isdisjoint(map(str, index.free_symbols))]
        is_small = all(bound_of(index, largest) < _WIDE for index in of_sizes)
        return {**types, **dict.fromkeys(sizes if is_small else (), "i32")}

    with (
        with_attributes(kernels, rename_indexing=renamed),
        with_attributes(codegen, signature_to_meta=signature),
    ):
        yield


def _largest_numbers(kernel: Any) -> Callable[[sympy.Symbol], float]:
    """What each number that a kernel of Inductor computes indices of is at most."""
    from trt_portable.internals import V

    sizes = V.graph.sizevars
    ranges = sizes.shape_env.var_to_range
    names = {name: size for size, name in kernel.args.sizevars.items()}
    loops = {tree.index_sym(): tree.numel for tree in kernel.range_trees}

    def largest(symbol: sympy.Symbol) -> float:
        if symbol in ranges:
            bounds = ranges[symbol]
            return max(abs(float(bounds.lower)), abs(float(bounds.upper)))
        entry = kernel.range_tree_nodes.get(symbol)
        stands_for = entry.length if entry else loops.get(symbol, names.get(symbol.name))
        stands_for = sizes.inv_precomputed_replacements.get(symbol, stands_for)
        return math.inf if stands_for in (None, symbol) else bound_of(stands_for, largest)

    return largest


def bound_of(expression: Any, largest: Callable[[sympy.Symbol], float]) -> float:
    """Returns what the magnitude of an expression over whole numbers is at most, if 32 bits hold all of its parts.

    Args:
        expression: Of sympy, or a number.
        largest: What the magnitude of a symbol is at most.

    Returns:
        Infinity if 32 bits do not hold all parts, or if that is not known.
    """
    if isinstance(expression, (int, sympy.Number)):
        return abs(float(expression))
    if isinstance(expression, sympy.Symbol):
        return largest(expression)
    parts = [bound_of(part, largest) for part in expression.args]
    name = type(expression).__name__
    if max(parts) >= _WIDE:
        return math.inf
    if isinstance(expression, sympy.Mul):
        found = math.prod(parts)
    elif isinstance(expression, sympy.Pow):
        found = parts[0] ** parts[1]
    elif name in _DIVISIONS and isinstance(expression.args[1], sympy.Integer):
        found = parts[0] / parts[1] + 1
    else:
        is_known = isinstance(expression, (sympy.Add, sympy.Rel)) or name in _DIVISIONS | _AT_MOST_SUMS
        found = sum(parts) if is_known else math.inf
    return found if found < _WIDE else math.inf


_WIDE: Final = 1 << 31
_DIVISIONS: Final = frozenset(("FloorDiv", "CleanDiv", "CeilDiv"))
_AT_MOST_SUMS: Final = frozenset(("ModularIndexing", "Mod", "PythonMod", "Max", "Min", "Identity"))
"""Functions of whole numbers whose results are at most the sum of what they are given."""
