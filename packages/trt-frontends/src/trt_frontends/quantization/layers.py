"""Which calls of a program are quantized: products with weights, and on request of activations; their edits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx
from torch.export.graph_signature import ExportGraphSignature, InputKind, InputSpec, TensorArgument

from trt_core import InputError, Reason, Verdict
from trt_core.attributes import is_written
from trt_core.dtypes import FLOATS
from trt_core.exported_programs import copy_of_graph, with_changes
from trt_core.internals import OpOverload, schema_name
from trt_core.operators import argument, canonical_operator, operator_name, packet_name
from trt_core.provenance import module_path, node_location
from trt_core.quantization import quantize
from trt_core.settings_reader import warn_caller
from trt_frontends.quantization.quantization_config import Kind, Observer, QuantizationConfig
from trt_lowering.node_metadata import fake_mode_of, insert_call
from trt_lowering.operator_traits import axis_order

aten = torch.ops.aten

TRANSPOSITIONS: Final = (
    aten.t.default,
    aten.transpose.int,
    aten.permute.default,
    aten.detach.default,
    aten.alias.default,
)
"""What may stand between a weight and the product that reads it."""

_HELD: Final = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


class ProgramEditor:
    """A copy of a program that can be changed. Its tensors are shared with the program until they are replaced.

    Args:
        program: The program; it is not changed.

    Attributes:
        graph: The graph, in which tensors of the program are placeholders.
    """

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        self._program = program
        self._module = copy_of_graph(program)
        self.graph = self._module.graph
        self._specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
        self._state = dict(program.state_dict)
        self._constants = dict(program.constants)
        mode = fake_mode_of(self.graph)
        assert mode is not None, "a program without tensors has nothing to edit"
        self._mode = mode

    def spec(self, node: fx.Node) -> InputSpec | None:
        """Returns what a placeholder stands for, None for other nodes."""
        return self._specs.get(node.name) if node.op == "placeholder" else None

    def tensor(self, node: Any) -> torch.Tensor | None:
        """Returns the tensor of the program that a node stands for, None where it stands for something else."""
        spec = self.spec(node) if isinstance(node, fx.Node) else None
        if spec is None or spec.kind not in _HELD or spec.target is None:
            return None
        found = self._state.get(spec.target, self._constants.get(spec.target))
        return found if isinstance(found, torch.Tensor) else None

    def name_of(self, node: fx.Node) -> str:
        """Returns the name of a tensor in the model."""
        spec = self.spec(node)
        return node.name if spec is None or spec.target is None else spec.target

    def add_tensor(self, name: str, value: torch.Tensor) -> fx.Node:
        """Adds a buffer to the program, under a name that is free, and returns its placeholder."""
        target, count = name, 0
        while target in self._state or target in self._constants:
            count += 1
            target = f"{name}_{count}"
        first = next(node for node in self.graph.nodes if not self._is_held(node))
        with self.graph.inserting_before(first):
            node = self.graph.placeholder("b_" + target.replace(".", "_"))
        with self._mode:
            node.meta["val"] = self._mode.from_tensor(value, static_shapes=True)
        self._state[target] = value
        argument = TensorArgument(name=node.name)
        self._specs[node.name] = InputSpec(InputKind.BUFFER, argument, target, persistent=True)
        return node

    def call(self, target: Any, args: tuple[Any, ...], *, before: fx.Node, origin: fx.Node) -> fx.Node:
        """Adds a call in front of a node; it inherits the place in the model's code of `origin`."""

        def value(item: Any) -> Any:
            return item.meta["val"] if isinstance(item, fx.Node) else item

        with self._mode, torch.no_grad():
            result = target(*(value(item) for item in args))
        with self.graph.inserting_before(before):
            return insert_call(self.graph, target, args, value=result, origin=origin)

    def finish(self) -> torch.export.ExportedProgram:
        """Returns the program, without the tensors that nothing reads any more."""
        written = {spec.target for spec in self._program.graph_signature.output_specs}
        for node in reversed(self.graph.nodes):
            is_unread = self._is_held(node) and self._specs[node.name].target not in written
            if not node.users and (is_unread or node.target in TRANSPOSITIONS):
                self.graph.erase_node(node)
        self.graph.lint()
        self._module.recompile()
        specs = [self._specs[node.name] for node in self.graph.find_nodes(op="placeholder")]
        signature = ExportGraphSignature(specs, list(self._program.graph_signature.output_specs))
        kept = {spec.target for spec in specs}
        return with_changes(
            self._program,
            self._module,
            graph_signature=signature,
            state_dict={name: value for name, value in self._state.items() if name in kept},
            constants={
                name: value
                for name, value in self._constants.items()
                if name in kept or not isinstance(value, torch.Tensor)
            },
        )

    def _is_held(self, node: fx.Node) -> bool:
        spec = self.spec(node)
        return spec is not None and spec.kind in _HELD


