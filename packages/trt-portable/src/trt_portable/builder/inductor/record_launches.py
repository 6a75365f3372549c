"""Recording of what Inductor's output does, as a list of launches that needs neither Inductor nor Triton.

Inductor emits a Python module that allocates buffers, starts Triton kernels and calls ATen operators. For
fixed shapes it does the same each time, so one run tells everything: allocations and views through the
module's own functions, kernels through their launchers, operators through PyTorch's dispatch. For shapes that vary, the
run is one on tensors without data, whose sizes are symbols: sizes, grids and arguments are expressions then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils.weak import WeakIdKeyDictionary

from trt_core.internals import FakeTensor, TorchDispatchMode, pytree
from trt_portable.builder.inductor.operators import Launch, OwnOperators
from trt_portable.builder.inductor.repetition import CompiledGraph
from trt_portable.errors import PortableError
from trt_portable.execution.launch_list import EXTENT
from trt_portable.kernels.device_kernels import POINTER
from trt_portable.plan.extents import expression_of

_SEARCH_DEPTH: Final = 8
_ALLOCATIONS: Final = (torch.ops.aten.empty.memory_format, torch.ops.aten.empty_strided.default)
_NONE: Final = OwnOperators()


class RecordingFailure(PortableError):
    """Inductor's output does something that a list of launches cannot say."""


