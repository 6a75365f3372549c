"""Decides whether a captured graph is the model at a size of 1, where that was asked for.

PyTorch captures with the assumption that sizes which vary are at least 2, and most models do not mind. Those that do
are told in two ways: their code asked (`SizeQuestion`), and takes another way at 1; or an operator makes other
results there, as `chunk` makes the pieces that two rows have: each is asked again, with fake tensors of such sizes.
`squeeze` is told which axes it squeezes, which is another way.
Some make the same results and lay them otherwise in memory (`forms_of_results`).
Much code that asks computes the same either way, such as attention that is causal for more than one token. So where
code takes another way, the model and the graph are both run at that size. The condition stays where results differ, or
nobody can tell.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx, nn
from torch.export import ExportedProgram

from trt_core import Input, logger
from trt_core.control_flow import ControlFlowMode
from trt_core.exported_programs import module_of
from trt_core.internals import DataDependentOutputException, HigherOrderOperator, OpOverload, pytree
from trt_core.process_groups import COLLECTIVES
from trt_core.provenance import source_line
from trt_core.sizes.functions import relation_name
from trt_core.sizes.grid import FailingSizes
from trt_core.sizes.guards import Asker, asker_of, is_of_strides, rewrite_guard_text, shape_environment
from trt_core.sizes.ranges import ShapeRanges
from trt_core.temporary import seeded, undone
from trt_frontends.comparison.output_error import measure_error
from trt_frontends.comparison.sample_inputs import SampleInputs
from trt_frontends.example_inputs import ExampleInputs
from trt_frontends.operator_forms import Form, OperatorForms, UnknownSizeError, shapes_in, value_at
from trt_lowering import keep_recurrent_layers, tracing_lock
from trt_lowering.export import SizeQuestion
from trt_lowering.memory_order import lies_in
from trt_lowering.node_metadata import graph_results

_TOLERANCES: Final = {torch.float16: 2e-2, torch.bfloat16: 5e-2}
_TOLERANCE: Final = 1e-3
"""Of an output's scale: both run the same operators in PyTorch, or other kernels for them."""

_SCALES: Final = (1.0, 30.0)
"""Magnitudes of the numbers that a model is run on, so that it is seen what it does to small and to large ones."""


def settle_smallest_sizes(
    program: ExportedProgram,
    module: nn.Module,
    examples: ExampleInputs,
    questions: Sequence[SizeQuestion],
    device: torch.device,
) -> None:
    """Makes a program refuse sizes of 1 that were asked for, where it is not the model at them.

    Args:
        program: What was captured; conditions are added to its guards.
        module: The model.
        examples: What it was captured with.
        questions: What its code asked of sizes.
        device: Where the model lives.
    """
    env = shape_environment(program.graph.nodes)
    if env is None:
        return
    ranges = ShapeRanges.from_placeholders(program.graph_module, None, program.range_constraints)
    demanded = _demanded(env, _is_of_small)
    kept: dict[Any, str] = {}
    asked = (*questions, *_name_squeezed_axes(program.graph_module))
    operators = OperatorForms()
    for sizes in smallest_sizes(program.graph, ranges):
        if not _all_hold((*demanded, *kept), sizes):
            continue  # such sizes are refused anyway
        broken = [question for question in asked if not _all_hold((question.answer,), sizes)]
        if broken and not is_the_model(program, module, examples, sizes, device):
            kept.update((question.answer, question.place) for question in broken)
        elif (node := first_other_result(program.graph, sizes, operators)) is not None:
            kept[no_such_sizes(sizes)] = f"{node.target}, {source_line(node) or node.name}"
    _add_guards(env, kept)
    drop_assumptions(program.graph, ranges, [question.answer for question in questions], operators)
    rewrite_guard_text(program)


