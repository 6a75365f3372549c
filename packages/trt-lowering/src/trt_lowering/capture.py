"""Lowers graphs that torch.compile captured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from trt_core import CompilationSettings, LoweringError, logger
from trt_lowering.attributes import add_constant, read_attribute
from trt_lowering.contract import run_passes
from trt_lowering.decomposition_table import DecompositionRules, Preserve
from trt_lowering.passes.functionalize import Functionalize
from trt_lowering.passes.inline_wrapped_regions import InlineWrappedRegions
from trt_lowering.passes.remove_assertions import RemoveAssertions
from trt_lowering.pipeline import finish
from trt_lowering.tracing import traces


@traces("the captured graph cannot be lowered")
def lower_graph(
    gm: fx.GraphModule,
    settings: CompilationSettings,
    *,
    preserve: Preserve,
    constants: Mapping[str, torch.Tensor] | None = None,
) -> fx.GraphModule:
    """Lowers a graph of Python calls, as a backend of torch.compile receives it.

    Args:
        gm: The graph. Placeholders carry a fake tensor, a real one or a number in `meta["val"]` or
            `meta["example_value"]`. It is not changed, and its tensors are shared.
        settings: Compilation settings.
        preserve: Whether an operator has a converter, and so stays whole.
        constants: Placeholders (by target) whose value is fixed, such as frozen parameters. They become attributes,
            and the lowered module does not take them.

    Returns:
        A module in the form that `check_graph_form` describes, which takes the remaining placeholders in order and
        returns a flat tuple.

    Raises:
        LoweringError: A placeholder has no example value, a name in `constants` is unknown, or the graph cannot be
            traced.
    """
    rules = DecompositionRules(preserve, settings)
    recapture = _Recapture(gm, dict(constants or {}))
    captured = recapture.trace(functional=False)
    functionalize = Functionalize()
    run_passes(captured, [InlineWrappedRegions(), RemoveAssertions(), functionalize], recompile=False)
    if functionalize.entangled is not None:
        logger.debug("lowering captures the graph below composite operators: %s", functionalize.entangled)
        captured = recapture.trace(functional=True)
        run_passes(captured, [RemoveAssertions(), Functionalize()], recompile=False)
    return finish(captured, rules, settings)


class _Recapture:
    """Runs a graph on fake tensors and records the ATen operators that it calls.

    Attributes of the graph enter the trace as extra inputs, and become attributes again afterwards: a trace must
    neither copy nor bake in a parameter.
    """

    def __init__(self, gm: fx.GraphModule, constants: dict[str, torch.Tensor]) -> None:
        self._gm = gm
        self._constants = constants
        self._inputs = gm.graph.find_nodes(op="placeholder")
        unknown = constants.keys() - {str(node.target) for node in self._inputs}
        if unknown:
            raise LoweringError(
                f"the graph has no placeholder {sorted(unknown)[0]!r} to make a constant of",
                hint=f"its placeholders are {', '.join(str(node.target) for node in self._inputs)}",
            )
        tensors = {
            **dict(gm.named_parameters(remove_duplicate=False)),
            **dict(gm.named_buffers(remove_duplicate=False)),
        }
        for node in gm.graph.find_nodes(op="get_attr"):
            value = read_attribute(gm, str(node.target))
            if isinstance(value, torch.Tensor):
                tensors.setdefault(str(node.target), value)
        self._attributes = tensors
        self._mode = self._find_mode()

    def trace(self, *, functional: bool) -> fx.GraphModule:
        """Returns the recorded graph with attributes in their place.

        Args:
            functional: Trace through PyTorch's functionalization. It handles every mutation, but composite operators
                are decomposed on the way, preserved ones included.
        """
        examples = [self._example(node) for node in self._inputs]
        fakes = [self._mode.from_tensor(tensor) for tensor in self._attributes.values()]

        def run(*values: Any) -> Any:
            inputs, attributes = values[: len(examples)], values[len(examples) :]
            named = dict(zip(self._attributes, attributes, strict=True))
            result = _GraphInterpreter(self._gm, named).run(*inputs)
            return tuple(result) if isinstance(result, (tuple, list)) else (result,)

        traced = torch.func.functionalize(run, remove="mutations_and_views") if functional else run
        try:
            with (
                torch.no_grad(),
                self._mode,
                enable_python_dispatcher(),
                fx.traceback.preserve_node_meta(),
            ):
                captured = make_fx(traced, pre_dispatch=not functional)(*examples, *fakes)
        except Exception as error:
            raise LoweringError(
                "the captured graph cannot be traced to ATen operators",
                why=f"{type(error).__name__}: {error}",
                hint="run the model without compiling it to see whether it works, and report the graph",
            ) from error
        self._restore_attributes(captured, len(examples))
        return captured

    def _restore_attributes(self, captured: fx.GraphModule, inputs: int) -> None:
        placeholders = captured.graph.find_nodes(op="placeholder")
        first = next((node for node in captured.graph.nodes if node.op != "placeholder"), None)
        fixed = [self._constants.get(str(node.target)) for node in self._inputs]
        for node, tensor in zip(placeholders, [*fixed, *self._attributes.values()], strict=True):
            if tensor is None:
                continue
            assert first is not None
            with captured.graph.inserting_before(first):
                attribute = captured.graph.get_attr(_register(captured, tensor))
            attribute.meta.update(node.meta)
            node.replace_all_uses_with(attribute)
            captured.graph.erase_node(node)
        for node in captured.graph.find_nodes(op="get_attr"):
            value = read_attribute(captured, str(node.target))
            if "val" not in node.meta and isinstance(value, torch.Tensor):
                node.meta["val"] = self._mode.from_tensor(value)
        for node, source in zip(placeholders[:inputs], self._inputs, strict=True):
            if self._constants.get(str(source.target)) is None:
                node.meta.update({key: item for key, item in source.meta.items() if key == "stack_trace"})

    def _example(self, node: fx.Node) -> Any:
        value = node.meta.get("val", node.meta.get("example_value"))
        if value is None and str(node.target) in self._constants:
            value = self._constants[str(node.target)]
        if value is None:
            raise LoweringError(
                f"the placeholder {node.name!r} has no example value",
                hint='set meta["val"] to a fake tensor, a tensor or a number',
            )
        if isinstance(value, FakeTensor):
            return value.detach()
        return self._mode.from_tensor(value) if isinstance(value, torch.Tensor) else value

    def _find_mode(self) -> FakeTensorMode:
        for node in self._inputs:
            value = node.meta.get("val", node.meta.get("example_value"))
            if isinstance(value, FakeTensor):
                return value.fake_mode
        return FakeTensorMode(shape_env=ShapeEnv())


class _GraphInterpreter(fx.Interpreter):
    """Runs a graph with its attributes replaced by fake ones."""

    def __init__(self, gm: fx.GraphModule, attributes: Mapping[str, Any]) -> None:
        super().__init__(gm)
        self._attributes = attributes

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Reads an attribute, the fake one where it is a tensor."""
        return self._attributes[target] if target in self._attributes else super().get_attr(target, args, kwargs)

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Calls a child module with fake parameters."""
        prefix = f"{target}."
        own = {name.removeprefix(prefix): value for name, value in self._attributes.items() if name.startswith(prefix)}
        return torch.func.functional_call(self.fetch_attr(target), own, args, kwargs)


def _register(gm: fx.GraphModule, tensor: torch.Tensor) -> str:
    name = add_constant(gm, tensor)
    if isinstance(tensor, torch.nn.Parameter):
        delattr(gm, name)
        gm.register_parameter(name, tensor)
    return name
