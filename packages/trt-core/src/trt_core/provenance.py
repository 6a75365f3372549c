"""Where a node of a graph comes from: the module it belongs to and the line of code that made it."""

from __future__ import annotations

import re

from torch import fx

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


def module_path(node: fx.Node) -> str:
    """Returns the dotted path of the innermost module that made the node, `encoder.layer.0`; empty at the root."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return ""
    path, _ = next(reversed(stack.values()))
    # export writes paths relative to the root, torch.compile writes them as L['self'].encoder
    path = re.sub(r"^L\['self'\]\.?", "", str(path))
    return re.sub(r"\[['\"]?([^\]'\"]+)['\"]?\]", r".\1", path).strip(".")


def node_location(node: fx.Node) -> str:
    """Returns `module path/node name`, or the node's name alone at the root."""
    path = module_path(node)
    return f"{path}/{node.name}" if path else node.name


def source_line(node: fx.Node) -> str:
    """Returns `file:line` of the innermost frame of model code that made the node, or an empty string."""
    trace = node.meta.get("stack_trace") or node.stack_trace
    if not trace:
        return ""
    frames = _FRAME.findall(trace)
    return f"{frames[-1][0]}:{frames[-1][1]}" if frames else ""
