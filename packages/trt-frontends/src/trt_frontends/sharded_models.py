"""Models that are sharded over processes: compiled from the shards of this one, called with `DTensor`s or shards."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final

from torch import nn

from trt_converters import DYNAMO_CONVERTERS
from trt_core import CompilationSettings, ExportError
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


_builds: Final = itertools.count()


@contextlib.contextmanager
def first_rank_first(module: Any, settings: CompilationSettings) -> Iterator[Callable[[], None]]:
    """Lets rank 0 build before the others, where these can take its engines from the cache and refit them.

    That is so where engines are built for refitting and cached in a folder that all ranks see: shards of one form
    differ in their weights only. A rank that waits in vain builds for itself.

    Args:
        module: What was captured.
        settings: What it is compiled with.

    Yields:
        What is called before engines are looked for: it waits on all ranks but the first, which meanwhile do what each
        of them has to do.
    """
    import torch.distributed as dist

    shares = settings.refit and bool(settings.engine_cache_dir) and not settings.dryrun
    if not shares or not isinstance(module, ShardedModule) or str(dist.get_backend()) == "fake":
        yield lambda: None
        return
    from trt_runtime.internals import default_store

    store, place = default_store(), f"trt/build/{next(_builds)}"
    is_first = dist.get_rank() == 0

    def wait() -> None:
        if not is_first:
            with contextlib.suppress(RuntimeError):  # the time limit of the process groups
                store.get(place)

    try:
        yield wait
    finally:
        if is_first:
            store.set(place, "done")


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
