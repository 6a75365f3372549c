"""Exported programs: copies with changes, and as modules whatever their models call their tensors.

A graph module has attributes of its own (`graph`, `code`, `meta`, `recompile`), and bodies of control flow lie among
its children. A model may well have a buffer, a parameter or a child of such a name, which runs and exports: only the
module that PyTorch makes of the program has no room for it. So what a model holds under such a name is an attribute of
another one in graphs, which tells the model's own.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import fx, nn

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_OF_MODEL: Final = "_of_model_"
_OF_GRAPHS: Final = (_OF_MODEL, "_run_on_acc_", "_run_on_gpu_", "_guards_fn", "_lowered_constant")
"""Starts of the names that lowering and splitting give to attributes."""
_SET_LATER: Final = frozenset({"shape_env", "validate_inputs", "range_constraints", "module_call_signatures"})
"""What PyTorch sets on modules of programs."""
_PART: Final = nn.Module()
_FREED: Final = "has_free_names"
"""Key of the `meta` of a program's graph module."""


def model_name(path: str) -> str:
    """Returns what a model calls an attribute of its graph.

    Args:
        path: The target of a `get_attr` node, `encoder.weight`.
    """
    if _OF_MODEL not in path:
        return path
    return ".".join(part.removeprefix(_OF_MODEL) for part in path.split("."))


def module_of(program: ExportedProgram, **options: Any) -> fx.GraphModule:
    """Returns a program as a module that is called like the model; `model_name` tells how its attributes were called.

    Args:
        program: The program; left as it is.
        options: See `torch.export.ExportedProgram.module`.
    """
    module = with_free_names(program).module(**options)
    assert isinstance(module, fx.GraphModule)
    return module


def copy_of_graph(program: ExportedProgram) -> fx.GraphModule:
    """Returns a copy of a program's graph, whose nodes have the names that the program's signature says."""
    module = fx.GraphModule(program.graph_module, copy.deepcopy(program.graph))
    module.meta.update(program.graph_module.meta)
    for original, copied in zip(program.graph.nodes, module.graph.nodes, strict=True):
        copied.name = original.name  # a copy renames what is called like a Python builtin
    return module


def with_changes(program: ExportedProgram, module: fx.GraphModule, **changes: Any) -> ExportedProgram:
    """Returns a program of another graph.

    Args:
        program: What it is made from; left as it is.
        module: The graph, such as `copy_of_graph` gives; it belongs to the new program from here on.
        changes: Arguments of `torch.export.ExportedProgram` that differ.
    """
    given: dict[str, Any] = {
        "graph_signature": program.graph_signature,
        "state_dict": program.state_dict,
        "range_constraints": program.range_constraints,
        "module_call_graph": program.module_call_graph,
        "example_inputs": program.example_inputs,
        "constants": program.constants,
        "verifiers": program.verifiers,
    }
    return torch.export.ExportedProgram(root=module, graph=module.graph, **{**given, **changes})


def with_free_names(program: ExportedProgram) -> ExportedProgram:
    """Returns a program in which no tensor is called like an attribute of modules; itself where none is.

    PyTorch makes a module of a program to trace it again, too: `run_decompositions` wants such names.
    """
    if _FREED in program.graph_module.meta:
        return program
    held = {str(spec.target) for spec in program.graph_signature.input_specs if spec.target is not None}
    held |= {*program.state_dict, *program.constants}
    owner = program.graph_module
    renamed = {name: free for name in held if (free := _free_name(name, owner)) != name}
    if not renamed:
        return program

    def free_specs(specs: Any) -> list[Any]:
        return [dataclasses.replace(spec, target=renamed.get(spec.target, spec.target)) for spec in specs]

    signature = program.graph_signature
    module = copy_of_graph(program)
    module.meta[_FREED] = True
    return with_changes(
        program,
        module,
        graph_signature=torch.export.ExportGraphSignature(
            free_specs(signature.input_specs), free_specs(signature.output_specs)
        ),
        state_dict={renamed.get(name, name): value for name, value in program.state_dict.items()},
        constants={renamed.get(name, name): value for name, value in program.constants.items()},
    )


def _free_name(path: str, owner: nn.Module) -> str:
    """The path with a prefix at each part that modules have an attribute of; `owner` is the one at the root."""
    first, *rest = path.split(".")
    taken = first in _SET_LATER or first.startswith(_OF_GRAPHS) or hasattr(owner, first)
    parts = [_OF_MODEL + first if taken else first]
    parts += [_OF_MODEL + part if part.startswith(_OF_MODEL) or hasattr(_PART, part) else part for part in rest]
    return ".".join(parts)