_CONVOLUTIONS = frozenset({aten.conv1d.default, aten.conv2d.default, aten.conv3d.default, aten.conv2d.padding})


def fold_normalization(editor: ProgramEditor) -> int:
    """Folds what normalizes the result of a convolution at inference, and returns how many there were."""
    folded = 0
    for node in list(editor.graph.nodes):
        if node.target is aten.batch_norm.default and _fold(editor, node):
            folded += 1
    return folded


def _fold(editor: ProgramEditor, node: fx.Node) -> bool:
    convolution = argument(node, "input")
    if argument(node, "training") or not isinstance(convolution, fx.Node) or convolution.target not in _CONVOLUTIONS:
        return False
    if len(convolution.users) != 1 or any(user.op == "output" for user in node.users):
        return False
    weight = argument(convolution, "weight")
    kernel, mean, variance = (
        editor.tensor(item) for item in (weight, argument(node, "running_mean"), argument(node, "running_var"))
    )
    bias, shift, factor = (
        (item, editor.tensor(item))
        for item in (argument(convolution, "bias"), argument(node, "bias"), argument(node, "weight"))
    )
    if kernel is None or mean is None or variance is None or kernel.dtype != variance.dtype:
        return False
    if any(item is not None and found is None for item, found in (bias, shift, factor)):
        return False
    with torch.no_grad():
        step = torch.rsqrt(variance.to(torch.float32) + argument(node, "eps"))
        if factor[1] is not None:
            step = step * factor[1].to(torch.float32)
        wide = kernel.to(torch.float32) * step.reshape([-1, *[1] * (kernel.dim() - 1)])
        before = torch.zeros_like(step) if bias[1] is None else bias[1].to(torch.float32)
        after = (before - mean.to(torch.float32)) * step
        if shift[1] is not None:
            after = after + shift[1].to(torch.float32)
    assert isinstance(weight, fx.Node)
    name = editor.name_of(weight).rpartition(".")[0]
    prefix = f"{name}." if name else ""
    set_operand(convolution, "weight", editor.add_tensor(f"{prefix}folded_weight", wide.to(kernel.dtype)))
    set_operand(convolution, "bias", editor.add_tensor(f"{prefix}folded_bias", after.to(kernel.dtype)))
    node.replace_all_uses_with(convolution)
    editor.graph.erase_node(node)
    return True


def set_operand(node: fx.Node, parameter: str, value: Any) -> None:
    """Gives a call another argument, by the name of the operator's parameter."""
    assert isinstance(node.target, OpOverload)
    names = [declared.name for declared in node.target._schema.arguments]
    index = names.index(parameter)
    if index < len(node.args):
        node.update_arg(index, value)
    else:
        node.update_kwarg(parameter, value)


@dataclass(frozen=True)
class Weight:
    """A weight of a product.

    Attributes:
        node: Its placeholder.
        views: Transpositions between the placeholder and the product, in order.
        channel_axis: The axis of the stored weight whose slices make one channel of the result each; -1 for none.
        input_axis: The axis of the stored weight that is summed over with the last axis of the input, or its channels.
    """

    node: fx.Node
    views: tuple[fx.Node, ...]
    channel_axis: int
    input_axis: int


@dataclass(frozen=True)
class Layer:
    """A call that is quantized.

    Attributes:
        node: The call.
        kind: What kind of product it is.
        location: Module path and node name.
        activations: Names of the operator's parameters that take activations.
        weight: Its weight, None for products of activations.
        weight_parameter: Name of the operator's parameter that takes it.
    """

    node: fx.Node
    kind: Kind
    location: str
    activations: tuple[str, ...]
    weight: Weight | None = None
    weight_parameter: str = ""

    def operands(self) -> Iterator[fx.Node]:
        """Yields the nodes that are its activations."""
        for parameter in self.activations:
            value = argument(self.node, parameter)
            assert isinstance(value, fx.Node)
            yield value