def _name_squeezed_axes(gm: fx.GraphModule) -> list[SizeQuestion]:
    """Lets a graph squeeze the axes that it was captured to squeeze, at every size; what that takes for granted.

    Where more axes have one element the model goes on with a tensor of fewer dimensions, which may come to the same.
    """
    import sympy  # PyTorch has imported it where sizes vary

    found = []
    for target in _SQUEEZES:
        for node in gm.graph.find_nodes(op="call_function", target=target):
            value = node.args[0].meta["val"]
            dims = node.args[1:] or (range(value.dim()),)
            axes = () if not value.dim() else (dims[0],) if isinstance(dims[0], int) else dims[0]
            open_extents = [value.shape[axis] for axis in axes if isinstance(value.shape[axis], torch.SymInt)]
            if open_extents:
                node.target = torch.ops.aten.squeeze.dims
                node.args = (node.args[0], [axis for axis in axes if isinstance(value.shape[axis], int)])
            place = f"{target}, {source_line(node) or node.name}"
            found += [SizeQuestion(sympy.Ne(extent.node.expr, 1), place) for extent in open_extents]
    if found:
        gm.recompile()
    return found


_SQUEEZES: Final = (torch.ops.aten.squeeze.default, torch.ops.aten.squeeze.dim, torch.ops.aten.squeeze.dims)


def fixes_an_extent_at_one(program: ExportedProgram) -> bool:
    """Whether an extent that follows from sizes was 1 (or 0) where a program was captured, and operators took it so.

    Half of a row of two is one number, and a picture of 32 by 32 comes to a map of 1 by 1: PyTorch captures both for no
    other size.

    Args:
        program: What was captured; its ranges are those that were asked for.
    """
    env = shape_environment(program.graph.nodes)
    if env is None:
        return False
    ones = [env.replace(guard.expr) for guard in env.guards if _is_of_one(guard)]
    ranges = ShapeRanges.from_placeholders(program.graph_module, None, program.range_constraints)
    return not all(_all_hold(ones, _sizes(env, ranges, end)) for end in (0, 2))


def _is_of_one(guard: Any) -> bool:
    """Whether operators found that an extent is 1 or 0."""
    ones = {"eq": (0, 1), "le": (0, 1), "lt": (1, 2)}.get(relation_name(guard.expr) or "", ())
    return asker_of(guard) is not Asker.MODEL and guard.expr.args[-1] in ones


def accepts_usual_sizes(program: ExportedProgram, inputs: Sequence[Any]) -> bool:
    """Whether what a program demands of its sizes holds for the opt sizes of its inputs.

    Args:
        program: What was captured, for these or for other sizes.
        inputs: What it is meant for, one per input of the user.
    """
    env = shape_environment(program.graph.nodes)
    given = dict(zip(program.graph_signature.user_inputs, inputs, strict=True))
    places = [given.get(node.name) for node in program.graph.nodes if node.op == "placeholder"]
    ranges = ShapeRanges.from_placeholders(program.graph_module, places, program.range_constraints)
    return env is None or _all_hold(_demanded(env, _is_of_operators), _sizes(env, ranges, 1))


def _sizes(env: Any, ranges: ShapeRanges, end: int, least: int = 0) -> dict[Any, Any]:
    """Sizes by symbol, as numbers of sympy: the least, the usual or the largest ones, raised to some number."""
    import sympy  # PyTorch has imported it where sizes vary

    symbols = {str(symbol): symbol for symbol in env.var_to_range}
    known = ((symbols[name], bounds[end]) for name, bounds in ranges.symbols.items() if name in symbols)
    return {symbol: sympy.Integer(max(size, least)) for symbol, size in known}


def _demanded(env: Any, is_assumed: Callable[[Any], bool]) -> list[Any]:
    return [env.replace(guard.expr) for guard in env.guards if not (is_assumed(guard) or is_of_strides(guard))]


