"""Captures a module as an exported program.

Where sizes vary, `torch.export` counts an input that a model takes through `**keywords` twice, under its own name and
in the dict of its parameter, and fails on the difference. So each gets a parameter of its own in the signature while
the model is exported, which means the same call.

PyTorch takes for granted that a size which varies is at least 2. So `if x.shape[0] == 1` has an answer while a model is
captured, and nothing remembers that it was asked: the program is that of larger sizes, also where 1 was asked for. What
the model's code asks of sizes is noted here, for whoever wants to know.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import itertools
import operator
import os
import re
import sys
import textwrap
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

import torch

from trt_core import ExportError
from trt_core.held_arguments import held_to_signature
from trt_core.log import unlogged
from trt_core.nesting import distinct_tensors
from trt_core.paused_collection import paused_collection
from trt_core.sizes.guards import Asker, condition_of
from trt_core.temporary import undone_in_forks, with_attributes
from trt_lowering.captured_collectives import CaptureRefusal, functional_collectives
from trt_lowering.decomposition_table import declare_results
from trt_lowering.internals import graphs_lazy
from trt_lowering.tracing import asked_by, sizes_evaluated_by, strides_unguarded, tracing_lock
from trt_lowering.whole_operators import keep_recurrent_layers

_OWN_CODE: Final = os.path.dirname(__file__) + os.sep


@dataclass(frozen=True)
class SizeQuestion:
    """A comparison of sizes by which a model chose its way, or a size that it read as a number of Python's.

    Attributes:
        answer: What holds for the sizes that the model was captured for, a relation of sympy.
        place: `file:line` that asked.
        is_number: Whether a number was asked for, as `int(0.7 * height)` does, and not whether something holds.
    """

    answer: Any
    place: str
    is_number: bool = False

    def fixes(self, size: int) -> bool:
        """Whether the answer holds for one size, and not for the next."""
        if len(self.answer.free_symbols) != 1:
            return False
        (symbol,) = self.answer.free_symbols
        return bool(self.answer.subs(symbol, size)) and not self.answer.subs(symbol, size + 1)


def masks_as_they_are() -> contextlib.AbstractContextManager[None]:
    """Keeps `nn.Transformer` from comparing a mask with the causal one; hold the `tracing_lock` around it.

    It asks for the values of the mask to choose a faster kernel, not another result: with `is_causal=False` the mask
    that was given is what is added to the scores.
    """

    def is_causal(mask: Any, is_causal: bool | None = None, size: Any = None) -> bool:
        return is_causal is True

    return with_attributes(torch.nn.modules.transformer, _detect_is_causal_mask=is_causal)


def copies_recorded() -> contextlib.AbstractContextManager[None]:
    """Records `contiguous` of what is dense in the example, too; hold the `tracing_lock` around it.

    PyTorch returns the very tensor then, and tells nobody: the program would return, or write to, an input that lies
    otherwise when it is called.
    """
    from trt_core.internals import FakeTensor  # costly to import

    contiguous = torch.Tensor.contiguous

    @functools.wraps(contiguous)
    def recorded(self: torch.Tensor, *given: Any, **options: Any) -> torch.Tensor:
        made = contiguous(self, *given, **options)
        if made is not self or type(self) is not FakeTensor:
            return made
        # of another object: the trace knows a tensor by the operator that returned it last
        found: torch.Tensor = torch.ops.aten.contiguous.default(torch.ops.aten.alias.default(self), *given, **options)
        return found

    return with_attributes(torch.Tensor, contiguous=recorded)


def data_followed() -> contextlib.AbstractContextManager[None]:
    """Records `x.data` as `x.detach()`; hold the `tracing_lock` around it.

    PyTorch makes a constant of it: the number that it has in the example, or a fake tensor, which it refuses.
    """
    from trt_core.internals import FakeTensor  # costly to import

    data: Any = torch.Tensor.data

    def read(self: torch.Tensor) -> Any:
        return self.detach() if type(self) is FakeTensor else data.__get__(self)

    def write(self: torch.Tensor, value: Any) -> None:
        data.__set__(self, value)

    return with_attributes(torch.Tensor, data=property(read, write))


def places_followed() -> contextlib.AbstractContextManager[None]:
    """Captures `cache[:, :, place] = rows`, `place` a tensor of one number, as a write to `cache.select(2, place)`.

    PyTorch makes a number of that tensor, which it cannot know while it captures, where it can in `select`. Hold the
    `tracing_lock` around it.
    """
    from trt_core.internals import FakeTensor  # costly to import

    put: Any = torch.Tensor.__setitem__

    @functools.wraps(put)
    def written(self: torch.Tensor, index: Any, value: Any) -> None:
        parts = index if isinstance(index, tuple) else (index,)
        if type(self) is not FakeTensor or not any(map(_is_place, parts)) or not all(map(_is_plain, parts)):
            put(self, index, value)
            return
        part = self[index]
        while isinstance(value, torch.Tensor) and value.dim() > part.dim() and value.shape[0] == 1:
            value = value[0]  # as PyTorch takes values of more dimensions
        part.copy_(value) if isinstance(value, torch.Tensor) else part.fill_(value)

    return with_attributes(torch.Tensor, __setitem__=written)


def _is_place(part: Any) -> bool:
    """Whether a part of an index is a tensor of one number, which is no mask."""
    return isinstance(part, torch.Tensor) and not part.dim() and part.dtype in (torch.int64, torch.int32)


def _is_plain(part: Any) -> bool:
    """Whether what a part of an index takes is a view."""
    is_number = isinstance(part, (int, torch.SymInt)) and not isinstance(part, bool)
    return part is None or part is Ellipsis or isinstance(part, slice) or is_number or _is_place(part)


@contextlib.contextmanager
def infinities_clamped() -> Iterator[None]:
    """Captures both ways of an `if` that clamps a tensor where it has infinities; hold the `tracing_lock` around it.

    Layers of Bart and others have one for float16. The clamp is captured, and behind it a choice, which takes the
    tensor itself where the condition does not hold.
    """
    from trt_core.internals import FakeTensor  # costly to import

    truth, clamp = torch.Tensor.__bool__, torch.clamp
    asked: list[tuple[torch.Tensor, torch.Tensor]] = []

    def answer(self: torch.Tensor) -> bool:
        frame = sys._getframe(1)
        found = _clamp_at(frame) if type(self) is FakeTensor else None
        if found is None:
            return truth(self)
        is_negated = found["negated"] is not None
        asked.append((frame.f_locals[found["clamped"]], ~self if is_negated else self))
        return not is_negated

    @functools.wraps(clamp)
    def chosen(x: torch.Tensor, *given: Any, **options: Any) -> torch.Tensor:
        made = clamp(x, *given, **options)
        if not asked or asked[-1][0] is not x:
            return made
        return torch.where(asked.pop()[1], made, x)

    with with_attributes(torch.Tensor, __bool__=answer), with_attributes(torch, clamp=chosen):
        yield


_CLAMPS: Final = re.compile(
    r"if (?:\w+\.dtype == torch\.\w+ and )?"
    r"(?P<negated>\(?not )?torch\.is(?:finite|inf)\((?P<clamped>\w+)\)\.(?:all|any)\(\)\)?:\n"
    r"(?: +\w+ = torch\.finfo\(.*\n)* +(?P=clamped) = torch\.clamp\((?P=clamped), .*\)"
)
"""An `if` that does nothing but clamp what it looks for infinities in, as `ast.unparse` writes it."""


def _clamp_at(frame: FrameType) -> re.Match[str] | None:
    """The `if` whose condition a frame is at, where it is one of `_CLAMPS`."""
    try:
        lines, first = inspect.getsourcelines(frame)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, SyntaxError):  # of no file, or changed since
        return None
    place = frame.f_lineno - first + 1
    tests = (node for node in ast.walk(tree) if isinstance(node, ast.If) and node.test.lineno <= place)
    nearest = max(tests, key=lambda node: node.test.lineno, default=None)
    return None if nearest is None else _CLAMPS.fullmatch(ast.unparse(nearest))


def steps_left_open() -> contextlib.AbstractContextManager[None]:
    """Lets `torch.linspace` take a number of steps that varies; hold the `tracing_lock` around it.

    Its schema reads the number as one of Python's, which fixes it.
    """
    linspace = torch.linspace

    @functools.wraps(linspace)
    def left_open(start: Any, end: Any, *given: Any, **options: Any) -> torch.Tensor:
        steps = given[0] if given else options.get("steps")
        dtype = options.get("dtype") or torch.get_default_dtype()
        is_plain = isinstance(start, (int, float)) and isinstance(end, (int, float)) and options.get("out") is None
        if not isinstance(steps, torch.SymInt) or not is_plain or dtype not in _FLOATS:
            return linspace(start, end, *given, **options)
        count: Any = steps
        places = torch.arange(count, dtype=torch.float32, device=options.get("device"))
        step = float(end - start) / torch.sym_max(steps - 1, 1)
        # from the nearer end, as PyTorch's kernels count
        found = torch.where(
            places < torch.sym_max(steps // 2, 1), start + places * step, end - (count - 1 - places) * step
        )
        return found.to(dtype).requires_grad_(options.get("requires_grad", False))

    return with_attributes(torch, linspace=left_open)


_FLOATS: Final = (torch.float32, torch.float16, torch.bfloat16)


@contextlib.contextmanager
def transforms_traced_through() -> Iterator[None]:
    """Records what `torch.func.grad`, `torch.vmap` and their kin compute; hold the `tracing_lock` around it.

    Export records the steps that they take instead: where each begins, and which tensors it wraps. Those that compute
    gradients cannot be traced again, and some cannot be captured at all.
    """
    from trt_lowering.internals import eager_transforms, mapping

    @contextlib.contextmanager
    def level(begin: Any, *given: Any) -> Iterator[Any]:
        with _operators_below_transforms(), begin(*given) as number:
            yield number

    def gradients(*given: Any, **options: Any) -> Any:
        with _operators_below_transforms():
            return computed(*given, **options)

    computed: Any = eager_transforms._autograd_grad
    levels = {name: functools.partial(level, getattr(eager_transforms, name)) for name in _LEVELS}
    with (
        with_attributes(eager_transforms, _autograd_grad=gradients, **levels),
        with_attributes(mapping, vmap_increment_nesting=functools.partial(level, mapping.vmap_increment_nesting)),
    ):
        yield


_LEVELS: Final = ("grad_increment_nesting", "jvp_increment_nesting")


@contextlib.contextmanager
def _operators_below_transforms() -> Iterator[None]:
    """Lets a trace of export see the operators that a transform calls, on the tensors that it wraps."""
    from trt_lowering.internals import proxies_off, proxy_tensor

    mode = proxy_tensor.get_proxy_mode()
    if mode is None or not mode.pre_dispatch:
        yield
        return
    below = proxy_tensor.ProxyTorchDispatchMode(
        mode.tracer,
        mode.tracing_mode,
        _allow_fake_constant=mode._allow_fake_constant,
        _error_on_data_dependent_ops=mode._error_on_data_dependent_ops,
    )
    with proxies_off(), proxy_tensor._temp_remove_pre_dispatch_torch_function_mode(), below:
        yield


def frames_read_once() -> contextlib.AbstractContextManager[None]:
    """Keeps PyTorch from reading the same lines of source for each node; hold the `tracing_lock` around it.

    Each node of a graph that is traced keeps where it comes from, some 70 frames of which most are those of others.
    """
    from trt_lowering.internals import tracebacks

    read, place = functools.cache(traceback.FrameSummary), operator.itemgetter("filename", "line", "name")

    def summarize(frames: Sequence[Any], skip: int) -> traceback.StackSummary:
        return traceback.StackSummary(itertools.starmap(read, map(place, reversed(frames[skip:]))))

    return with_attributes(tracebacks, _extract_symbolized_tb=summarize)


def operators_asked_anew() -> contextlib.AbstractContextManager[Any]:
    """Keeps fake tensors from remembering what operators make of sizes that vary; hold the `tracing_lock` around it.

    A third of a capture goes into the keys, and into making the same extents and strides of what is found again.
    """
    from trt_lowering.internals import dynamo_config

    settings: Any = dynamo_config
    patched: contextlib.AbstractContextManager[Any] = settings.patch(fake_tensor_cache_enabled=False)
    return patched


def watch_size_questions(found: list[SizeQuestion]) -> contextlib.AbstractContextManager[None]:
    """Notes what code of models asks of sizes in this thread; hold the `tracing_lock` around it.

    Args:
        found: Gets the questions, each once.
    """
    from trt_core.internals import ShapeEnv  # costly to import

    evaluate: Any = ShapeEnv.evaluate_expr
    thread = threading.get_ident()
    known: set[tuple[Any, Any]] = set()

    def noting(self: Any, expression: Any, *args: Any, **kwargs: Any) -> Any:
        answer = evaluate(self, expression, *args, **kwargs)
        is_general = any(args[2:]) or kwargs.get("size_oblivious") or kwargs.get("fallback_value") is not None
        if is_general or threading.get_ident() != thread or not expression.free_symbols:
            return answer
        if (key := (expression, answer)) in known:
            return answer
        # whoever reads a size as a number leaves it no other value
        asker, place = asked_by(past_operators=expression.is_Symbol)
        if asker is Asker.MODEL:
            known.add(key)
            is_number = not (expression.is_Relational or expression.is_Boolean)
            found.append(SizeQuestion(condition_of(expression, answer), place, is_number))
        return answer

    return sizes_evaluated_by(noting)


def watch_numbers(
    module: torch.nn.Module, found: dict[str, tuple[float, float]]
) -> contextlib.AbstractContextManager[None]:
    """Notes which numbers of Python's a model changes in this thread; hold the `tracing_lock` around it.

    Export puts them back as they were, and programs know no others.

    Args:
        module: The model.
        found: Gets the number before and after, by the path of the attribute.
    """
    keep, thread = torch.nn.Module.__setattr__, threading.get_ident()

    def noting(self: torch.nn.Module, name: str, value: Any) -> None:
        old: Any = vars(self).get(name) if type(value) in _NUMBERS else None
        if type(old) in _NUMBERS and old != value and threading.get_ident() == thread:
            path = next((path for path, part in torch.nn.Module.named_modules(module) if part is self), None)
            if path is not None:
                found.setdefault(f"{path}.{name}" if path else name, (old, value))
        keep(self, name, value)

    return with_attributes(torch.nn.Module, __setattr__=noting)


_NUMBERS: Final = (int, float)


def graphs_unprinted() -> contextlib.AbstractContextManager[None]:
    """Keeps PyTorch from printing the graph up to a failure, which may be long; hold the `tracing_lock` around it."""
    from trt_lowering.internals import export_trace

    # its name for the builtin, which nothing else there calls
    return with_attributes(export_trace, print=lambda *_, **__: None)


@held_to_signature
def export_module(
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    strict: bool = False,
    questions: list[SizeQuestion] | None = None,
    changes: dict[str, tuple[float, float]] | None = None,
) -> torch.export.ExportedProgram:
    """Exports a module with `torch.export.export`, one at a time: threads wait for each other.

    Args:
        module: The model, in the mode (training or evaluation) that it is captured in.
        args: Example positional inputs.
        kwargs: Example keyword inputs.
        dynamic_shapes: Which dimensions are dynamic, as `torch.export.export` takes it.
        strict: Capture through TorchDynamo, which refuses what it cannot prove; otherwise run the Python code.
        questions: Gets what the code of the model asked of its sizes, where it is given.
        changes: Gets which numbers of its own the code of the model changes, where it is given; see `watch_numbers`.

    Raises:
        ExportError: The model could not be captured; the message says why, and what to change.
    """
    declare_results()
    _put_absent_buffers_last(module)
    try:
        examples = distinct_tensors(tuple(args), dict(kwargs or {}))
        with (
            tracing_lock(),
            paused_collection(),
            keep_recurrent_layers(),
            strides_unguarded(),
            contextlib.nullcontext() if questions is None else watch_size_questions(questions),
            contextlib.nullcontext() if changes is None or strict else watch_numbers(module, changes),
            functional_collectives(),
            masks_as_they_are(),
            copies_recorded(),
            data_followed(),
            contextlib.nullcontext() if strict else _code_followed(),
            transforms_traced_through(),
            frames_read_once(),
            contextlib.nullcontext() if dynamic_shapes is None else operators_asked_anew(),
            graphs_unprinted(),
            graphs_lazy(not strict),  # nobody runs the code of a graph between steps; only Dynamo wants it
            undone_in_forks(_weights_returned(module)),  # a capture has others in their places, without data
            keywords_named(module, examples[1], dynamic_shapes) as dims,
            unlogged("torch._subclasses.fake_tensor"),  # a trace of PyTorch's own code, before what it raises
        ):
            return torch.export.export(module, *examples, dynamic_shapes=dims, strict=strict)
    except Exception as error:  # export fails in many ways, with many types
        raise ExportError(
            f"{type(module).__name__} cannot be exported",
            where=_place(error),
            why=f"{type(error).__name__}: {_summary(error)}",
            hint=_advice(error, module, strict=strict, has_dynamic_shapes=dynamic_shapes is not None),
        ) from error


@contextlib.contextmanager
def _code_followed() -> Iterator[None]:
    """What running the code of a model would decide for the example alone."""
    with infinities_clamped(), steps_left_open(), places_followed():
        yield


def _put_absent_buffers_last(module: torch.nn.Module) -> None:
    """Gives buffers that are None the last places: export tells the others by their order, and counts these too."""
    held = vars(module).get("_buffers", {})
    if any(value is None for value in held.values()):
        vars(module)["_buffers"] = dict(sorted(held.items(), key=lambda item: item[1] is None))


_TABLES: Final = ("_parameters", "_buffers")


def _weights_returned(module: torch.nn.Module) -> Callable[[], None]:
    """Returns what puts the present parameters and buffers of a module into their places again."""
    parts = torch.nn.Module.modules(module)  # a model may have a part of that name
    tables: list[dict[str, Any]] = [getattr(part, name) for part in parts for name in _TABLES]
    held = [(table, dict(table)) for table in tables]

    def put_back() -> None:
        for table, before in held:
            table.clear()
            table.update(before)

    return put_back


def _advice(error: BaseException, module: torch.nn.Module, *, strict: bool, has_dynamic_shapes: bool) -> str:
    kind, text = type(error).__name__, str(error)
    if isinstance(error, CaptureRefusal):
        return error.hint
    if "onstraint" in kind or "onstraints violated" in text or "inferred ranges from model tracing" in text:
        return (
            "the model needs the named dimension to be fixed or related to another one: give it one size in the Input, "
            "or the range that the message suggests"
        )
    if "DataDependent" in kind or "data-dependent" in text:
        return (
            "the model branches on, or makes shapes from, the values of a tensor: write it with torch.where or "
            f"torch.cond, or bound the value with torch._check; or compile {_part_to_compile(module)}, "
            'or use torch.compile(model, backend="torch_tensorrt"), which runs such code in PyTorch; or, as for '
            "detection models of torchvision, compile the file that torch.onnx.export(model, args, 'model.onnx', "
            "dynamo=False) writes"
        )
    if "classes.quantized" in text or "QuantizedC" in text:
        return (
            "its weights are packed for PyTorch's quantized kernels: quantize the float model with "
            "trt_frontends.quantize, or with torchao, whose models export"
        )
    if "not a known type" in text and "in output" in text:
        return (
            "the model returns an object of a class that PyTorch does not know as a structure: register the class with "
            "torch.export.register_dataclass or torch.utils._pytree.register_pytree_node, or return a tuple or a dict"
        )
    parts = torch.nn.Module.named_modules(module)  # a model may have a part of that name
    scripted = next((name for name, part in parts if isinstance(part, torch.jit.ScriptModule)), None)
    if isinstance(error, TypeError) and scripted is not None:
        return (
            f"export cannot call {scripted}, which torch.jit.script made: put the module that it was made of into its "
            "place, or what torch.jit.freeze makes of it"
        )
    if isinstance(error, TypeError) and ("argument" in text or "forward()" in text):
        return "check the example inputs against the signature of the module's forward method"
    if kind in ("RuntimeError", "IndexError", "KeyError", "AttributeError", "ValueError"):
        return (
            "run the module on the same example inputs: if it fails there as well, mend that; if it does not, "
            'torch.compile(model, backend="torch_tensorrt") runs in PyTorch what cannot be captured'
        )
    if strict:
        return "try strict=False, which runs the Python code instead of analysing it"
    if has_dynamic_shapes:
        return "export with static shapes first, to see whether dynamic dimensions are the cause"
    return "call the module on the example inputs first; if that works, try strict=True"


def _part_to_compile(module: torch.nn.Module) -> str:
    """Names the child that holds most of the parameters, as the backbone of a detection model does."""
    sizes = {name: sum(value.numel() for value in child.parameters()) for name, child in module.named_children()}
    largest = max(sizes, key=sizes.__getitem__, default=None)
    if largest is None or 2 * sizes[largest] < sum(sizes.values()):
        return "the parts of the model that do not"
    return f"the part of the model that does not, such as model.{largest}"


def _summary(error: BaseException, lines: int = 6) -> str:
    text = [line.rstrip() for line in str(error).strip().splitlines() if line.strip()]
    return "\n    ".join(text[:lines]) if text else "no message"


def _place(error: BaseException) -> str:
    """Returns `file:line` of the innermost frame that is neither PyTorch's nor of this package."""
    found = ""
    trace = error.__traceback__
    while trace is not None:
        filename = trace.tb_frame.f_code.co_filename
        if not ("/torch/" in filename or filename.startswith((_OWN_CODE, "<"))):
            found = f"{filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


