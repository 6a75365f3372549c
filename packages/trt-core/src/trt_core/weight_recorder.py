"""Records what happens to weights while a compilation transforms them."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from trt_core.internals import OpOverload, TorchDispatchMode
from trt_core.nesting import tensors_in
from trt_core.weight_recipes import Literal, Lost, Recipe, apply_operator, sources_of

_SAME_VALUE: Final = frozenset(
    {
        torch.ops.aten.detach.default,
        torch.ops.aten.alias.default,
        torch.ops.aten.lift_fresh.default,
        torch.ops.aten.lift.default,
    }
)
_READERS: Final = frozenset(
    getattr(torch.Tensor, name) for name in ("tolist", "numpy", "__array__", "__dlpack__", "untyped_storage")
)


class WeightRecorder:
    """Knows the recipe of every tensor that is computed from weights while it records.

    Attributes:
        read: Recipes of tensors whose numbers were looked at: what was done then holds for these numbers only.
    """

    def __init__(self) -> None:
        self.read: list[Recipe] = []
        self._recipes = WeakTensorKeyDictionary()

    def know(self, tensor: torch.Tensor, recipe: Recipe) -> None:
        """Says what the recipe of a tensor is; of this tensor object, not of others over the same memory."""
        self._recipes[tensor] = recipe

    def recipe_of(self, tensor: torch.Tensor) -> Recipe | None:
        """Returns the recipe of a tensor that follows from weights, None for any other."""
        found: Recipe | None = self._recipes.get(tensor)
        return found if found is not None and sources_of(found) else None

    def recording(self) -> _Recording:
        """Returns a context manager that records everything inside it."""
        return _Recording(self)

    def note_call(self, operator: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Learns the recipes of an operator's results."""
        tensors = list(tensors_in((args, kwargs)))
        if tensors and not any(tensor in self._recipes for tensor in tensors):
            return
        results = list(tensors_in(result))
        if operator in _SAME_VALUE:
            self._recipes[results[0]] = self._recipes[tensors[0]]
            return
        if not results:
            self.note_read(tensors)
            return
        args, kwargs = self._replace(args), self._replace(kwargs)
        several = not isinstance(result, torch.Tensor)
        for index, tensor in enumerate(result if several else (result,)):
            if isinstance(tensor, torch.Tensor):
                self._recipes[tensor] = apply_operator(operator, args, kwargs, item=index if several else None)
        if isinstance(operator, OpOverload) and operator._schema.is_mutable:
            self._forget_written(operator, tensors)

    def note_read(self, tensors: Any) -> None:
        """Notes that numbers of tensors were looked at."""
        self.read += [found for found in map(self.recipe_of, tensors) if found is not None]

    def _forget_written(self, operator: Any, tensors: list[torch.Tensor]) -> None:
        operands = tuple(self._recipes[tensor] for tensor in tensors if tensor in self._recipes)
        for tensor in tensors:
            self._recipes[tensor] = Lost(f"{operator} writes in place", operands)

    def _replace(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            known = self._recipes.get(value)
            return Literal(value.detach()) if known is None else known
        if isinstance(value, (list, tuple)):
            return tuple(self._replace(item) for item in value)
        if isinstance(value, dict):
            return {name: self._replace(item) for name, item in value.items()}
        return value


class _Recording:
    """Both modes at once: operators are seen below, reads of numbers that call no operator above."""

    def __init__(self, recorder: WeightRecorder) -> None:
        self._modes: tuple[Any, Any] = (_Operators(recorder), _Reads(recorder))

    def __enter__(self) -> None:
        for mode in self._modes:
            mode.__enter__()

    def __exit__(self, *error: Any) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*error)


class _Operators(TorchDispatchMode):
    def __init__(self, recorder: WeightRecorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # PyTorch's own
        self._recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._recorder.note_call(func, args, kwargs or {}, result)
        return result


class _Reads(TorchFunctionMode):
    def __init__(self, recorder: WeightRecorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _READERS:
            self._recorder.note_read(args[:1])
        return func(*args, **(kwargs or {}))