def drop_assumptions(
    graph: fx.Graph, ranges: ShapeRanges, answers: Sequence[Any] = (), operators: OperatorForms | None = None
) -> None:
    """Removes guards by which operators told small and equal extents from others, where the graph is the same for all.

    A slice of all rows but the first is one row where there are two; PyTorch notes that there were not two. A picture
    of one window has as many rows as the window; PyTorch notes that these differed.

    Args:
        graph: The graph of a program that was captured here; its shape environment is changed.
        ranges: What its sizes may be.
        answers: What else holds for the sizes that it was captured for.
        operators: See `first_other_result`.
    """
    operators = operators or OperatorForms()
    env = shape_environment(graph.nodes)
    if env is None:
        return
    same: dict[tuple[Any, ...], bool] = {}  # many guards are about the same sizes

    def is_the_same(sizes: Mapping[Any, Any]) -> bool:
        key = tuple(sizes.values())
        if key not in same:
            same[key] = first_other_result(graph, sizes, operators) is None
        return same[key]

    assumed = [guard for guard in env.guards if _is_of_operators(guard)]
    demanded = _demanded(env, _is_of_operators)
    spans = {name: range(max(low, 1), high + 1) for name, (low, _, high) in ranges.symbols.items()}
    usual = _usual_sizes(graph, ranges)
    failing = FailingSizes(demanded, spans, {str(symbol): int(size) for symbol, size in usual.items()})
    for guard in assumed:
        points = _against(env.replace(guard.expr), failing, usual)
        if points is None:
            continue
        if not all(_all_hold(answers, sizes) for sizes in points):  # a model wanted to know it, too
            env.guards[env.guards.index(guard)] = guard._replace(sloc=_place("the model"))
        elif all(_all_hold(demanded, sizes) and is_the_same(sizes) for sizes in points):
            env.guards.remove(guard)


def conditions_of_structure(program: ExportedProgram, ranges: ShapeRanges) -> list[Any]:
    """Returns the conditions, relations of sympy, under which operators make the results that a graph goes on with.

    Args:
        program: Any program.
        ranges: What it is compiled for.
    """
    operators = OperatorForms()
    return [
        no_such_sizes(sizes)
        for sizes in smallest_sizes(program.graph, ranges)
        if first_other_result(program.graph, sizes, operators) is not None
    ]


def smallest_sizes(graph: fx.Graph, ranges: ShapeRanges) -> Iterator[dict[Any, Any]]:
    """Yields sizes by symbol with one of them 1, then with all of them 1 that may be; the others are what is usual."""
    import sympy  # PyTorch has imported it where sizes vary

    usual = _usual_sizes(graph, ranges)
    small = [symbol for symbol in usual if ranges.symbols[str(symbol)][0] <= 1 < ranges.symbols[str(symbol)][2]]
    for symbol in small:
        yield {**usual, symbol: sympy.S.One}
    if len(small) > 1:
        yield {**usual, **dict.fromkeys(small, sympy.S.One)}


def _usual_sizes(graph: fx.Graph, ranges: ShapeRanges) -> dict[Any, Any]:
    """Sizes that a graph was captured for, by symbol, as numbers of sympy."""
    env = shape_environment(graph.nodes)
    return {} if env is None else _sizes(env, ranges, 1, least=2)


def _is_of_operators(guard: Any) -> bool:
    """Whether an operator compared extents to take one of several ways to the same result; equality is a demand."""
    return asker_of(guard) is not Asker.MODEL and relation_name(guard.expr) not in (None, "eq")


def _is_of_small(guard: Any) -> bool:
    """Whether an operator wanted to know if some extent is 0 or 1."""
    least = {"ne": (0, 1), "gt": (0, 1), "ge": (1, 2)}
    return _is_of_operators(guard) and guard.expr.args[-1] in least.get(relation_name(guard.expr) or "", ())


def _all_hold(conditions: Iterable[Any], sizes: Mapping[Any, int]) -> bool:
    return not any(condition.xreplace(sizes) == False for condition in conditions)  # noqa: E712 - sympy's false


