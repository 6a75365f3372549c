"""Small random programs: views, in-place operators, graph breaks, state of modules, contexts, results of all kinds.

A program is a list of steps, each on one of the values that there are by then. A step that a value does not admit (the
diagonal of a vector) leaves the values alone, so every list of steps is a program, and each part of one is a program.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import model_changes
import torch
from hypothesis import strategies as st
from torch_compile_programs import Model, matrix

Values = list[torch.Tensor]
Step = Callable[[Any, Values, int], None]
Pair = namedtuple("Pair", ["first", "last"])


@dataclass
class Record:
    """Results in fields that PyTorch does not know as a structure."""

    first: torch.Tensor
    rest: list[torch.Tensor]
    nothing: None = None


LOOSE: Final = frozenset({"autocast", "bfloat16"})
"""Steps that round to 8 bits: kernels and the operators they are made of differ in the last one."""


def _value(compute: Callable[[Any, torch.Tensor], torch.Tensor], dims: int = 0) -> Step:
    """A step that makes a value out of one that has at least so many dimensions."""

    def step(model: Any, values: Values, at: int) -> None:
        if values[at].dim() >= dims:
            values.append(compute(model, values[at]))

    return step


def _several(compute: Callable[[torch.Tensor], Sequence[torch.Tensor]]) -> Step:
    def step(model: Any, values: Values, at: int) -> None:
        if values[at].dim():
            values.extend(compute(values[at])[:2])

    return step


def _write(compute: Callable[[torch.Tensor], Any], dims: int = 0) -> Step:
    """A step that writes to a value; what it returns, the value itself, is one more value."""

    def step(model: Any, values: Values, at: int) -> None:
        if values[at].dim() >= dims and _is_writable(values[at]):
            result = compute(values[at])
            if isinstance(result, torch.Tensor):
                values.append(result)

    return step


def _is_writable(x: torch.Tensor) -> bool:
    """Whether there is something to write to that has a place of its own in memory, in a type that counts."""
    has_places = all(stride or extent == 1 for extent, stride in zip(x.shape, x.stride(), strict=True))
    return bool(x.numel()) and has_places and x.dtype is not torch.bool


def _layer(compute: Callable[[Any, torch.Tensor], torch.Tensor]) -> Step:
    """A step that runs layers of the model on the input."""
    return lambda model, values, at: values.append(compute(model, values[0]))


def _inside(context: Callable[[], Any], compute: Callable[[Any, torch.Tensor], torch.Tensor]) -> Step:
    def step(model: Any, values: Values, at: int) -> None:
        with context():
            result = compute(model, values[0])
        values.append(result)

    return step


def _write_after_a_break(model: Any, values: Values, at: int) -> None:
    """Writes to a view that was taken before the graph breaks, of something that is used behind it."""
    if values[at].dim() and _is_writable(values[at]):
        view = values[at][..., :1]
        torch._dynamo.graph_break()
        view.add_(1)
        values.append(values[at] * 2)


def _write_to(compute: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Step:
    """A step that writes its result to a tensor given as `out`."""

    def step(model: Any, values: Values, at: int) -> None:
        if values[at].dtype is not torch.bool:
            values.append(compute(values[at], torch.empty_like(values[at])))

    return step


def _keep_in_containers(model: Any, values: Values, at: int) -> None:
    model.kept["last"] = values[at].abs().sum() if values[at].is_complex() else values[at].float().sum()
    model.kept["all"] = [*model.kept["all"][-1:], model.plain * 2]
    values.append(model.kept["last"] + model.kept["all"][0])


def _count(model: Any, values: Values, at: int) -> None:
    model.call_count = model.call_count + 1
    values.append(values[at] + model.call_count)


VIEWS: dict[str, Step] = {
    "transpose": _value(lambda m, x: x.transpose(0, -1), 1),
    "slice": _value(lambda m, x: x[..., 1:] if x.shape[-1] > 2 else x[..., :1], 1),
    "step": _value(lambda m, x: x[..., ::2], 1),
    "select": _value(lambda m, x: x[:1], 1),
    "nothing of it": _value(lambda m, x: x[:0], 1),
    "reshape": _value(lambda m, x: x.reshape(-1, 1)),
    "view": _value(lambda m, x: x.view(-1) if x.is_contiguous() else x.t() if x.dim() == 2 else x.detach()),
    "expand": _value(lambda m, x: x.unsqueeze(0).expand(2, *x.shape)),
    "squeeze": _value(lambda m, x: x.squeeze()),
    "diagonal": _value(lambda m, x: x.diagonal(), 2),
    "move": _value(lambda m, x: x.movedim(0, -1), 2),
    "windows": _value(lambda m, x: x.unfold(-1, 2, 1) if x.shape[-1] > 2 else x.detach(), 1),
    "as strided": _value(lambda m, x: x.as_strided((2,), (1,)) if x.is_contiguous() and x.numel() > 2 else x),
    "contiguous": _value(lambda m, x: x.contiguous()),
    "detach": _value(lambda m, x: x.detach()),
    "alias": _value(lambda m, x: x),
    "chunk": _several(lambda x: x.chunk(2, -1)),
    "split": _several(lambda x: x.split(1, -1)),
    "unbind": _several(lambda x: x.unbind(0)),
    "real part": _value(lambda m, x: x.real if x.is_complex() else x),
    "bits": _value(lambda m, x: x.view(torch.int32) if x.dtype is torch.float32 else x),
}

WRITES: dict[str, Step] = {
    "multiply in place": _write(lambda x: x.mul_(2)),
    "add to a part": _write(lambda x: x[:1].add_(1), 1),
    "copy in place": _write(lambda x: x.copy_(x.clone() * 2)),
    "fill": _write(lambda x: x.fill_(1)),
    "set an item": _write(lambda x: x.__setitem__(0, 2), 1),
    "set a column": _write(lambda x: x.select(-1, 0).zero_(), 1),
    "write behind a break": _write_after_a_break,
    "add to itself": _write(lambda x: x.add_(x)),
    "transpose in place": lambda m, v, at: v.append(v[at].t_()) if at and v[at].dim() == 2 else None,
}

STATE: dict[str, Step] = {
    "count in a buffer": lambda m, v, at: m.count.add_(1),
    "count in Python": _count,
    "assign": lambda m, v, at: setattr(m, "hidden", m.hidden * 0.5 + v[at].float().sum()),
    "assign a plain tensor": lambda m, v, at: setattr(m, "plain", m.plain * 0.5),
    "write to the cache": lambda m, v, at: m.cache[1:].add_(v[at].float().sum()),
    "read state": _value(lambda m, x: m.hidden * m.count + x.sum()),
    "a plain tensor": _layer(lambda m, x: x * m.plain.sum()),
    "a view of the cache": _layer(lambda m, x: m.cache[1:]),
    "a weight": _layer(lambda m, x: m.linear.weight),
    "a view of a weight": _layer(lambda m, x: m.linear.weight.t()[1:]),
    "the cache of a module": lambda m, v, at: m.layers[2].cache[:1].add_(1),
    "a passing buffer": _layer(lambda m, x: x * m.passing.mul_(2).sum()),
    "keep in containers": _keep_in_containers,
    "train": lambda m, v, at: m.train() and None,
}

COMPUTATIONS: dict[str, Step] = {
    "add": _value(lambda m, x: x + 1),
    "relu": _value(lambda m, x: torch.relu(x) if x.dtype is not torch.bool else x),
    "product": _value(lambda m, x: x * x.sum()),
    "clone": _value(lambda m, x: x.clone()),
    "flip": _value(lambda m, x: x.flip(0), 1),
    "softmax": _value(lambda m, x: x.float().softmax(-1), 1),
    "cat": _value(lambda m, x: torch.cat([x, x]), 1),
    "where": _value(lambda m, x: torch.where(x > 0, x, 0)),
    "index": _value(lambda m, x: x[[0, 0]] if x.shape[0] else x, 1),
    "sum": _value(lambda m, x: x.sum()),
    "out": _write_to(lambda x, out: torch.mul(x, 2, out=out)),
    "out of a view": _write_to(lambda x, out: torch.neg(x, out=out[...])),
    "complex": _value(lambda m, x: torch.complex(x, x) if x.dtype is torch.float32 else x),
    "float16": _value(lambda m, x: x.to(torch.float16)),
    "uint8": _value(lambda m, x: (x > 0).to(torch.uint8)),
    "int32": _value(lambda m, x: x.to(torch.int32)),
    "zeros": _value(lambda m, x: torch.zeros_like(x)),
    "constant": _layer(lambda m, x: torch.full((2, 2), 3.0)),
    "float64": _value(lambda m, x: x.double()),
    "bfloat16": _value(lambda m, x: x.to(torch.bfloat16)),
    "int64": _value(lambda m, x: (x * 3).to(torch.int64)),
    "bool": _value(lambda m, x: x > 0),
    "linear": _layer(lambda m, x: m.linear(x)),
    "tied layers": _layer(lambda m, x: m.tied(m.linear(x))),
    "a list of layers": _layer(lambda m, x: m.layers[1](m.layers[0](x))),
    "norm": _layer(lambda m, x: m.row_norm(x) if x.shape[0] > 1 and x.dim() == 2 else x * 1),
    "layer norm": _layer(lambda m, x: torch.layer_norm(x, [4])),
    "random": _layer(lambda m, x: torch.rand(2)),
    "dropout": _layer(lambda m, x: torch.dropout(x, 0.5, True)),
    "size": _layer(lambda m, x: x * x.shape[0]),
}

FLOW: dict[str, Step] = {
    "break": lambda m, v, at: torch._dynamo.graph_break(),
    "branch": _value(lambda m, x: x * 2 if float(x.float().sum()) > 0 else x - 1 if x.dtype is not torch.bool else x),
    "no gradients": _inside(torch.no_grad, lambda m, x: m.linear(x) * 2),
    "gradients": _inside(torch.enable_grad, lambda m, x: m.linear(x).detach() * 2),
    "inference mode": _inside(torch.inference_mode, lambda m, x: x * 2),
    "autocast": _inside(lambda: torch.autocast("cpu", torch.bfloat16), lambda m, x: m.linear(x)),
}

STEPS: Final = {**VIEWS, **WRITES, **STATE, **COMPUTATIONS, **FLOW}


def growing(call: int) -> Sequence[torch.Tensor]:
    """(3 + call, 4)."""
    return (torch.randn(3 + call, 4),)


def shrinking(call: int) -> Sequence[torch.Tensor]:
    """(3, 4), (1, 4), (2, 4)."""
    return (torch.randn((3, 1, 2)[call % 3], 4),)


def transposed(call: int) -> Sequence[torch.Tensor]:
    """(3, 4), of which columns lie next to each other."""
    return (torch.randn(4, 3).t(),)


def sliced(call: int) -> Sequence[torch.Tensor]:
    """(3, 4), every other element of its memory."""
    return (torch.randn(3, 8)[:, ::2],)


def expanded(call: int) -> Sequence[torch.Tensor]:
    """(3, 4), of which all rows are one."""
    return (torch.randn(1, 4).expand(3, 4),)


def images(call: int) -> Sequence[torch.Tensor]:
    """(2, 3, 4, 4), channels last."""
    return (torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),)


def overlapping(call: int) -> Sequence[torch.Tensor]:
    """(4, 4), and the last three of its rows."""
    base = torch.randn(4, 4)
    return base, base[1:]


def twice(call: int) -> Sequence[torch.Tensor]:
    """(3, 4), twice."""
    x = torch.randn(3, 4)
    return x, x


def with_scalar(call: int) -> Sequence[torch.Tensor]:
    """(3, 4), and one number."""
    return torch.randn(3, 4), torch.tensor(call + 0.5)


def differentiable(call: int) -> Sequence[torch.Tensor]:
    """(3, 4), of which a gradient could be asked for."""
    return (torch.randn(3, 4, requires_grad=True),)


def of_inference(call: int) -> Sequence[torch.Tensor]:
    """(3, 4), made in inference mode, and so not to be written to outside."""
    with torch.inference_mode():
        return (torch.randn(3, 4),)


INPUTS: Final = (
    *(matrix, growing, shrinking, transposed, sliced, expanded, images, overlapping, twice, with_scalar),
    *(differentiable, of_inference),
)

STRUCTURES: Final[dict[str, Callable[[Values], Any]]] = {
    "list": list,
    "tuple": tuple,
    "dict": lambda values: {"first": values[0], "all": values, "none": None},
    "fields": lambda values: Pair(values[0], values[-1]),
    "record": lambda values: Record(values[0], values),
    "alone": lambda values: values[0],
    "nothing": lambda values: None,
    "nested": lambda values: (values[0], (values[-1], {"again": values[0]}), 3, "text"),
}


CHANGES: Final = (
    None,
    model_changes.write,
    model_changes.replace_parameter,
    model_changes.replace_data,
    model_changes.swap,
    model_changes.write_to_a_buffer,
    model_changes.write_in_inference_mode,
    model_changes.write_to_a_view,
    model_changes.load_by_assignment,
    model_changes.freeze_in_part,
    model_changes.write_to_plain_tensors,
    model_changes.parametrize,
    model_changes.train_and_evaluate,
)
"""What happens to a model between its calls."""


@dataclass(frozen=True)
class Program:
    """A program, and how it is called.

    Attributes:
        steps: What it does: the name of a step, and which value, counted modulo how many there are.
        results: Which values it returns, in the same way.
        structure: What they are returned in.
        inputs: Makes the inputs of a call.
        dynamic: As `torch.compile` takes it.
        change: What happens between calls.
        grad: Whether gradients are recorded.
        precision: What engines compute in.
    """

    steps: tuple[tuple[str, int], ...]
    results: tuple[int, ...]
    structure: str = "list"
    inputs: Callable[[int], Sequence[torch.Tensor]] = matrix
    dynamic: bool | None = None
    change: Callable[[Any, int], None] | None = None
    grad: bool = False
    precision: torch.dtype = torch.float32

    def make(self) -> Model:
        """Returns a model that runs the program."""

        def function(model: Model, *inputs: torch.Tensor) -> Any:
            values = list(inputs)
            for name, at in self.steps:
                STEPS[name](model, values, at % len(values))
            return STRUCTURES[self.structure]([values[at % len(values)] for at in self.results])

        return Model(function).eval()

    @property
    def tolerance(self) -> float:
        """How far results may lie apart, relative to their magnitude."""
        return 3e-2 if any(name in LOOSE for name, _ in self.steps) else 1e-4


def programs() -> st.SearchStrategy[Program]:
    """Draws programs of one to eight steps."""
    step = st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 7))
    return st.builds(
        Program,
        steps=st.lists(step, min_size=1, max_size=8).map(tuple),
        results=st.lists(st.integers(0, 9), min_size=1, max_size=4).map(tuple),
        structure=st.sampled_from(sorted(STRUCTURES)),
        inputs=st.sampled_from(INPUTS),
        dynamic=st.sampled_from([None, True, False]),
        change=st.sampled_from(CHANGES),
        grad=st.sampled_from([False, False, False, True]),
        precision=st.sampled_from([torch.float32] * 4 + [torch.float16, torch.bfloat16]),
    )