@contextlib.contextmanager
def keywords_named(module: torch.nn.Module, kwargs: Mapping[str, Any], dynamic_shapes: Any) -> Iterator[Any]:
    """Gives a module's `forward` a parameter for each keyword input; where nothing varies it stays as it is.

    Args:
        module: The model; left as it was.
        kwargs: Keyword inputs.
        dynamic_shapes: As `torch.export.export` takes it.

    Yields:
        The dynamic shapes for the changed signature.
    """
    signature = inspect.signature(module.forward)
    variadic = [item for item in signature.parameters.values() if item.kind is inspect.Parameter.VAR_KEYWORD]
    extra = [name for name in kwargs if name not in signature.parameters]
    if not variadic or not extra or not isinstance(dynamic_shapes, Mapping):
        yield dynamic_shapes
        return
    parameters = [item for item in signature.parameters.values() if item not in variadic]
    parameters += [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in extra]
    original = module.forward

    @functools.wraps(original)
    def forward(*args: Any, **keywords: Any) -> Any:
        return original(*args, **keywords)

    vars(forward)["__signature__"] = signature.replace(parameters=parameters)
    name = variadic[0].name
    with with_attributes(module, forward=forward):
        yield {**{key: value for key, value in dynamic_shapes.items() if key != name}, **dynamic_shapes.get(name, {})}