def _against(condition: Any, failing: FailingSizes, usual: Mapping[Any, Any]) -> list[dict[Any, Any]] | None:
    """Returns sizes of which one symbol's are all at which a condition does not hold; None for too many.

    A condition may name other symbols, if it says the same for all sizes of these, which are as near to the usual ones
    as the model's own demands allow.
    """
    import sympy

    found = failing.of(condition)
    symbols = {str(symbol): symbol for symbol in usual}
    if found is None or not all(symbols.keys() >= sizes.keys() for sizes in found):
        return None
    return [{**usual, **{symbols[name]: sympy.Integer(size) for name, size in sizes.items()}} for sizes in found]


def no_such_sizes(sizes: Mapping[Any, int]) -> Any:
    """The condition, a relation of sympy, that what is 1 in sizes is not 1 all at once."""
    import sympy  # PyTorch has imported it where sizes vary

    return sympy.Or(*(sympy.Ne(symbol, 1) for symbol, size in sizes.items() if size == 1))


def is_the_model(
    program: ExportedProgram, module: nn.Module, examples: ExampleInputs, sizes: Mapping[Any, int], device: torch.device
) -> bool:
    """Whether a program computes at some sizes what its model computes; not where one of them fails.

    Args:
        program: What was captured.
        module: The model.
        examples: What it was captured with.
        sizes: The size of each symbol, as sympy knows them.
        device: Where the model lives.
    """
    graph = module_of(program, check_guards=False)
    try:
        for scale in _SCALES:
            inputs = inputs_at(program, examples, sizes, device, scale)
            with torch.no_grad(), _attributes_kept(module), _Alone():  # type: ignore[no-untyped-call]
                expected, found = (inputs.call(function, _with_inputs) for function in (module, graph))
            if not _agree(found, expected):
                return False
    except Exception:  # the model's own code, on inputs that are not its user's
        return False
    return True


class _Alone(ControlFlowMode):
    """Collectives as they are where all ranks have what this one has: without the others, who may not come.

    Whether a rank compares, and how often, depends on its own values.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if isinstance(func, HigherOrderOperator):
            return self.run_bodies(func, args, kwargs or {})
        kind = func.overloadpacket.__name__
        if func.namespace == "c10d" and kind in ("allreduce_", "broadcast_"):  # in place: what is there stays
            from trt_frontends.internals import FakeWork, Work

            return args[0], Work.boxed(FakeWork())
        if func.namespace != "c10d" and not func.namespace.startswith(COLLECTIVES):
            return func(*args, **(kwargs or {}))
        x = args[0]
        if kind == "wait_tensor":
            return x
        if kind in ("all_reduce", "broadcast"):
            return x.clone()
        if kind == "all_gather_into_tensor":
            return torch.cat([x] * args[1])
        if kind == "reduce_scatter_tensor":
            return x.chunk(args[2])[0].clone()
        raise NotImplementedError(f"{func} has no form without other ranks")  # sizes of 1 are refused then


def _with_inputs(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Returns the result, and the inputs, which may have been written to."""
    return function(*args, **kwargs), args, kwargs


def inputs_at(
    program: ExportedProgram,
    examples: ExampleInputs,
    sizes: Mapping[Any, int],
    device: torch.device,
    scale: float = 1.0,
) -> SampleInputs:
    """Draws inputs of some sizes.

    Args:
        program: What was captured.
        examples: What it was captured with; what is no `Input` stays.
        sizes: The size of each symbol, as sympy knows them.
        device: Where the inputs lie.
        scale: The magnitude of what is drawn for floats.
    """
    values = {node.name: node.meta.get("val") for node in program.graph.find_nodes(op="placeholder")}
    taken = iter(program.graph_signature.user_inputs)

    def materialize(leaf: Any) -> Any:
        value = values.get(next(taken))
        if not isinstance(leaf, Input) or not isinstance(value, torch.Tensor):
            return leaf
        shape = [int(_size_at(size, sizes)) for size in value.shape]
        drawn = Input(shape, dtype=leaf.dtype, format=leaf.format, tensor_domain=leaf.tensor_domain).example(
            device=device
        )
        return scale * torch.randn_like(drawn) if leaf.dtype.is_floating_point and scale != 1 else drawn

    with seeded(0, [device]):
        args, kwargs = pytree.tree_map(materialize, (examples.args, examples.kwargs))
    return SampleInputs("smallest sizes", args, kwargs)


