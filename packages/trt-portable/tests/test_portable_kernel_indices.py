"""Indices that kernels compute of sizes that vary: as cheap as those of numbers, and the same numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Final

import pytest
import sympy
from hypothesis import assume, given
from hypothesis import strategies as st
from torch._dynamo.source import ConstantSource
from torch._inductor.codegen.common import KernelArgs, SizeArg
from torch._inductor.sizevars import SizeVarAllocator
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._sympy.functions import FloorDiv, Max, Mod, ModularIndexing, PythonMod
from torch.utils._sympy.value_ranges import ValueRanges

from trt_portable.builder.inductor.kernel_indices import bound_of, divided, joined, sizes_in_indices
from trt_portable.internals import MemoryDep, ReductionHint, V, triton_codegen


def test_loops_over_sizes_that_vary_change_places_as_those_over_numbers_do() -> None:
    """A kernel that writes channels last is fused with one that reads rows, whatever their length is."""
    env = ShapeEnv()
    images, length = (
        env.create_symbol(hint, ConstantSource(name), dynamic_dim=DimDynamic.DYNAMIC)
        for name, hint in (("images", 4), ("length", 40))
    )
    image, first, second = loops = sympy.symbols("d0 d1 d2", integer=True)
    start = 32 * length * image
    written = MemoryDep("x", start + first + 32 * second, loops, (images, sympy.Integer(32), length))
    read = MemoryDep("x", start + 32 * first + second, loops, (images, length, sympy.Integer(32)))
    graph: Any = SimpleNamespace(sizevars=SizeVarAllocator(env))
    with V.set_graph_handler(graph), sizes_in_indices():
        assert written.decide_loop_order_to_match(read) == [0, 2, 1]


def test_nothing_is_assumed_of_sizes_that_is_not_so_for_all() -> None:
    env, (length,) = _environment(length=(2, 512))
    sizes: Any = SizeVarAllocator(env)
    with sizes_in_indices():
        for ask, unknown in ((sizes.guard_or_false, False), (sizes.guard_or_true, True)):
            assert ask(sympy.Eq(Mod(length, 8), 0)) is unknown
            assert ask(sympy.Ge(length, 2)) is True and ask(sympy.Gt(length, 600)) is False
    assert not env.guards


class _Kernel:
    """What is asked of a kernel of Inductor whose code is written."""

    def __init__(self) -> None:
        self.args = KernelArgs()
        self.range_trees: list[Any] = []
        self.range_tree_nodes: dict[Any, Any] = {}

    def types(self, *indices: Any, size_dtype: str = "tl.int32") -> dict[str, str]:
        """The types of the sizes that a kernel takes which computes these indices."""
        for index in indices:
            triton_codegen.TritonKernel.rename_indexing(self, index)  # type: ignore[arg-type]
        taken: list[Any] = [SizeArg(name, size) for size, name in self.args.sizevars.items()]
        names = [SimpleNamespace(name=each.name) for each in taken]
        return triton_codegen.signature_to_meta(taken, size_dtype=size_dtype, argdefs=names)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("most", "index", "size_dtype", "expected"),
    [
        (1 << 20, lambda size, place: place + 1024 * size, "tl.int32", "i32"),
        (1 << 22, lambda size, place: place + 1024 * size, "tl.int32", "i64"),
        (1 << 20, lambda size, place: FloorDiv(size * size, 1 << 20), "tl.int32", "i64"),
        (1 << 20, lambda size, place: FloorDiv(place, size) + Mod(place, size), "tl.int32", "i32"),
        (1 << 20, lambda size, place: place + size, "tl.int64", "i64"),
    ],
)
def test_sizes_are_of_32_bits_where_all_that_is_computed_of_them_is(
    most: int, index: Any, size_dtype: str, expected: str
) -> None:
    env = ShapeEnv()
    size = env.create_symbol(8, ConstantSource("size"), dynamic_dim=DimDynamic.DYNAMIC)
    env.var_to_range[size] = ValueRanges(1, most)
    kernel, place = _Kernel(), sympy.Symbol("x0", integer=True)
    kernel.range_tree_nodes[place] = SimpleNamespace(length=sympy.Integer(1 << 10))
    graph: Any = SimpleNamespace(sizevars=SizeVarAllocator(env))
    with V.set_graph_handler(graph), V.set_kernel_handler(kernel), sizes_in_indices():
        assert kernel.types(index(size, place), place, size_dtype=size_dtype) == {"ks0": expected}


_NAMES = sympy.symbols("a b c", integer=True, positive=True)


@given(data=st.data(), sizes=st.tuples(*[st.integers(1, 1 << 12)] * 3))
def test_a_bound_is_above_all_parts_of_an_expression(data: st.DataObject, sizes: tuple[int, ...]) -> None:
    parts: list[Any] = [*_NAMES, *map(sympy.Integer, (-3, 1, 2, 7))]
    for _ in range(data.draw(st.integers(1, 5))):
        left, right = (data.draw(st.sampled_from(parts)) for _ in range(2))
        divisor = data.draw(st.sampled_from((*_NAMES, sympy.Integer(5))))
        made = data.draw(st.sampled_from(("add", "multiply", "divide", "rest", "digit", "most")))
        parts.append(
            {
                "add": lambda left=left, right=right: left + right,
                "multiply": lambda left=left, right=right: left * right,
                "divide": lambda left=left, divisor=divisor: FloorDiv(left, divisor),
                "rest": lambda left=left, divisor=divisor: PythonMod(left, divisor),
                "digit": lambda left=left, divisor=divisor: ModularIndexing(left, divisor, sympy.Integer(9)),
                "most": lambda left=left, right=right: Max(left, right),
            }[made]()
        )
    most = dict(zip(_NAMES, sizes, strict=True))
    bound = bound_of(parts[-1], lambda symbol: float(most[symbol]))
    values = {name: data.draw(st.integers(1, high)) for name, high in most.items()}
    assert abs(parts[-1].xreplace(values)) <= bound
    fit = [abs(part.xreplace(values)) < 1 << 31 for part in sympy.preorder_traversal(parts[-1])]
    assert all(fit) or bound == math.inf


def _environment(**ranges: tuple[int, int]) -> tuple[ShapeEnv, list[Any]]:
    """An environment with a size of each name, from the least to the largest."""
    env = ShapeEnv(specialize_zero_one=False, duck_shape=False)
    made = []
    for name, (least, most) in ranges.items():
        symbol = env.create_symbol(most, ConstantSource(name), DimDynamic.DYNAMIC, constraint_dim=None)
        env.var_to_range[symbol] = ValueRanges(least, most)
        made.append(symbol)
    return env, made


@pytest.mark.parametrize(
    ("usual", "most", "along_rows", "is_held"),
    [
        *((128, 128, True, True), (128, 256, True, True), (1000, 1000, True, True)),
        *((128, 512, True, False), (128, None, True, False), (1500, 1500, True, False), (128, 256, False, False)),
    ],
)
def test_rows_that_get_not_much_longer_than_usual_are_held(
    usual: int, most: int | None, along_rows: bool, is_held: bool
) -> None:
    """Where most of what is read lies along rows, and a mask that others share does not lie densely."""
    env = ShapeEnv()
    length: Any = sympy.Integer(usual)
    if most != usual:
        length = env.create_symbol(usual, ConstantSource("length"), dynamic_dim=DimDynamic.DYNAMIC)
        env.var_to_range[length] = ValueRanges(1, most or sympy.oo)
    hints = {None: ReductionHint.DEFAULT, "scores": ReductionHint.INNER if along_rows else ReductionHint.OUTER}
    features = SimpleNamespace(reduction_numel=length, get_reduction_hint=lambda scores=None: hints[scores])
    kernel: Any = SimpleNamespace(inside_reduction=True, cooperative_reduction=False, features=features)
    kernel.tiling_scores = "scores"
    graph: Any = SimpleNamespace(sizevars=SizeVarAllocator(env))
    with V.set_graph_handler(graph), sizes_in_indices():
        assert triton_codegen.TritonKernel.should_use_persistent_reduction(kernel) == is_held


def test_what_lies_densely_is_read_without_divisions() -> None:
    """Heads of texts, which lie one after the other, as rows of one matrix and back."""
    env, (texts, length) = _environment(texts=(1, 8), length=(1, 512))
    head, place, channel = sympy.symbols("r0 r1 r2", integer=True)
    loops = {head: 12 * texts, place: length, channel: sympy.Integer(64)}
    flat = 64 * head + 768 * texts * place + channel
    for one, whole in (
        (ModularIndexing(flat, 1, 768 * texts), 64 * head + channel),
        (FloorDiv(flat, 768 * texts), place),
        (ModularIndexing(flat, 768 * texts, length), place),
        (ModularIndexing(flat, 64, 12 * texts * length), head + 12 * texts * place),
    ):
        assert sympy.expand(divided(one, loops, env) - whole) == 0
    for kept in (ModularIndexing(flat, 1, 768), FloorDiv(flat - 1, 768 * texts), ModularIndexing(flat, 768, length)):
        assert divided(kept, loops, env).has(FloorDiv, ModularIndexing)


def test_what_was_divided_comes_together_again() -> None:
    """Tokens of images, one before the patches of each, as rows of one matrix."""
    wide, high, row, channel = sympy.symbols("w h r0 r1", integer=True, nonnegative=True)
    tokens = 1 + FloorDiv(wide, 16) * FloorDiv(high, 16)
    inside = ModularIndexing(row, 1, tokens)
    flat = channel + 768 * FloorDiv(row, tokens) + 768 * inside
    flat += 768 * FloorDiv(wide, 16) * FloorDiv(high, 16) * FloorDiv(row, tokens)
    assert joined(flat) == channel + 768 * row
    part = ModularIndexing(row, 4, tokens) + tokens * FloorDiv(row, 4 * tokens)
    assert joined(part) == FloorDiv(row, 4)
    for kept in (inside, 768 * inside + FloorDiv(row, tokens), 2 * inside + tokens * FloorDiv(row, tokens)):
        assert joined(kept) == kept


_SIZES: Final = sympy.symbols("n m", integer=True, positive=True)
_COUNTERS: Final = sympy.symbols("i j k", integer=True, nonnegative=True)


@given(data=st.data())
def test_divisions_that_are_done_come_to_the_same(data: st.DataObject) -> None:
    env, sizes = _environment(n=(1, 9), m=(2, 5))
    number = st.sampled_from((1, 2, 3, 8))
    factors = [*sizes, *map(sympy.Integer, (1, 2, 4))]
    extents = [data.draw(number) * data.draw(st.sampled_from(factors)) for _ in _COUNTERS]
    loops = dict(zip(_COUNTERS, extents, strict=True))
    flat: Any = sympy.Integer(data.draw(st.integers(-2, 2)))
    for counter in _COUNTERS:
        flat += counter * data.draw(st.sampled_from(factors)) * data.draw(st.sampled_from(extents))
    divisor, modulus = (data.draw(number) * data.draw(st.sampled_from(factors)) for _ in range(2))
    nested = ModularIndexing(flat, divisor, modulus) * data.draw(number) + FloorDiv(flat, divisor)
    expression = data.draw(st.sampled_from((nested, FloorDiv(nested, modulus), ModularIndexing(nested, 1, divisor))))
    values: Mapping[Any, int] = {size: data.draw(st.integers(*map(int, _span(env, size)))) for size in sizes}
    at = {**values, **{each: data.draw(st.integers(0, int(loops[each].xreplace(values)) - 1)) for each in loops}}
    assume(flat.xreplace(at) >= 0)  # others are no places in memory
    assert divided(expression, loops, env).xreplace(at) == expression.xreplace(at)
    apart = nested + data.draw(number) * modulus * FloorDiv(flat, divisor * modulus)
    assert joined(apart).xreplace(at) == apart.xreplace(at)


def _span(env: ShapeEnv, size: Any) -> tuple[int, int]:
    bounds = env.var_to_range[size]
    return int(bounds.lower), int(bounds.upper)
