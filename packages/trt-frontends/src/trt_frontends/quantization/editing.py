"""Edits exported programs: tensors that belong to them, calls in their graphs, and folded normalization."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import fx
from torch.export.graph_signature import ExportGraphSignature, InputKind, InputSpec, TensorArgument

from trt_core.exported_programs import copy_of_graph, with_changes
from trt_core.internals import OpOverload
from trt_lowering.node_metadata import fake_mode_of, insert_call
from trt_lowering.operator_traits import argument

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