class LaunchRecorder(TorchDispatchMode):
    """Writes down what runs under it.

    Args:
        operands: The tensors that a run starts from, in order; they take the first slots.
        own: Operators of our own.
        sizes: Where operands without data have symbolic sizes: input and axis of each symbol.

    Attributes:
        steps: What ran, in the terms of `trt_portable.execution.launch_list`.
        kernels: The kernels that ran.
        blobs: Machine code by name.
        fakes: The mode of operands without data.
    """

    def __init__(
        self,
        operands: Sequence[torch.Tensor],
        own: OwnOperators = _NONE,
        sizes: Mapping[Any, tuple[int, int]] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._own = own
        self._sizes = sizes
        self.fakes = next((operand.fake_mode for operand in operands if isinstance(operand, FakeTensor)), None)
        self._device_type = next((operand.device.type for operand in operands), "cuda")
        self.steps: list[list[Any]] = []
        self.kernels: list[dict[str, Any]] = []
        self.blobs: dict[str, bytes] = {}
        self._kernel_at: dict[int, int] = {}
        self._compiled: list[Any] = []
        self._slots: Any = WeakIdKeyDictionary()
        self.num_slots = 0
        for tensor in operands:
            self._new(tensor)

    def _new(self, tensor: torch.Tensor) -> int:
        slot = self._slots[tensor] = self.num_slots
        self.num_slots += 1
        return slot

    def slot(self, tensor: torch.Tensor) -> int:
        """The slot of a tensor that was seen before.

        Raises:
            RecordingFailure: It was not.
        """
        found = self._slots.get(tensor)
        if found is None:
            raise RecordingFailure(f"a tensor of shape {tuple(tensor.shape)} came from nowhere")
        return int(found)

    def empty_strided(self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Allocates, as the module's own function does."""
        with _unseen(), self.fakes or contextlib.nullcontext():
            made = torch.empty_strided(shape, strides, dtype=dtype, device="cuda")
        self._note_allocation(made)
        return made

    def reinterpret(
        self, base: torch.Tensor, shape: Sequence[int], strides: Sequence[int], offset: int
    ) -> torch.Tensor:
        """Takes a view, as the module's own function does.

        Raises:
            RecordingFailure: The view is of another type.
        """
        with _unseen():
            view = torch.as_strided(base, shape, strides, base.storage_offset() + offset)
        if view.dtype is not base.dtype:
            raise RecordingFailure("a view of another type")
        source = self.slot(base)
        self.steps.append(
            ["view", self._new(view), source, self._numbers(shape), self._numbers(strides), self._number(offset)]
        )
        return view

    def launch(self, kernel: Any, load: Callable[[], bytes], grid: Sequence[int], arguments: Sequence[Any]) -> None:
        """Notes a launch of a statically launched kernel."""
        index = self._kernel_at.get(id(kernel))
        if index is None:
            index = self._kernel_at[id(kernel)] = len(self.kernels)
            scratch = POINTER * (bool(kernel.has_global_scratch) + bool(kernel.has_profile_scratch))
            blob = f"kernel {index}"
            self.blobs[blob] = load()
            self.kernels.append(
                {
                    "name": kernel.name,
                    "blob": blob,
                    "types": kernel.arg_tys + scratch,
                    "warps": kernel.num_warps,
                    "shared_bytes": kernel.shared,
                }
            )
        self._note_launch(index, grid, arguments)

    def _note_allocation(self, made: torch.Tensor) -> None:
        shape, strides = self._numbers(made.shape), self._numbers(made.stride())
        self.steps.append(["empty", self._new(made), shape, strides, _name(made.dtype)])

    def _launch_own(self, launch: Launch, arguments: Sequence[Any]) -> torch.Tensor | None:
        """Starts the one kernel of an operator, and notes it."""
        if self.fakes is not None:
            raise RecordingFailure("a kernel of our own is started on data alone")
        result, started = launch(*arguments)
        if result is not None:
            self._note_allocation(result)
        index = self._kernel_at.get(id(started.compiled))
        if index is None:
            index = self._kernel_at[id(started.compiled)] = len(self.kernels)
            self._compiled.append(started.compiled)  # alive, so that nothing else gets its id
            metadata, blob = started.compiled.metadata, f"kernel {index}"
            self.blobs[blob] = started.compiled.asm["cubin"]
            self.kernels.append(
                {
                    "name": metadata.name,
                    "blob": blob,
                    "types": started.types,
                    "warps": metadata.num_warps,
                    "shared_bytes": metadata.shared,
                }
            )
        self._note_launch(index, started.grid, started.arguments)
        return result

    def _note_launch(self, index: int, grid: Sequence[int], arguments: Sequence[Any]) -> None:
        missing = len(self.kernels[index]["types"]) - len(arguments)
        given = [0 if argument is None else self._encoded(argument) for argument in arguments]
        self.steps.append(["kernel", index, self._numbers(grid), [*given, *[0] * missing]])

    def _numbers(self, values: Sequence[Any]) -> list[Any]:
        return [self._number(value) for value in values]

    def _number(self, value: Any) -> Any:
        """An integer, or an expression of the sizes of inputs.

        Raises:
            RecordingFailure: It depends on something else.
        """
        if not isinstance(value, torch.SymInt):
            return int(value)
        found = expression_of(value.node.expr, self._sizes or {})
        if found is None:
            raise RecordingFailure(f"{value} is no expression of the sizes of inputs")
        return found if isinstance(found, int) else {EXTENT: found}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in self._own.launched:
            return self._launch_own(self._own.launched[func], args)
        if func in self._own.composed:
            with self:
                return self._own.composed[func](*args)
        if func in _ALLOCATIONS:
            made = func(*args, **kwargs)
            if made.device.type != self._device_type:
                _refuse()
            self._note_allocation(made)
            return made
        found = func(*args, **kwargs)
        leaves = pytree.tree_leaves(found)
        if self.fakes is not None and not _does_anything(func, leaves):
            return found
        arguments = [self._encoded(argument) for argument in args]
        keywords = {key: self._encoded(value) for key, value in kwargs.items()}
        results: list[int | None] = []
        for value in leaves:
            if not isinstance(value, torch.Tensor):
                results.append(None)
                continue
            known = self._slots.get(value)
            results.append(self._new(value) if known is None else int(known))
        self.steps.append(["op", func.name(), arguments, keywords, results])
        return found

    def _encoded(self, argument: Any) -> Any:
        if isinstance(argument, torch.Tensor):
            return {"slot": self.slot(argument)}
        if isinstance(argument, torch.SymInt):
            return self._number(argument)
        if isinstance(argument, (list, tuple)):
            return [self._encoded(part) for part in argument]
        if isinstance(argument, torch.device):
            return {"device": argument.type}
        for kind, of in (("dtype", torch.dtype), ("memory_format", torch.memory_format), ("layout", torch.layout)):
            if isinstance(argument, of):
                return {kind: str(argument).removeprefix("torch.")}
        if argument is None or isinstance(argument, (bool, int, float, str)):
            return argument
        raise RecordingFailure(f"an argument of type {type(argument).__name__}")


def record(
    compiled: CompiledGraph,
    operands: Sequence[torch.Tensor],
    own: OwnOperators = _NONE,
    sizes: Mapping[Any, tuple[int, int]] | None = None,
) -> dict[str, Any]:
    """Runs what Inductor made, and returns what it did.

    Args:
        compiled: The compiled graph; ran once already, so that its kernels are tuned.
        operands: Its arguments; without data where their sizes vary.
        own: Operators of our own.
        sizes: Input and axis of each symbolic size then.

    Returns:
        ``steps``, ``kernels``, ``slots``, ``outputs`` of a launch list, and ``blobs``.

    Raises:
        RecordingFailure: A list of launches cannot say it.
    """
    emitted = [_emitted_function(code.current_callable) for code in compiled.codes]
    recorder = LaunchRecorder(operands, own, sizes)
    fresh = {
        "empty_strided_cuda": recorder.empty_strided,
        "reinterpret_tensor": recorder.reinterpret,
        "alloc_from_pool": _refuse,
        "empty_strided_cpu": _refuse,
        "empty_strided_cpu_pinned": _refuse,
        **({} if sizes is None else dict.fromkeys(("assert_size_stride", "assert_alignment"), _pass)),
    }
    with contextlib.ExitStack() as stack:
        launchers: dict[int, Any] = {}  # codes may share kernels
        for function in emitted:
            stack.enter_context(_replaced(function.__globals__, fresh))
            for value in list(function.__globals__.values()):
                launchers.update((id(each.__globals__), each) for each in getattr(value, "launchers", ()))
        for launcher in launchers.values():
            stack.enter_context(_watched(launcher, recorder, starts=sizes is None))
        stack.enter_context(torch.no_grad())
        if recorder.fakes is not None:
            stack.enter_context(recorder.fakes)
        stack.enter_context(recorder)
        outputs = compiled.split.run(emitted, list(operands))
    return {
        "steps": recorder.steps,
        "kernels": recorder.kernels,
        "slots": recorder.num_slots,
        "outputs": [recorder.slot(output) for output in outputs],
        "blobs": recorder.blobs,
    }


def _does_anything(func: Any, results: Sequence[Any]) -> bool:
    """Whether an operator makes or changes tensors; others tell sizes and places of tensors without data."""
    return func._schema.is_mutable or any(isinstance(value, torch.Tensor) for value in results)


def _refuse(*_: Any, **__: Any) -> Any:
    raise RecordingFailure("memory of a kind that a list of launches does not know")


def _pass(*_: Any, **__: Any) -> None:
    """Nothing is checked: tensors without data lie nowhere."""


@contextlib.contextmanager
def _unseen() -> Iterator[None]:
    """Runs operators that no mode sees."""
    from trt_portable.internals import without_modes

    with without_modes():
        yield


@contextlib.contextmanager
def _replaced(scope: dict[str, Any], fresh: Mapping[str, Any]) -> Iterator[None]:
    """Puts other values behind names of a scope that has them."""
    old = {name: scope[name] for name in fresh if name in scope}
    scope.update({name: fresh[name] for name in old})
    try:
        yield
    finally:
        scope.update(old)


def _watched(launcher: Any, recorder: LaunchRecorder, *, starts: bool) -> contextlib.AbstractContextManager[None]:
    """Tells a recorder of the launches of one Triton kernel, which start it or do not."""
    from trt_portable.internals import triton_cache_dir

    scope = launcher.__globals__
    runner = scope.get("runner")
    kernel: Any = getattr(runner, "__self__", None)
    if runner is None or not hasattr(kernel, "arg_tys"):
        raise RecordingFailure("a kernel that PyTorch does not launch statically")

    def load() -> bytes:
        directory = triton_cache_dir(torch.cuda.current_device())
        return Path(directory, launcher.cache_hash, f"{kernel.name}.cubin").read_bytes()

    def run(grid_x: int, grid_y: int, grid_z: int, stream: int, *arguments: Any) -> None:
        recorder.launch(kernel, load, (grid_x, grid_y, grid_z), arguments)
        if starts:
            runner(grid_x, grid_y, grid_z, stream, *arguments)

    return _replaced(scope, {"runner": run})


def _emitted_function(call: Any) -> Any:
    """The function of the module that Inductor emitted, under whatever is wrapped around it."""
    seen: set[int] = set()
    level = [call]
    for _ in range(_SEARCH_DEPTH):
        following: list[Any] = []
        for candidate in level:
            if id(candidate) in seen or not callable(candidate):
                continue
            seen.add(id(candidate))
            scope = getattr(getattr(candidate, "__func__", candidate), "__globals__", {})
            if "empty_strided_cuda" in scope and "reinterpret_tensor" in scope:
                return candidate if hasattr(candidate, "__globals__") else _Bound(candidate)
            closure = getattr(getattr(candidate, "__func__", candidate), "__closure__", None) or ()
            following += [cell.cell_contents for cell in closure if _is_filled(cell)]
            following += [getattr(candidate, name, None) for name in ("__wrapped__", "current_callable", "func")]
        level = following
    raise RecordingFailure("no function of an emitted module was found")


class _Bound:
    """A bound method, with the globals of its function."""

    def __init__(self, method: Any) -> None:
        self._method = method
        self.__globals__ = method.__func__.__globals__

    def __call__(self, arguments: list[torch.Tensor]) -> Any:
        return self._method(arguments)


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - an empty cell raises
    except ValueError:
        return False
    return True


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
