"""What `compile` returns: a graph of engines and PyTorch blocks that is called like the model.

Eager calls bring their inputs into a flat list by a prepared plan and run the graph as a flat function; a graph that
is one engine is that engine. Captures (`torch.export`, `torch.compile`) run the graph as PyTorch generates it, and see
nothing of this. For its caller a compiled model is one module: hooks that are registered for all modules of the process
fire on it once, and never on its blocks, between which the model has nothing.

All of its weights are those at the time of compiling. Engines hold copies anyway; what PyTorch blocks read would be the
model's own tensors, and a change of these would reach one half of the compiled model only. So blocks get copies, too.
What the model writes to (running statistics, caches, counters) and what it returns of its own tensors is the model's
memory, as for eager calls.
"""

from __future__ import annotations

import functools
import gc
import operator
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import fx, nn

from trt_core.attributes import is_state
from trt_core.copies import copy_all
from trt_core.exported_programs import model_name
from trt_core.nesting import children_of, unflatten
from trt_core.process_groups import raise_failed_collective
from trt_core.sizes.ranges import ShapeRanges
from trt_core.wording import counted
from trt_lowering.results import result_bases
from trt_runtime import TRTModule
from trt_runtime.graphed_calls import GraphedCalls, require_capturable
from trt_runtime.module import engine_modules, running_device
from trt_runtime.plain_structure import plain_tree
from trt_runtime.program import reduce_to_program
from trt_runtime.program.graph_signature import declared_type, symbol_bounds
from trt_runtime.program.input_memory import HeldTensor
from trt_runtime.program.input_reader import InputReader
from trt_runtime.program.interface import SizeNames, Spec, inputs_of, notebook_html, output_spec, titled, walk
from trt_runtime.program.model_call import ModelCall, Nest, SoleEngine, has_own_hooks, refuse_moves
from trt_runtime.program.model_facts import ModelFacts