# operator: kind, parameters of activations, parameter of the weight, axes of channels and of inputs of that operand
_Form = tuple[Kind, tuple[str, ...], str, int, int]
_CONVOLUTION: Final[_Form] = (Kind.CONVOLUTION, ("input",), "weight", 0, 1)
_FORMS: Final[dict[str, _Form]] = {
    "aten::linear": (Kind.LINEAR, ("input",), "weight", 0, 1),
    "aten::mm": (Kind.LINEAR, ("self",), "mat2", 1, 0),
    "aten::matmul": (Kind.LINEAR, ("self",), "other", 1, 0),
    "aten::addmm": (Kind.LINEAR, ("mat1",), "mat2", 1, 0),
    **{f"aten::{name}": _CONVOLUTION for name in ("conv1d", "conv2d", "conv3d", "convolution")},
}
_ACTIVATIONS: Final[dict[str, tuple[Kind, tuple[str, ...]]]] = {
    "aten::mm": (Kind.MATMUL, ("self", "mat2")),
    "aten::bmm": (Kind.MATMUL, ("self", "mat2")),
    "aten::matmul": (Kind.MATMUL, ("self", "other")),
    "aten::scaled_dot_product_attention": (Kind.ATTENTION, ("query", "key", "value")),
}
_WITHOUT_FORM: Final = {
    "aten::conv_transpose1d": "transposed convolutions",
    "aten::conv_transpose2d": "transposed convolutions",
    "aten::conv_transpose3d": "transposed convolutions",
    "aten::einsum": "sums over named axes",
    "aten::bilinear": "bilinear forms",
    "aten::lstm": "recurrent layers",
    "aten::gru": "recurrent layers",
    "aten::rnn_tanh": "recurrent layers",
    "aten::rnn_relu": "recurrent layers",
}
"""Operators made of products that no low-precision form exists for."""


@dataclass(frozen=True)
class Choice:
    """What was decided about a product of the model.

    Attributes:
        location: Module path and node name.
        operator: Name of the operator.
        layer: How it is quantized, None where it is not.
        verdict: Why it is not; supported otherwise.
    """

    location: str
    operator: str
    layer: Layer | None
    verdict: Verdict


def choose_layers(editor: ProgramEditor, config: QuantizationConfig) -> list[Choice]:
    """Decides about every product of a program, in the order of the graph.

    Raises:
        SettingsError: An operator that is excluded is unknown.

    Warns:
        UserWarning: Something that is excluded fits no product.
    """
    exclusion = _Exclusion(tuple(config.exclude))
    choices = []
    for node in editor.graph.nodes:
        name = schema_name(node.target)
        if name not in _FORMS and name not in _ACTIVATIONS and name not in _WITHOUT_FORM:
            continue
        found = _decide(editor, node, config, exclusion)
        layer, verdict = (found, Verdict(True)) if isinstance(found, Layer) else (None, found)
        choices.append(Choice(node_location(node), operator_name(node.target), layer, verdict))
    for pattern in exclusion.unused:
        warn_caller(
            f"{pattern!r} excludes nothing from quantization: no product of the model has such a name, module or "
            "operator. Names are those of quantization_report, such as encoder.layer.0/linear_1"
        )
    return choices


def _decide(editor: ProgramEditor, node: fx.Node, config: QuantizationConfig, exclusion: _Exclusion) -> Layer | Verdict:
    name = schema_name(node.target)
    if name in _WITHOUT_FORM or (name == "aten::convolution" and argument(node, "transposed")):
        what = _WITHOUT_FORM.get(name, "transposed convolutions")
        return Verdict.refuse(Reason.NO_LOW_PRECISION, f"{what} have no low-precision form")
    if exclusion.holds(node):
        return Verdict.refuse(Reason.LEFT_IN_FLOAT, "it is excluded from quantization")
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor) or value.dtype not in FLOATS:
        return Verdict.refuse(Reason.UNSUPPORTED_DTYPE, "products of floats alone are quantized")
    layer = _with_weight(editor, node)
    if layer is None:
        layer = _of_activations(node, config)
    if layer is None:
        return Verdict.refuse(Reason.LEFT_IN_FLOAT, "it has no weight")
    if layer.kind not in config.kinds:
        return Verdict.refuse(Reason.LEFT_IN_FLOAT, f"{layer.kind.value} is not among the operators to quantize")
    if layer.weight is None:
        return layer
    if config.scheme.bits == 4:
        extent = layer.weight.node.meta["val"].shape[layer.weight.input_axis]
        if layer.kind is Kind.CONVOLUTION or extent % config.group_size:
            why = (
                "convolutions take no weights of 4 bits"
                if layer.kind is Kind.CONVOLUTION
                else (f"groups of {config.group_size} do not divide rows of {extent}")
            )
            return Verdict.refuse(Reason.NO_LOW_PRECISION, why)
    return layer


