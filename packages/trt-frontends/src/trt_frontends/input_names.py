"""An `Input` may say which input of the model it is for; then it must be given there.

Where the model has one input only, no name can be meant for another, and one that the model does not know is a label.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Sequence
from typing import Any, Final

from trt_core import Input, InputError
from trt_core.settings_reader import level_of_caller
from trt_core.suggest import did_you_mean
from trt_frontends.example_inputs import ExampleInputs
from trt_runtime.program.graph import Signature
from trt_runtime.program.input_reader import places_of

_NUMBERED: Final = re.compile(r".+_\d+")


def require_names(examples: ExampleInputs, signature: inspect.Signature, title: str) -> None:
    """Checks the names of the inputs that a module is captured with.

    Args:
        examples: The inputs; they bind to the signature.
        signature: What the module's `forward` takes.
        title: How messages call the module.

    Raises:
        InputError: An `Input` is named after another parameter, or after none of several.

    Warns:
        UserWarning: It is not named after the only one.
    """
    known = signature.parameters
    variadic = {name for name, item in known.items() if item.kind is inspect.Parameter.VAR_POSITIONAL}
    for (parameter, place), leaf in zip(examples.places(signature), examples.leaves(), strict=True):
        if parameter not in variadic:  # what is given for *args has no name of its own
            _require_name(leaf, (parameter, place), list(known), f"{title}.forward{signature}")


def require_names_of(signature: Signature, flat: Sequence[Any]) -> None:
    """Checks the names of the inputs that an exported program is compiled for.

    Args:
        signature: How the program is called.
        flat: The inputs in its order.

    Raises:
        InputError: An `Input` is named after another input, or after none of several.

    Warns:
        UserWarning: It is not named after the only one.
    """
    roots = [
        name
        for name, tree in zip(signature.names, signature.structure, strict=True)
        for _ in places_of(Signature((name,), 1, (tree,), ()))
    ]
    for root, place, leaf in zip(roots, places_of(signature), flat, strict=True):
        if not _NUMBERED.fullmatch(root):  # so export calls what was given for *args
            _require_name(leaf, (root, place), signature.names, f"the program of ({', '.join(signature.names)})")


def _require_name(leaf: Any, allowed: tuple[str, str], known: Sequence[str], title: str) -> None:
    if not isinstance(leaf, Input) or leaf.name in ("", *allowed):
        return
    what = f"the Input named {leaf.name!r} is given for {allowed[1]!r} of {title}"
    if leaf.name in known:
        raise InputError(what, hint="give inputs in the order of the parameters, or by name in kwarg_inputs")
    if len(known) == 1:
        warnings.warn(f"{what}, which knows no such name", UserWarning, stacklevel=level_of_caller())
        return
    near = did_you_mean(leaf.name, known)
    raise InputError(
        what,
        why=f"there is no input of that name, only {', '.join(known)}",
        hint=f"{near + ' ' if near else ''}name it {allowed[0]!r}, or leave the name out",
    )
