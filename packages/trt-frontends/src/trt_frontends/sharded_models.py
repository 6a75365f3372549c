"""Models that are sharded over processes: compiled from the shards of this one, called with `DTensor`s or shards."""

from __future__ import annotations

from typing import Any

from torch import nn

from trt_converters import DYNAMO_CONVERTERS
from trt_core import ExportError
from trt_core.internals import pytree
from trt_frontends.example_inputs import ExampleInputs
from trt_lowering.sharded_modules import ShardedModule, is_sharded, require_sharded_alike, shards_of_inputs


def open_shards(module: Any, examples: ExampleInputs | None) -> tuple[Any, ExampleInputs | None]:
    """Returns a model and inputs that this process can capture alone; those without `DTensor`s as they are.

    Args:
        module: A module, or whatever else can be compiled.
        examples: What it is captured for.
    """
    if not isinstance(module, nn.Module) or examples is None:
        return module, examples
    args, kwargs, shardings = shards_of_inputs(examples.args, examples.kwargs)
    if not shardings and not is_sharded(module):
        return module, examples
    return ShardedModule(module, shardings, tuple(DYNAMO_CONVERTERS)), ExampleInputs(args, kwargs)


def opened_after(error: ExportError, module: Any) -> ShardedModule:
    """Returns the shell of a module that makes `DTensor`s of plain tensors in `forward`, as its capture has shown.

    Args:
        error: What capturing it ended with.
        module: What was captured.

    Raises:
        ExportError: The same, where it ended for another reason.
    """
    if isinstance(module, ShardedModule) or "DTensor" not in str(error.__cause__):
        raise error
    return ShardedModule(module, whole=tuple(DYNAMO_CONVERTERS))


def keep_boundary(module: Any, compiled: nn.Module) -> None:
    """Lets a compiled model take and return `DTensor`s where the model does.

    Args:
        module: What was captured.
        compiled: What it was compiled to; it takes and returns shards.
    """
    if not isinstance(module, ShardedModule) or not (module.boundary.inputs or module.boundary.outputs):
        return
    boundary = module.boundary

    def take_shards(_: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        return require_sharded_alike(args, kwargs, boundary.inputs)

    def put_together(_: nn.Module, args: Any, result: Any) -> Any:
        flat, spec = pytree.tree_flatten(result)
        for index, sharding in boundary.outputs.items():
            flat[index] = sharding.distributed(flat[index])
        return pytree.tree_unflatten(flat, spec)

    compiled.register_forward_pre_hook(take_shards, with_kwargs=True)
    compiled.register_forward_hook(put_together)