def size_as_asked(size: int | torch.SymInt) -> Any:
    """Returns a size in the symbols that it had before code found some of them equal."""
    return size.node._expr if isinstance(size, torch.SymInt) else size


def _size_at(size: int | torch.SymInt, sizes: Mapping[Any, int]) -> Any:
    asked = size_as_asked(size)
    if not isinstance(size, torch.SymInt):
        return asked
    return (asked if asked.free_symbols <= sizes.keys() else size.node.expr).xreplace(sizes)


def _agree(found: Any, expected: Any) -> bool:
    left, right = pytree.tree_leaves(found), pytree.tree_leaves(expected)
    return len(left) == len(right) and all(map(_are_alike, left, right))


def _are_alike(found: Any, expected: Any) -> bool:
    if not isinstance(expected, torch.Tensor) or not isinstance(found, torch.Tensor):
        return type(found) is type(expected) and (not isinstance(found, (int, float, str)) or found == expected)
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    return measure_error(found, expected).scaled <= _TOLERANCES.get(expected.dtype, _TOLERANCE)


@contextlib.contextmanager
def _attributes_kept(module: nn.Module) -> Iterator[None]:
    """Puts back what a call assigns to attributes of modules."""
    tables = [table for item in nn.Module.modules(module) for table in (vars(item), item._buffers, item._parameters)]
    before = [dict(table) for table in tables]

    def undo() -> None:
        for table, values in zip(tables, before, strict=True):
            table.clear()
            table.update(values)

    with undone(undo):
        yield


def _add_guards(env: Any, kept: Mapping[Any, str]) -> None:
    """Adds conditions to what a program asks of its sizes, as if PyTorch had noted them."""
    from trt_frontends.internals import ShapeGuard

    for condition, place in kept.items():
        env.guards.append(ShapeGuard(condition, _place(place), size_oblivious=False))
        logger.warning(
            "an input may have a size of 1 by its Input, and the model takes another way there (%s): it was captured "
            "for larger sizes, and calls with 1 are refused; compile another module for these",
            place,
        )


def _place(place: str) -> Any:
    """Where a model asked for something, as PyTorch notes it."""
    from trt_frontends.internals import SLoc

    return SLoc(place, None)


def first_other_result(
    graph: fx.Graph, sizes: Mapping[Any, int], operators: OperatorForms | None = None
) -> fx.Node | None:
    """Returns the first node whose results have other shapes than the graph says, or which fails; None for no such.

    Args:
        graph: A graph of operators with `meta["val"]`.
        sizes: The size in question of each symbol, as sympy knows them.
        operators: Asked before, about other sizes or graphs.
    """
    operators = operators or OperatorForms()
    for node in graph.nodes:
        if _may_differ(node) and not _is_as_said(node, sizes, operators):
            found: fx.Node = node
            return found
    return None


def _may_differ(node: fx.Node) -> bool:
    """Whether sizes that vary reach a node, and more may follow from them than that they stay."""
    if node.op != "call_function" or not isinstance(node.target, OpOverload) or torch.Tag.pointwise in node.target.tags:
        return False
    return any(_varies(item.meta.get("val")) for item in node.all_input_nodes)


def _varies(value: Any) -> bool:
    leaves = pytree.tree_leaves(value)
    sizes = (size for leaf in leaves for size in (leaf.shape if isinstance(leaf, torch.Tensor) else (leaf,)))
    return any(isinstance(size, torch.SymInt) for size in sizes)