class CompiledModule(fx.GraphModule):
    """A compiled model. It is for inference: it computes no gradients.

    Models name their tensors as they like, so this class adds no plain names of its own to those of `fx.GraphModule`.

    Pickled, saved by `torch.save` or sent to another process it goes through the program format, and comes back as what
    `trt_runtime.load` returns.

    Args:
        root: Holds what the graph refers to.
        graph: Calls engines and PyTorch blocks; it is called like the model.
        reader: Checks what the module is called with.
        graphs_on: Run calls as CUDA graphs on this device; None for not at all.

    Attributes:
        inputs, outputs: What it takes and returns: names, types, sizes and their ranges.
        device: Where it runs.
        dtype, config, generation_config, main_input_name: Those of the model, where it has them; a part of the model of
            such a name comes first. Its methods it does not have: what they run is not what was compiled.

    Raises:
        ExecutionError: Calls cannot be recorded as CUDA graphs.
    """

    if TYPE_CHECKING:
        inputs: tuple[Spec, ...]
        outputs: tuple[Spec, ...]
        device: torch.device

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            """Is called like the model that was compiled."""

    def __init__(
        self, root: nn.Module, graph: fx.Graph, reader: InputReader, graphs_on: torch.device | None = None
    ) -> None:
        if getattr(graph._codegen, "pytree_info", None) is not None:  # which has the names of parameters
            _take_own_names(graph)
        super().__init__(root, graph, "CompiledModule")
        self.meta = dict(getattr(root, "meta", {}))
        if any(model_name(name) != name for name, _ in super()._named_members(_tensors_of)):
            self.register_state_dict_post_hook(_say_names_of_model)  # type: ignore[no-untyped-call]  # PyTorch's own
            self.register_load_state_dict_pre_hook(_say_names_of_graph)  # type: ignore[no-untyped-call]
        self.__prepare(reader, graphs_on)

    def recompile(self) -> Any:
        """Generates the code of the graph anew, after the graph was changed."""
        code = super().recompile()
        kind = type(self)
        kind.forward = self.__eager_or_captured(kind.forward)
        kind.__call__ = nn.Module.__call__  # type: ignore[method-assign]  # our errors need no note on generated code
        if "_CompiledModule__reader" in self.__dict__:
            self.__prepare(self.__reader, self.__graphs_on)
        return code

    @staticmethod
    def __eager_or_captured(generated: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the `forward` of a module whose graph generated one."""

        @functools.wraps(generated)
        def forward(self: CompiledModule, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return generated(self, *args, **kwargs)
            try:
                return self.__call(self, args, kwargs)
            except RuntimeError as error:
                raise_failed_collective(error)
                raise

        return forward

    def __prepare(self, reader: InputReader, graphs_on: torch.device | None) -> None:
        """Derives from the graph how eager calls run."""
        self.__reader = reader
        self.meta["signature"] = reader.signature
        self.__graphs_on = graphs_on
        compute, nest = flat_function(self.graph), _result_builder(self._out_spec)
        graphed = None
        if graphs_on is not None:
            require_capturable(self)
            graphed = GraphedCalls(
                weakref.ref(self), functools.partial(_run_flat, weakref.ref(self), compute), graphs_on
            )
        has_engines = bool(engine_modules(self))
        self.__call = ModelCall(
            reader,
            _held_by(self),
            compute,
            nest,
            has_engines=has_engines,
            keeps_gradients=not has_engines and not self.__writes_to_parameters(),
            sole_engine=self.__sole_engine(nest),
            graphed=graphed,
        )
        self.__install_facts()

    def __getattr__(self, name: str) -> Any:
        try:
            return nn.Module.__getattr__(self, name)
        except AttributeError as error:
            of_model = getattr(self.__dict__.get("meta", {}).get("model_class"), name, None)
            if of_model is None or name.startswith("__"):
                raise
            if not callable(of_model):
                raise AttributeError(f"{error}: {_OF_MODEL_ALONE}", name=name, obj=self) from None
            raise AttributeError(f"{error}: {_METHODS}", name=name, obj=self) from None

    def __writes_to_parameters(self) -> bool:
        """Whether a call writes to what requires gradients, which PyTorch cannot record."""
        places = (place_of(graph, node) for graph, node in reads_of(self) if is_state(node))
        return any(getattr(owner, name).requires_grad for owner, name in places)

    def __install_facts(self) -> None:
        """Gives this module the attributes that tell of the model.

        They belong to the class that FX makes for this one module, where looking up others costs no more than before.
        """
        facts: ModelFacts = self.meta.get("model_facts") or ModelFacts()
        said: dict[str, Any] = {"inputs": _inputs, "outputs": _outputs, "device": running_device}
        said |= {name: functools.partial(_fixed, value) for name, value in facts.attributes.items()}
        if "config" in said:
            said["can_generate"] = _can_generate
        for name, read in said.items():
            if not any(name in held for held in (self._modules, self._parameters, self._buffers)):
                setattr(type(self), name, property(read))

    def _repr_html_(self) -> str:
        engines = engine_modules(self)
        return notebook_html(f"{type(self).__name__}, {counted(len(engines), 'engine')}", _inputs(self), _outputs(self))

    def _named_members(self, *args: Any, **options: Any) -> Iterator[tuple[str, Any]]:
        for name, value in super()._named_members(*args, **options):
            yield model_name(name), value

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> CompiledModule:
        """Refuses to move or cast: engines and operators were compiled for a device and for types."""
        refuse_moves(self, fn, "a compiled model")
        return self

    def __sole_engine(self, nest: Nest) -> SoleEngine | None:
        """The engine that is the whole graph: it takes the inputs and returns the outputs as they come."""
        found = engine_of_whole(self)
        if found is None:
            return None
        name, engine = found
        if engine.header.returns_tuple:
            return SoleEngine(self._modules, name, nest)
        structure: Any = self._out_spec
        return SoleEngine(self._modules, name, None if structure.is_leaf() else lambda made: nest((made,)))

    def __copy__(self) -> CompiledModule:
        return CompiledModule(self, self.graph, self.__reader, self.__graphs_on)

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledModule:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of PyTorch, about structures of its own
            twin = super().__deepcopy__(memo)
        assert isinstance(twin, CompiledModule)
        twin.__prepare(self.__reader, self.__graphs_on)
        return twin

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return reduce_to_program(self)


# Names that a model and modules share --------------------------------------------------------------------------------


def _tensors_of(module: nn.Module) -> list[tuple[str, Any]]:
    return [*module._parameters.items(), *module._buffers.items()]


def _say_names_of_model(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    own = {name: state.pop(name) for name in list(state) if name.startswith(prefix)}
    state.update({prefix + model_name(name[len(prefix) :]): value for name, value in own.items()})


def _say_names_of_graph(module: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    names = [name for name, _ in nn.Module._named_members(module, _tensors_of, remove_duplicate=False)]
    own = {name: state.pop(given) for name in names if (given := prefix + model_name(name)) in state}
    state.update({prefix + name: value for name, value in own.items()})


# What a module says of itself -----------------------------------------------------------------------------------------


def _fixed(value: Any, module: CompiledModule) -> Any:
    return value


def _can_generate(module: CompiledModule) -> Callable[[], bool]:
    """What pipelines ask: a compiled model is one step, and generates no text by itself."""
    return lambda: False


def _sizes(module: CompiledModule) -> SizeNames:
    facts: ModelFacts = module.meta.get("model_facts") or ModelFacts()
    ranges: ShapeRanges = module.meta.get("shape_ranges") or ShapeRanges.from_placeholders(module)
    signature = module.meta["signature"]
    return SizeNames(signature, symbol_bounds(ranges, signature), facts)


def _inputs(module: CompiledModule) -> tuple[Spec, ...]:
    return inputs_of(module.meta["signature"], _sizes(module))


def _outputs(module: CompiledModule) -> tuple[Spec, ...]:
    (output,) = module.graph.find_nodes(op="output")
    sizes, device = _sizes(module), running_device(module).type
    places = walk(plain_tree(module._out_spec, iter(output.args[0])), "output")
    return titled([output_spec(place, _known(leaf), sizes, device) for place, leaf in places], sizes)


def _known(leaf: Any) -> Any:
    """The type of a result, or the value that it always has."""
    value = leaf.meta.get("val") if isinstance(leaf, fx.Node) else leaf
    return declared_type(value) or value


def _held_by(module: CompiledModule) -> Iterator[HeldTensor]:
    """Yields the tensors that the graph of a module, or one of its blocks, reads or writes to."""
    for graph, node in reads_of(module):
        owner, name = place_of(graph, node)
        value = getattr(owner, name)
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            yield HeldTensor.of(owner, name, model_name(str(node.target)), is_state(node))


def _result_builder(spec: Any) -> Callable[[Sequence[Any]], Any]:
    """Returns what nests flat outputs as the model did; the plain structures cost nothing much."""
    children = children_of(spec)
    if spec.is_leaf():
        return lambda outputs: outputs[0]
    if all(child.is_leaf() for child in children):
        if spec.type in (tuple, list, torch.Size):
            return spec.type  # type: ignore[no-any-return]
        if spec.type is dict:
            names = tuple(spec.context)
            return lambda outputs: dict(zip(names, outputs, strict=True))
    return lambda outputs: unflatten(outputs, spec)


def _run_flat(module: weakref.ref[CompiledModule], compute: Flat, leaves: Sequence[Any]) -> Sequence[Any]:
    """Runs a module on flat inputs; whoever holds this does not hold the module."""
    found = module()
    assert found is not None  # it is called by the module
    return compute(found, *leaves)


def engine_of_whole(module: fx.GraphModule) -> tuple[str, TRTModule] | None:
    """Returns the engine that takes all inputs of a graph and makes all results, as they come; first its name."""
    calls = [node for node in module.graph.nodes if node.op == "call_module"]
    if len(calls) != 1 or list(calls[0].args) != module.graph.find_nodes(op="placeholder") or calls[0].kwargs:
        return None
    name = str(calls[0].target)
    engine = module._modules.get(name)
    if not isinstance(engine, TRTModule):
        return None
    returned: Any = module.graph.output_node().args[0]
    made: list[Any] = calls
    if engine.header.returns_tuple:
        made = [(operator.getitem, (calls[0], index)) for index in range(len(engine.header.outputs))]
        returned = [(item.target, item.args) if isinstance(item, fx.Node) else item for item in returned]
    return (name, engine) if list(returned) == made else None


_OF_MODEL_ALONE: Final = "the model has it; of what is no part of a call, compiled models keep config and the like"
_METHODS: Final = (
    "it is a method of the model, and compiled is one call of it. Compile the parts that the method runs and put them "
    "into the model, or give compile a module whose forward calls it; compile_pipeline does so for a pipeline"
)


# The graph as a function ---------------------------------------------------------------------------------------------


Flat = Callable[..., Sequence[Any]]
"""Takes the module whose graph it is, and the flat inputs."""


def _take_own_names(graph: fx.Graph) -> None:
    """Has generated code call inputs as nodes are called, where no caller gives them by name.

    The node of `input`, which Python has a function of, is `input_1`. Code that brings inputs by their own names and
    renames them one by one writes over the value of another parameter of that name.
    """
    for node in graph.find_nodes(op="placeholder"):
        node.target = node.name


def flat_function(graph: fx.Graph) -> Flat:
    """Returns a graph as a function of (module, *flat inputs) that returns the flat outputs.

    Args:
        graph: Calls children of the module, which are the blocks; it is not changed.
    """
    flat = fx.Graph()
    flat.output(flat.graph_copy(graph, {}))
    _take_own_names(flat)
    for node in flat.find_nodes(op="call_module"):
        with flat.inserting_before(node):
            block = flat.create_node("get_attr", str(node.target))
            called = flat.call_function(call_block, (block, *node.args))
        node.replace_all_uses_with(called)
        flat.erase_node(node)
    code = flat.python_code("self")
    namespace = dict(code.globals)
    exec(compile(code.src, "<compiled model>", "exec"), namespace)
    function: Flat = namespace["forward"]
    return function


def call_block(block: nn.Module, *inputs: Any) -> Any:
    """Calls a block of a split model, with the hooks that were registered on the block itself."""
    return block(*inputs) if has_own_hooks(block) else block.forward(*inputs)


# The weights of a compiled model -------------------------------------------------------------------------------------


def take_snapshot(compiled: fx.GraphModule, lowered: fx.GraphModule) -> None:
    """Replaces the tensors that a compiled model reads in PyTorch by copies of them.

    Args:
        compiled: Calls engines and PyTorch blocks; its attributes are replaced, the model's tensors are left alone.
        lowered: The graph that it was split from.
    """
    kept = {_memory(tensor) for tensor in _shared_with_eager(lowered)}
    copies: dict[int, torch.Tensor] = {}
    held: list[torch.Tensor] = []  # what is replaced, so that no other tensor takes its identity
    for (owner, name), device in sorted(_tensors_read(compiled).items(), key=lambda place: place[0][1]):
        value = getattr(owner, name)
        if not isinstance(value, torch.Tensor) or _memory(value) in kept:
            continue
        key = id(value)  # tied weights stay one tensor
        if key not in copies:
            copied = value.detach().to(device or value.device, copy=True)
            copies[key] = nn.Parameter(copied, value.requires_grad) if isinstance(value, nn.Parameter) else copied
            held.append(value)
        setattr(owner, name, copies[key])


def _tensors_read(compiled: fx.GraphModule) -> dict[tuple[nn.Module, str], torch.device | None]:
    """The tensors that graphs of a module read: the module that holds each, its name there, and where it has to lie."""
    found: dict[tuple[nn.Module, str], torch.device | None] = {}
    for graph, node in reads_of(compiled):
        meta = node.meta.get("val")
        found[place_of(graph, node)] = meta.device if isinstance(meta, torch.Tensor) else None
    return found


def _shared_with_eager(lowered: fx.GraphModule) -> Iterator[torch.Tensor]:
    """Yields the model's tensors that it writes to, or returns."""
    returned = result_bases(lowered.graph)
    for node in lowered.graph.find_nodes(op="get_attr"):
        if node in returned or is_state(node):
            owner, name = place_of(lowered, node)
            value = getattr(owner, name)
            if isinstance(value, torch.Tensor):
                yield value


def reads_of(compiled: fx.GraphModule) -> Iterator[tuple[fx.GraphModule, fx.Node]]:
    """Yields where graphs of a module read attributes: the graph, and its node."""
    for module in compiled.modules():
        if isinstance(module, fx.GraphModule):
            yield from ((module, node) for node in module.graph.find_nodes(op="get_attr"))


def place_of(graph: fx.GraphModule, node: fx.Node) -> tuple[nn.Module, str]:
    """The module that holds what a node reads, and its name there."""
    path, _, name = str(node.target).rpartition(".")
    return graph.get_submodule(path), name


def _memory(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What tensors in the same memory have in common."""
    if not tensor.numel() or tensor.layout is not torch.strided:
        return (id(tensor),)
    return (str(tensor.device), tensor.untyped_storage().data_ptr())


def offload(module: nn.Module | torch.export.ExportedProgram, compiled: fx.GraphModule) -> dict[int, torch.Tensor]:
    """Moves the weights of a model to the CPU.

    Args:
        module: The model that is compiled. It runs on the CPU afterwards.
        compiled: What is compiled of it, at any stage; it keeps tensors where they are.

    Returns:
        The model's tensors on the CPU by the address that they had on a GPU, but for what the model writes to or
        returns: that stays where it is.
    """
    kept = {_memory(tensor) for tensor in _shared_with_eager(compiled)}
    _own_tensors(compiled)
    if any(value.is_cuda for value in _state_of(module).values()):
        gc.collect()  # networks that a build leaves behind are cycles, and hold weights where they lay
        gc.collect()  # engines of models that are gone are cycles, too, which the first collection lets go of
    on_gpu = {name: value for name, value in _state_of(module).items() if value.is_cuda}
    left = {
        name: value.data_ptr()
        for name, value in on_gpu.items()
        if value.layout is torch.strided and _memory(value) not in kept
    }
    del on_gpu
    move(module, torch.device("cpu"))
    found = _state_of(module)
    return {address: found[name].detach() for name, address in left.items()}


def move(module: nn.Module | torch.export.ExportedProgram, device: torch.device) -> None:
    """Moves the weights of a model."""
    parameters = [each for each in _state_of(module).values() if type(each) is nn.Parameter]
    parameters = [each for each in parameters if each.device != device and each.is_contiguous()]
    moved = [torch.empty_like(each, device=device, requires_grad=False) for each in parameters]
    copy_all([(each.detach(), target) for each, target in zip(parameters, moved, strict=True)])
    for parameter, target in zip(parameters, moved, strict=True):
        parameter.data = target  # for every holder of the parameter, as a module is moved
    if isinstance(module, nn.Module):
        module.to(str(device))
        return
    for tensors in (module.state_dict, module.constants):
        for name, value in tensors.items():
            if isinstance(value, nn.Parameter):
                value.data = value.detach().to(device)
            elif isinstance(value, torch.Tensor):
                tensors[name] = value.to(device)


def _state_of(module: nn.Module | torch.export.ExportedProgram) -> dict[str, torch.Tensor]:
    """The tensors of a model by name; tied ones once."""
    if isinstance(module, nn.Module):
        return {**dict(module.named_parameters()), **dict(module.named_buffers())}
    named = {**module.state_dict, **module.constants}
    return {name: value for name, value in named.items() if isinstance(value, torch.Tensor)}


def _own_tensors(compiled: nn.Module) -> None:
    """Gives a compiled model tensors of its own, in the same memory: moving a parameter moves it for all holders."""
    own: dict[torch.Tensor, Any] = {}
    for child in compiled.modules():
        for name, value in child._parameters.items():
            if value is not None:
                child._parameters[name] = own.setdefault(value, nn.Parameter(value.detach(), value.requires_grad))
        for name, buffer in child._buffers.items():
            if buffer is not None and buffer.is_cuda:
                child._buffers[name] = own.setdefault(buffer, buffer.detach())
