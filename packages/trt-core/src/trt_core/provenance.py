"""Where a node of a graph comes from: the module it belongs to and the line of code that made it."""

from __future__ import annotations

import functools
import re

from torch import fx

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')

_IN_TORCH = re.compile(r"[/\\]torch[/\\](nn|functional|_[a-z]\w*|utils|overrides|fx|export)[/\\.]")
"""Files of PyTorch itself: `torch/nn/modules/linear.py` is never the line of code that a reader looks for."""

PLACEHOLDER_MODULE = "_empty_nn_module_stack_from_metadata_hook"
"""What export writes for nodes that belong to no module."""


def module_path(node: fx.Node) -> str:
    """Returns the dotted path of the innermost module that made the node, `encoder.layer.0`; empty at the root."""
    stack = node.meta.get("nn_module_stack")
    return plain_path(next(reversed(stack.values()))[0]) if stack else ""


def module_paths(node: fx.Node) -> tuple[str, ...]:
    """Returns the dotted paths of all modules around the node, outermost first; the root, which has none, is left out.

    A module that is called several times has one path.
    """
    stack = node.meta.get("nn_module_stack") or {}
    paths = (plain_path(path).partition("@")[0] for path, _ in stack.values())
    return tuple(dict.fromkeys(path for path in paths if path))


@functools.lru_cache(maxsize=4096)
def plain_path(path: object) -> str:
    """Returns the dotted path that `nn_module_stack` writes, `encoder.0`; empty for the root and for no module."""
    if path == PLACEHOLDER_MODULE:
        return ""
    # export writes paths relative to the root, torch.compile writes them as L['self'].encoder, and as L['fn'].encoder
    # where the root is of a class of PyTorch's own
    plain = re.sub(r"^L\['(self|fn)'\]\.?", "", str(path))
    return re.sub(r"\[['\"]?([^\]'\"]+)['\"]?\]", r".\1", plain).strip(".")


def node_location(node: fx.Node) -> str:
    """Returns `module path/node name`, or the node's name alone at the root."""
    path = module_path(node)
    return f"{path}/{node.name}" if path else node.name


def source_line(node: fx.Node) -> str:
    """Returns `file:line` of the innermost frame outside PyTorch that made the node, or an empty string."""
    trace = node.meta.get("stack_trace") or node.stack_trace
    if not trace:
        return ""
    frames = _FRAME.findall(trace)
    own = [frame for frame in frames if not _IN_TORCH.search(frame[0])]
    file, line = (own or frames or [("", "")])[-1]
    return f"{file}:{line}" if file else ""
