"""Finds a program that serves the sizes at which a model's code takes other ways, where these come to the same.

Code that fills up to a multiple crops where it filled: `if pad > 0: y = y[:, :length]`. What was captured with a length
that is no multiple computes the same for one that is, and what was captured with a multiple does not serve the others.
So where not all sizes of a range fulfil what a model's code asked, it is captured again at sizes that do not, until
each size has a program that is the model there. Then the first of these programs is taken that is the model at all
others' sizes, too. As at sizes of 1, that is found by running both at some sizes of each, the least and the largest
among them.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch
from torch import nn
from torch.export import ExportedProgram

from trt_core.sizes.functions import relation_name
from trt_core.sizes.grid import MOST_COMBINATIONS, SizeGrid
from trt_core.sizes.guards import Asker, asker_of, is_assumption, rewrite_guard_text, shape_environment
from trt_core.sizes.ranges import ShapeRanges
from trt_frontends.example_inputs import ExampleInputs
from trt_frontends.smallest_sizes import (
    first_other_result,
    inputs_at,
    is_the_model,
    settle_smallest_sizes,
    size_as_asked,
)
from trt_lowering.export import SizeQuestion

Captured: TypeAlias = tuple[ExportedProgram, list[SizeQuestion]]
"""A program whose ranges are those that were asked for, and what the model asked of sizes."""

_MOST_WAYS: Final = 4
"""A model is captured so many times at most; each takes as long as the first."""


def serve_other_ways(
    first: Captured,
    module: nn.Module,
    examples: ExampleInputs,
    device: torch.device,
    capture_at: Callable[[Any], Captured | None],
) -> ExportedProgram:
    """Returns a program that serves all sizes of the range, or the one that was captured first.

    Args:
        first: What was captured, settled by `settle_smallest_sizes`.
        module: The model.
        examples: What it was captured with.
        device: Where the model lives.
        capture_at: Captures it with other inputs, positional ones and keywords; None where it cannot be.
    """
    ways = [_Way.of(first)]
    while (shares := _Shares.of(ways)) is not None and (sizes := shares.left()) is not None:
        given = inputs_at(first[0], examples, sizes, device)
        captured = capture_at((given.args, given.kwargs)) if len(ways) < _MOST_WAYS else None
        if captured is None:
            return first[0]
        settle_smallest_sizes(captured[0], module, examples, captured[1], device)
        ways.append(_Way.of(captured))
    if shares is None:
        return first[0]
    for index, way in enumerate(ways):
        refused = shares.refused(index)
        if refused is not None and all(_is_the_model(way.program, module, examples, at, device) for at in refused):
            if refused:
                way.drop_conditions()
                settle_smallest_sizes(way.program, module, examples, way.questions, device)
            return way.program
    return first[0]


def _is_the_model(
    program: ExportedProgram, module: nn.Module, examples: ExampleInputs, sizes: Mapping[Any, Any], device: torch.device
) -> bool:
    is_as_said = first_other_result(program.graph, sizes) is None
    return is_as_said and is_the_model(program, module, examples, sizes, device)


@dataclass(frozen=True)
class _Way:
    """A program, and what it asks of sizes.

    Attributes:
        program: What was captured.
        questions: What the model asked of sizes.
        inputs: The shapes of its inputs, as text.
        spans: The sizes from 2 on of each symbol, by name.
        usual: The usual sizes, as numbers of sympy, by symbol.
        conditions: Guards by which code took one of several ways.
        demands: Guards of operators, which sizes have to fulfil on this way.
    """

    program: ExportedProgram
    questions: list[SizeQuestion]
    inputs: str
    spans: Mapping[str, range]
    usual: Mapping[Any, Any]
    conditions: Sequence[Any]
    demands: Sequence[Any]

    @classmethod
    def of(cls, captured: Captured) -> _Way:
        """Reads what a program asks of its sizes."""
        import sympy  # PyTorch has imported it where sizes vary

        program, questions = captured
        env = shape_environment(program.graph.nodes)
        nodes = program.graph.find_nodes(op="placeholder")
        ranges = ShapeRanges.from_placeholders(program.graph_module, None, program.range_constraints)
        guards = [guard for guard in env.guards if not is_assumption(guard)] if env is not None else []
        demands = [guard for guard in guards if _is_demand(guard)]
        ties = [guard for guard in guards if _is_tie(guard)]
        bounds = {**ranges.symbols, **_bounds_of_tied(env, ties, ranges)}
        return cls(
            program,
            questions,
            str([list(map(size_as_asked, getattr(node.meta.get("val"), "shape", ()))) for node in nodes]),
            {name: range(max(low, 2), high + 1) for name, (low, _, high) in bounds.items()},
            {
                symbol: sympy.Integer(max(bounds[str(symbol)][1], 2))
                for symbol in (env.var_to_range if env is not None else ())
                if str(symbol) in bounds
            },
            [guard for guard in guards if not _is_demand(guard)],
            [*demands, *ties],
        )

    def relations(self, guards: Sequence[Any]) -> list[Any]:
        """Returns guards as relations of sympy in the symbols of the program."""
        env = shape_environment(self.program.graph.nodes)
        return [guard.expr if _is_tie(guard) else env.replace(guard.expr) for guard in guards]

    def drop_conditions(self) -> None:
        """Lets the program take the sizes that its conditions refuse."""
        env = shape_environment(self.program.graph.nodes)
        dropped = {id(guard) for guard in self.conditions}
        env.guards[:] = [guard for guard in env.guards if id(guard) not in dropped]
        rewrite_guard_text(self.program)


def _is_demand(guard: Any) -> bool:
    """Whether operators want extents to be equal; of what a model wants to know there is another way."""
    return asker_of(guard) is not Asker.MODEL and relation_name(guard.expr) == "eq"


def _is_tie(guard: Any) -> bool:
    """Whether code found two sizes equal that may differ: they are one in the program, which serves no others."""
    is_of_two = relation_name(guard.expr) == "eq" and all(side.is_Symbol for side in guard.expr.args)
    return is_of_two and asker_of(guard) is Asker.MODEL


def _bounds_of_tied(env: Any, ties: Sequence[Any], ranges: ShapeRanges) -> dict[str, tuple[int, int, int]]:
    """Returns (min, opt, max) of the sizes that a program has no symbol for, as they equal another one."""
    found = {}
    for symbol in {symbol for guard in ties for symbol in guard.expr.args}:
        same, span = ranges.symbols.get(str(env.replace(symbol))), env.var_to_range.get(symbol)
        if same is not None and span is not None and span.upper.is_Integer and str(symbol) not in ranges.symbols:
            found[str(symbol)] = (int(span.lower), same[1], int(span.upper))
    return found


@dataclass(frozen=True)
class _Shares:
    """Which sizes each of some programs takes, as arrays with an axis for each symbol that a guard is about.

    Attributes:
        spans: The sizes of each of these symbols.
        usual: The usual sizes, as numbers of sympy, by symbol.
        fitting: For each program the sizes that fulfil its demands.
        fulfilling: For each program those that fulfil its conditions.
    """

    spans: Mapping[str, range]
    usual: Mapping[Any, Any]
    fitting: Sequence[torch.Tensor]
    fulfilling: Sequence[torch.Tensor]

    @classmethod
    def of(cls, ways: Sequence[_Way]) -> _Shares | None:
        """Computes which sizes programs take; None where nobody can tell, or they have other inputs."""
        first = ways[0]
        if any((way.inputs, way.spans) != (first.inputs, first.spans) for way in ways):
            return None
        demands = [way.relations(way.demands) for way in ways]
        conditions = [way.relations(way.conditions) for way in ways]
        relations = [relation for asked in (*demands, *conditions) for relation in asked]
        names = sorted({str(symbol) for relation in relations for symbol in relation.free_symbols})
        if not names or not first.spans.keys() >= set(names):
            return None
        spans = {name: first.spans[name] for name in names}
        if not 0 < math.prod(map(len, spans.values())) <= MOST_COMBINATIONS:
            return None
        grid = SizeGrid(spans)
        found = {relation: grid.holds(relation) for relation in relations}
        holds = {relation: places for relation, places in found.items() if places is not None}
        if holds.keys() != found.keys():
            return None
        everywhere = torch.ones([len(span) for span in spans.values()], dtype=torch.bool, device="cpu")

        def all_hold(asked: Sequence[Any]) -> torch.Tensor:
            return functools.reduce(operator.and_, (holds[relation] for relation in asked), everywhere)

        return cls(spans, first.usual, list(map(all_hold, demands)), list(map(all_hold, conditions)))

    def left(self) -> dict[Any, Any] | None:
        """Returns the sizes next to the usual ones that no program takes, by symbol; None where there are no such.

        Operators may demand what follows from the way that was taken: of what was not cropped, that nothing had to be.
        """
        fits = functools.reduce(operator.or_, self.fitting)
        left = self._places(fits & ~self._taken())
        if not left and len(self.fitting) == 1:
            left = self._places(~self.fulfilling[0])
        return self._sizes(self._nearest(left)) if left else None

    def refused(self, index: int) -> list[dict[Any, Any]] | None:
        """Returns some sizes of each other program that one refuses; None where it cannot be for some of them."""
        each = self._taken_by_each()
        if any((taken & ~self.fitting[index]).any() for taken in each):
            return None
        samples: dict[tuple[int, ...], None] = {}
        for taken in each:  # what is asked at the sizes of one program says nothing of those of another
            if places := self._places(taken & ~self.fulfilling[index]):
                chosen = (places[0], places[len(places) // 2], places[-1], self._nearest(places))
                samples.update(dict.fromkeys(map(tuple, chosen)))
        return [self._sizes(place) for place in samples]

    def _taken(self) -> torch.Tensor:
        """The sizes that any program takes."""
        return functools.reduce(operator.or_, self._taken_by_each())

    def _taken_by_each(self) -> list[torch.Tensor]:
        return [fits & fulfils for fits, fulfils in zip(self.fitting, self.fulfilling, strict=True)]

    def _places(self, flags: torch.Tensor) -> list[list[int]]:
        """Sizes for which a flag is set, in the order of the symbols."""
        spans = list(self.spans.values())
        return [[span[at] for span, at in zip(spans, place, strict=True)] for place in flags.nonzero().tolist()]

    def _nearest(self, places: Sequence[Sequence[int]]) -> Sequence[int]:
        known = {str(symbol): int(size) for symbol, size in self.usual.items()}
        return min(
            places, key=lambda sizes: sum(abs(size - known[name]) for name, size in zip(self.spans, sizes, strict=True))
        )

    def _sizes(self, place: Sequence[int]) -> dict[Any, Any]:
        import sympy  # PyTorch has imported it where sizes vary

        named = dict(zip(self.spans, place, strict=True))
        return {symbol: sympy.Integer(named.get(str(symbol), size)) for symbol, size in self.usual.items()}