def _with_weight(editor: ProgramEditor, node: fx.Node) -> Layer | None:
    form = _FORMS.get(schema_name(node.target))
    if form is None:
        return None
    kind, activations, parameter, channels, inputs = form
    operand = argument(node, parameter)
    views = []
    while isinstance(operand, fx.Node) and operand.target in TRANSPOSITIONS:
        views.append(operand)
        operand = operand.args[0]
    held = editor.tensor(operand)
    if held is None or not isinstance(operand, fx.Node) or held.dtype not in FLOATS or is_written(operand):
        return None
    if any(editor.tensor(argument(node, name)) is not None for name in activations):
        return None
    rank = held.dim()
    if kind is Kind.LINEAR and rank != 2:
        return None
    place = {channels: channels, inputs: inputs}
    for view in views:  # from the product back to the weight
        place = {key: axis_order(view)[axis] for key, axis in place.items()}
    weight = Weight(operand, tuple(reversed(views)), place[channels], place[inputs])
    return Layer(node, kind, node_location(node), activations, weight, parameter)


def _of_activations(node: fx.Node, config: QuantizationConfig) -> Layer | None:
    kind, activations = _ACTIVATIONS.get(schema_name(node.target), (None, ()))
    operands = [argument(node, parameter) for parameter in activations]
    if kind is None or not config.scheme.quantizes_activations or any(map(_is_scalar, operands)):
        return None
    return Layer(node, kind, node_location(node), activations)


def _is_scalar(operand: Any) -> bool:
    return not isinstance(operand, fx.Node) or operand.meta["val"].dim() == 0


class _Exclusion:
    """Names of modules, regular expressions on names, and operators that are not quantized.

    Attributes:
        unused: Those that have fitted no node so far.
    """

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self._tests = {pattern: _test_of(pattern) for pattern in patterns}
        self.unused = dict.fromkeys(patterns)

    def holds(self, node: fx.Node) -> bool:
        fitting = [pattern for pattern, fits in self._tests.items() if fits(node)]
        for pattern in fitting:
            self.unused.pop(pattern, None)
        return bool(fitting)


def _test_of(pattern: str) -> Callable[[fx.Node], bool]:
    if pattern.replace("torch.ops.", "").startswith(("aten.", "aten::")):
        known = canonical_operator(pattern, "exclude")
        return lambda node: known in (name := operator_name(node.target), packet_name(name))
    expression = re.compile(pattern)

    def fits(node: fx.Node) -> bool:
        path = module_path(node)
        if path == pattern or path.startswith(pattern + ".") or node.name == pattern:
            return True
        return any(expression.fullmatch(item) for item in (path, node.name, node_location(node)))

    return fits


_SHRUNK: Final = tuple(1.0 - 0.02 * step for step in range(26))
"""Shares of the largest magnitude that are tried as range."""


def weight_scale(value: torch.Tensor, weight: Weight, config: QuantizationConfig) -> tuple[torch.Tensor, int]:
    """Returns the scale of a weight, and its axis, as `torch.ops.trt.quantize` takes them.

    A slice of nothing but zeros gets the scale 1. With the observers `mse` and `entropy`, the range of each slice is
    the one with the least squared error.

    Args:
        value: The weight.
        weight: Which of its axes are channels and inputs.
        config: `per_channel`, and `group_size` for integers of 4 bits.

    Raises:
        InputError: The weight holds NaN or infinities.
    """
    wide = value.detach().to(torch.float32)
    if not bool(wide.isfinite().all()):
        raise InputError("a weight holds NaN or infinities", where=weight.node.name, hint="check the model's weights")
    scheme = config.scheme
    if scheme.bits == 4:
        count = value.shape[weight.input_axis] // config.group_size
        blocks = wide.unflatten(weight.input_axis, (count, config.group_size))
        return _scale(blocks, (weight.input_axis + 1,), config).squeeze(weight.input_axis + 1), -1
    if not config.per_channel or weight.channel_axis < 0:
        return _scale(wide, tuple(range(wide.dim())), config).reshape(()), -1
    others = tuple(axis for axis in range(wide.dim()) if axis != weight.channel_axis)
    return _scale(wide, others, config).reshape(-1), weight.channel_axis


def _scale(value: torch.Tensor, axes: tuple[int, ...], config: QuantizationConfig) -> torch.Tensor:
    """Returns one scale for each slice, dimensions kept."""
    scheme = config.scheme
    largest = value.abs().amax(axes, keepdim=True)
    whole = largest / scheme.largest
    whole = torch.where(whole >= torch.finfo(torch.float32).tiny, whole, torch.ones_like(whole))
    if config.observer not in (Observer.MSE, Observer.ENTROPY):
        return whole
    best, least = whole, torch.full_like(whole, torch.inf)
    for share in _SHRUNK:
        tried = whole * share
        kept = quantize(value, tried.expand_as(value), scheme.dtype, scheme.bits).to(torch.float32) * tried
        error = (kept - value).square().sum(axes, keepdim=True)
        best, least = torch.where(error < least, tried, best), torch.minimum(error, least)
    return best