def _is_as_said(node: fx.Node, sizes: Mapping[Any, int], operators: OperatorForms) -> bool:
    try:
        said = shapes_in(value_at(node.meta.get("val"), sizes))
        given = fx.node.map_arg((node.args, dict(node.kwargs)), lambda item: value_at(item.meta.get("val"), sizes))
    except UnknownSizeError:
        return True
    made = operators.made(node.target, given)
    if isinstance(made, Exception):
        return isinstance(made, DataDependentOutputException)  # it asks for values, at any size
    return shapes_in(made) == said


_MOST_SYMBOLS: Final = 3
"""Of more sizes that may be 1 there are too many ways to be it."""


@dataclass(frozen=True)
class ResultForms:
    """How the results of a program lie in memory, by which of its sizes are 1.

    Attributes:
        symbols: The sizes that may be 1, as sympy knows them.
        points: Sizes by symbol for each way in which these are 1 or not: the first alone at the second place, the
            second alone at the third, both at the fourth.
        layouts: At each place, shape and strides of each result; None for what is no tensor, or unknown.
    """

    symbols: tuple[Any, ...]
    points: tuple[dict[Any, Any], ...]
    layouts: tuple[tuple[tuple[tuple[int, ...], tuple[int, ...]] | None, ...], ...]


def forms_of_results(program: ExportedProgram, ranges: ShapeRanges) -> ResultForms | None:
    """Asks operators how their results lie at sizes of 1; None where no result could lie otherwise than it is numbered.

    Args:
        program: What was captured.
        ranges: What its sizes may be.
    """
    count = len(program.graph_signature.user_outputs)
    results = graph_results(program.graph)[-count:] if count else ()
    if all(map(_is_usual, results)):
        return None
    import sympy  # PyTorch has imported it where sizes vary

    usual = _usual_sizes(program.graph, ranges)
    small = [symbol for symbol in usual if ranges.symbols[str(symbol)][0] <= 1 < ranges.symbols[str(symbol)][2]]
    if len(small) > _MOST_SYMBOLS:
        small = []
    points = tuple(
        usual | {symbol: sympy.S.One for at, symbol in enumerate(small) if way >> at & 1}
        for way in range(1 << len(small))
    )
    operators = OperatorForms()
    with tracing_lock(), keep_recurrent_layers():
        layouts = tuple(_layouts_at(program.graph, results, sizes, operators) for sizes in points)
    return ResultForms(tuple(small), points, layouts)


def _is_usual(result: Any) -> bool:
    """Whether a result is no tensor, or one of rows that lie one behind the other."""
    value = result.meta.get("val") if isinstance(result, fx.Node) else None
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return True
    may_be_one = any(isinstance(extent, torch.SymInt) or extent == 1 for extent in value.shape)
    return (not may_be_one or value.dim() <= 2) and lies_in(value, range(value.dim()))


def _layouts_at(
    graph: fx.Graph, results: Sequence[Any], sizes: Mapping[Any, int], operators: OperatorForms
) -> tuple[Any, ...]:
    """Shape and strides of results at some sizes, by following the forms of all values from the inputs on."""
    forms: dict[fx.Node, Any] = {}
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr", "call_function"):
            with contextlib.suppress(UnknownSizeError):
                forms[node] = _followed(node, forms, sizes, operators)
    found = (forms.get(item) if isinstance(item, fx.Node) else None for item in results)
    return tuple((form.shape, form.strides) if isinstance(form, Form) else None for form in found)


def _followed(node: fx.Node, forms: Mapping[fx.Node, Any], sizes: Mapping[Any, int], operators: OperatorForms) -> Any:
    """The form of what a node makes of others; as the graph says it where an operator does not."""
    made: Any = None
    is_operator = isinstance(node.target, OpOverload) or node.target is operator.getitem  # not what sets grad mode
    if is_operator and all(item in forms for item in node.all_input_nodes):
        made = operators.made(node.target, fx.node.map_arg((node.args, dict(node.kwargs)), forms.__getitem__))
    if made is None or isinstance(made, Exception):
        return value_at(node.meta.get("val"), sizes)
    return made
