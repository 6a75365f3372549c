"""An engine as a module, and the memory that the weights of a module's engines may take on the GPU."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, NoReturn

import torch
from torch import nn

from trt_core.device import Device, present_device
from trt_core.errors import ExecutionError, InputError, PlanError
from trt_core.held_arguments import held_to_signature
from trt_core.wording import human_bytes, kind_of, printable
from trt_runtime.direct_call import goes_direct, is_foreign, named_range, refuse_gradients, refuse_transforms
from trt_runtime.engine import ENGINES, LoadedEngine, described_engine
from trt_runtime.engine_file import check_payload
from trt_runtime.header import PlanHeader
from trt_runtime.operator import engine_outputs, execute_engine, update_by_engine
from trt_runtime.plan_notes import check_plan

_PLAN = "plan"
_EXTRA = "_extra_state"


class TRTModule(nn.Module):
    """Runs an engine; takes and returns what the block that it was built from took and returned.

    The plan stays on the CPU wherever the module is moved to, and copies of the module share it. An engine
    runs on the kind of device that it was built for; inputs elsewhere are refused with an `InputError`.

    Args:
        header: Describes the engine.
        plan: (bytes,), uint8, on the CPU: the serialized engine. Becomes a buffer, without a copy.

    Raises:
        PlanError: The plan is not the one that the header describes.
    """

    plan: torch.Tensor

    def __init__(self, header: PlanHeader, plan: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer(_PLAN, None)
        self.adopt(header, plan)

    @classmethod
    @held_to_signature
    def of_engine(
        cls,
        serialized: bytes | bytearray | memoryview,
        inputs: Sequence[str] | None = None,
        outputs: Sequence[str] | None = None,
        *,
        device: Any = None,
        name: str = "",
    ) -> TRTModule:
        """Returns a module for a serialized engine that comes without a header, as TensorRT's builder makes it.

        Sizes of its outputs that vary are found in each call, as far as the engine tells nothing of them.

        Args:
            serialized: The engine, of the provider in use; it is copied.
            inputs: Names of its inputs in the order of a call; by default in the engine's order.
            outputs: Names of its outputs in the order of the result, of which one alone is returned as it is.
            device: Where it runs, as `trt_core.Device` takes it; by default the current GPU where there is one.
            name: What messages call it.

        Raises:
            InputError: The device cannot be read.
            PlanError: The provider cannot load the engine, or it has other inputs or outputs.
        """
        target = (Device.current() if device is None else Device(device)).torch_device
        if not serialized:
            raise PlanError("the engine is empty")
        plan = torch.frombuffer(bytearray(serialized), dtype=torch.uint8)
        return cls(described_engine(plan, inputs, outputs, target, name), plan)

    @property
    def header(self) -> PlanHeader:
        """What is known about the engine."""
        return self._header

    @property
    def written_inputs(self) -> tuple[int, ...]:
        """Positions of the inputs that a call updates in place."""
        return self._written

    @property
    def aliased_io(self) -> dict[str, tuple[str, str]]:
        """Outputs that are the memory of an input, which a call updates: the input's name, and by what."""
        inputs = self._header.inputs
        return {output: (inputs[index].name, "kv_cache_update") for index, output in self._header.updates}

    @property
    def _is_impure(self) -> bool:
        """Keeps PyTorch from dropping calls whose results nobody uses."""
        return bool(self._written)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Runs the engine on the current stream.

        Args:
            *inputs: Tensors as `header.inputs` describes them.

        Returns:
            The output, or a tuple of outputs, as `header.outputs` describes them.

        Raises:
            InputError: A tensor does not fit, or requires gradients.
            PlanError: The engine cannot run in this process.
            ExecutionError: The provider failed.
        """
        if goes_direct(inputs):
            outputs = ENGINES.run([*inputs], *self._engine)
        else:
            with named_range(self._header.title):
                outputs = self._dispatch(inputs)
        return tuple(outputs) if self._returns_tuple else outputs[0]

    def run_into(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        """Runs the engine on the current stream, and writes its outputs to tensors that exist already.

        Args:
            inputs: Tensors as `header.inputs` describes them.
            outputs: Dense tensors as `header.outputs` describes them for these inputs, on the engine's device; they
                share no memory with each other or with inputs.

        Raises:
            InputError: A tensor does not fit, requires gradients, or is not a plain tensor; or an output cannot be
                placed, since its shape depends on data.
            PlanError: The engine cannot run in this process.
            ExecutionError: The provider failed.
        """
        if not goes_direct(inputs):
            refuse_gradients(self._header, inputs)
            raise InputError(
                f"{self._header.title} cannot write to given tensors here",
                why="a graph is being captured, a mode or a transform is active, or an input is no plain tensor",
                hint="call the module, and take the outputs that it returns",
            )
        ENGINES.run([*inputs], *self._engine, outputs)
        torch.autograd.graph.increment_version([value for value in outputs if not value.is_inference()])

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError as error:
            if name not in _INSTEAD:
                raise
            raise AttributeError(f"{error}: {_INSTEAD[name]}", name=name, obj=self) from None

    def set_pre_allocated_outputs(self, enable: bool) -> None:
        """Allocates the outputs of the next call while a call runs, or no more; see `PreAllocatedOutputs`.

        Args:
            enable: Whether it does.
        """
        PreAllocatedOutputs(self).set_pre_allocated_output(enable)

    def _dispatch(self, inputs: tuple[Any, ...]) -> list[torch.Tensor]:
        for index, value in enumerate(inputs):
            if not isinstance(value, torch.Tensor):
                raise InputError(
                    f"input {index} of {self._header.title} is {kind_of(value)}, not a tensor",
                    hint=f"give {', '.join(map(str, self._header.inputs)) or 'no inputs'}",
                )
            if is_foreign(value):
                raise InputError(
                    f"input {index} of {self._header.title} is {kind_of(value)}, which computes in its own way",
                    hint="engines take plain tensors: give the tensor that it is made of",
                )
        refuse_gradients(self._header, inputs)
        refuse_transforms(self._header, inputs)
        plan, known_by = self._engine  # as one: another engine may take its place meanwhile
        if torch.compiler.is_compiling() or type(self.plan) is not torch.Tensor:
            plan = self.plan  # or what whoever captures has there
        header = known_by if isinstance(known_by, str) else known_by.text
        outputs: list[torch.Tensor]
        if self._written:
            states = [inputs[index] for index in self._written]
            others = [value for index, value in enumerate(inputs) if index not in self._written]
            outputs = engine_outputs(inputs, header)
            update_by_engine(states, others, outputs, plan, header)
        else:
            outputs = execute_engine(inputs, plan, header)
        return outputs

    def extra_repr(self) -> str:
        """Describes inputs, outputs and the engine in one line."""
        header = self._header
        inputs = ", ".join(str(binding) for binding in header.inputs)
        outputs = ", ".join(str(binding) for binding in header.outputs)
        return printable(
            f"({inputs}) -> ({outputs}), {header.provider} {header.provider_version}, {header.device}, "
            f"{header.layer_count} layers, {human_bytes(header.payload_bytes)}"
        )

    def get_extra_state(self) -> torch.Tensor:
        """Returns the header as a tensor, (bytes,), uint8, so that a state dict holds tensors only."""
        return torch.frombuffer(bytearray(self._header.text.encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Any) -> None:
        """Does nothing: header and plan are loaded together, by `_load_from_state_dict`."""

    def adopt(self, header: PlanHeader, plan: torch.Tensor) -> None:
        """Takes another engine in place of this one; calls that have begun end with the one that they began with.

        Args:
            header, plan: As for a new module.

        Raises:
            PlanError: The plan is not the one that the header describes.
        """
        check_plan(plan)
        check_payload(header, plan)
        self._buffers[_PLAN] = plan  # past the hooks of registration, which may change what they are shown
        self._header = header
        # the text has the digest of the plan, which a large one that was built here is run without
        known_by = header if header.surely_describes(plan) else header.text
        self._engine: tuple[torch.Tensor, PlanHeader | str] = (plan, known_by)  # as one: other threads may call
        self._returns_tuple = header.returns_tuple
        self._written = tuple(index for index, _ in header.updates)

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        # Never the default, which copies into the buffer: a live engine may be using that memory.
        names = (prefix + _PLAN, prefix + _EXTRA)
        absent = [name for name in names if name not in state_dict]
        if strict:
            missing_keys.extend(absent)
            unexpected_keys.extend(key for key in state_dict if key.startswith(prefix) and key not in names)
        if absent:
            return
        plan, extra = (state_dict[name] for name in names)
        try:
            header = PlanHeader.from_text(bytes(extra.cpu().tolist()))
            self.adopt(header, plan.detach().cpu())
        except PlanError as error:
            error_msgs.append(f"{prefix.rstrip('.')}: {error}")

    def _apply(self, fn: Any, recurse: bool = True) -> TRTModule:
        return self  # moving or casting a module must not touch the plan

    def __prepare_scriptable__(self) -> NoReturn:
        """Refuses, where `torch.jit.script` would say something about annotations."""
        raise InputError(
            f"{self._header.title} cannot be scripted: TorchScript knows no engines",
            hint="save the compiled model with trt_runtime.save, which needs no TorchScript to be loaded",
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> TRTModule:
        memo[id(self.plan)] = self.plan
        twin = self.__class__.__new__(self.__class__)
        memo[id(self)] = twin
        twin.__dict__.update({name: copy.deepcopy(value, memo) for name, value in self.__dict__.items()})
        return twin


_INSTEAD: Final = {
    **dict.fromkeys(
        ("enable_profiling", "disable_profiling"),
        "trt_runtime.profile_layers(model, inputs), or trtc profile, times the layers of a whole model",
    ),
    **dict.fromkeys(
        ("get_layer_info", "dump_layer_info"),
        "trt_runtime.profile_layers(model, inputs) and trtc inspect list layers",
    ),
    "serialized_engine": "plan holds its bytes, and header what they are",
}
"""What modules around engines have elsewhere, and what there is here."""


def engine_modules(model: nn.Module) -> list[TRTModule]:
    """Returns the modules of a compiled or loaded model that run its engines."""
    return [child for child in model.modules() if isinstance(child, TRTModule)]


def engines_of(model: nn.Module) -> list[LoadedEngine]:
    """Returns the engines that a model runs on the present device, each once; they are loaded where they were not."""
    modules = engine_modules(model)
    found = (ENGINES.engine_for(*each._engine, present_device(each.header.device)) for each in modules)
    return list({id(engine): engine for engine in found}.values())


def running_device(model: nn.Module) -> torch.device:
    """Returns where a compiled or loaded model runs: on the GPU, where an engine or a weight is for one."""
    lies = [tensor.device for tensor in (*model.parameters(), *model.buffers())]
    gpu = next((device for device in lies if device.type == "cuda"), None)
    if gpu is None and any(engine.header.device == "cuda" for engine in engine_modules(model)):
        return present_device("cuda")
    return gpu or next(iter(lies), torch.device("cpu"))


class PreAllocatedOutputs:
    """Has engines allocate the outputs of the next call while a call runs, inside a block or for good.

    On a GPU that is time in which the host would wait. What a call returns is the caller's all the same, and is never
    written again. A call with other shapes than the one before, or on another stream, allocates for itself. Each engine
    holds the memory of one more result meanwhile, for each context. Engines of one plan are one engine, also in other
    modules.

    Args:
        module: A compiled model or a loaded program.
    """

    @held_to_signature
    def __init__(self, module: nn.Module) -> None:
        self._engines = engines_of(module)
        self._before = [engine.allocates_ahead for engine in self._engines]

    def set_pre_allocated_output(self, enable: bool) -> None:
        """Switches it on or off."""
        for engine in self._engines:
            engine.allocate_ahead(enable)

    def __enter__(self) -> PreAllocatedOutputs:
        self.set_pre_allocated_output(True)
        return self

    def __exit__(self, *_: object) -> None:
        for engine, before in zip(self._engines, self._before, strict=True):
            engine.allocate_ahead(before)


class StreamingBudget:
    """The memory that the weights of a module's engines may take on the GPU.

    Args:
        engines: Its engines that were built with `enable_weight_streaming=True`, each once.
    """

    def __init__(self, engines: Sequence[LoadedEngine]) -> None:
        self._engines = tuple(engines)
        self._before = self.of_each()

    def __enter__(self) -> StreamingBudget:
        return self

    def __exit__(self, *_: object) -> None:
        self.restore(self._before)

    @property
    def total_device_budget(self) -> int:
        """Bytes of all weights that may be streamed; a budget of as many streams none."""
        return sum(engine.weight_budget.streamable for engine in self._engines)

    @property
    def device_budget(self) -> int:
        """Bytes of them that stay on the GPU; the rest comes there while the engines run, and takes host memory.

        Engines share it in proportion to their weights. It is set while no call runs.

        Raises:
            InputError: What is set is no number of bytes.
            ExecutionError: An engine is in use.
        """
        return sum(engine.weight_budget.resident for engine in self._engines)

    @device_budget.setter
    def device_budget(self, budget: int) -> None:
        if type(budget) is not int or budget < 0:
            raise InputError(f"a budget is a number of bytes, 0 or more, not {budget!r}")
        total = max(self.total_device_budget, 1)
        ends = [0, *accumulate(engine.weight_budget.streamable for engine in self._engines)]
        shares = [min(budget, total) * end // total for end in ends]
        for engine, begin, end in zip(self._engines, shares[:-1], shares[1:], strict=True):
            engine.weight_budget.resident = end - begin

    def get_automatic_weight_streaming_budget(self) -> int:
        """Bytes that would stay on the GPU if nobody had set a budget: as many as it has memory for now."""
        return sum(engine.weight_budget.proposed() for engine in self._engines)

    def restore(self, budgets: Sequence[int]) -> None:
        """Sets the budget of each engine.

        Raises:
            ExecutionError: An engine is in use.
        """
        for engine, budget in zip(self._engines, budgets, strict=True):
            engine.weight_budget.resident = budget

    def of_each(self) -> list[int]:
        """The budget of each engine."""
        return [engine.weight_budget.resident for engine in self._engines]


@held_to_signature
def weight_streaming(module: nn.Module, device_budget: int | None = None) -> StreamingBudget:
    """Bounds the GPU memory of a module's weights; inside a block, where what is returned is entered by `with`.

    Engines that were compiled with `enable_weight_streaming=True` keep as many weights on the GPU as it has memory for
    when they are first called. From here on they keep as many as they are told.

    Args:
        module: A compiled model or a loaded program.
        device_budget: Bytes of weights that stay on the GPU; None leaves it as it is, to be set on what is yielded.

    Returns:
        What tells and changes the budget. Where it is entered, what it was before comes back when the block ends.

    Raises:
        ExecutionError: No engine of the module was compiled for it, or one is in use.
        InputError: The budget is no number of bytes.

    Example:
        >>> with weight_streaming(compiled) as streaming:  # doctest: +SKIP
        ...     streaming.device_budget = streaming.total_device_budget // 4
        ...     y = compiled(x)
    """
    found = tuple(engine for engine in engines_of(module) if engine.weight_budget.streamable)
    if not found:
        raise ExecutionError(
            "no engine of the module can stream its weights", hint="compile the model with enable_weight_streaming=True"
        )
    streaming = StreamingBudget(found)
    if device_budget is not None:
        try:
            streaming.device_budget = device_budget
        except ExecutionError:
            with contextlib.suppress(ExecutionError):  # one engine is in use; the others get back what they had
                streaming.__exit__()
            raise
    return streaming
