"""The graph of a split model as a function: flat inputs to flat outputs, and blocks that are nobody's modules.

For its caller a compiled model is one module. Hooks that are registered for all modules of the process
(`register_module_forward_hook`) fire on it once, and never on its blocks: a hook that changes what modules return would
change results between blocks that the model does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx, nn

Flat = Callable[..., Sequence[Any]]
"""Takes the module whose graph it is, and the flat inputs."""


def flat_function(graph: fx.Graph) -> Flat:
    """Returns a graph as a function of (module, *flat inputs) that returns the flat outputs.

    Args:
        graph: Calls children of the module, which are the blocks; it is not changed.
    """
    flat = fx.Graph()
    flat.output(flat.graph_copy(graph, {}))
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


def has_own_hooks(block: nn.Module) -> bool:
    """Whether hooks wait for calls of this very module."""
    return bool(block._forward_hooks or block._forward_pre_hooks)
