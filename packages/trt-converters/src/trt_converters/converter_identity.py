"""Which code converts a block: part of what its engine depends on.

Built-in converters are identified by the sources of this package. A converter of others is identified by its
distribution's version and by the sources of the package that defines it. One whose behaviour also follows from values
that it closes over has an identity only where these are plain numbers and texts.
"""

from __future__ import annotations

import functools
import inspect
import sys
from importlib.metadata import packages_distributions, version
from pathlib import Path

from torch import fx

import trt_converters
from trt_converters.content_digest import file_digest, source_digest
from trt_converters.converter import BUILTIN, Converter, ConverterFunction
from trt_converters.registry import ConverterRegistry
from trt_converters.support import ConverterSupport
from trt_core import CompilationSettings
from trt_core.uncacheable import Uncacheable

_LITERALS = (bool, int, float, str, bytes, type(None))


def identify_converters(
    block: fx.GraphModule, settings: CompilationSettings, registry: ConverterRegistry
) -> dict[str, str]:
    """Returns what identifies the converters of a block, by package.

    Raises:
        Uncacheable: A converter has no identity that another process could recognize.
    """
    found = {BUILTIN: source_digest(str(Path(trt_converters.__file__).parent))}
    support = ConverterSupport(settings, registry)
    foreign: dict[str, set[str]] = {}
    for node in block.graph.nodes:
        if node.op != "call_function" or all(one.is_builtin for one in registry.candidates(node.target)):
            continue
        converter = support.find(node)
        if converter is not None and not converter.is_builtin:
            foreign.setdefault(converter.origin, set()).add(_identify(converter))
    found.update((origin, "; ".join(sorted(parts))) for origin, parts in foreign.items())
    return found


def _identify(converter: Converter) -> str:
    function = inspect.unwrap(converter.function)
    where = f"{converter.origin}: {converter.name}"
    kept = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    kept += getattr(function, "__defaults__", None) or ()
    kept += (getattr(function, "__kwdefaults__", None) or {}).values()
    if not all(isinstance(value, _LITERALS) for value in kept):
        raise Uncacheable("a converter closes over values that cannot be compared", where)
    code = _code_of(function)
    if not code:
        raise Uncacheable("a converter has no source file", where)
    return f"{function.__qualname__} {kept!r} fold={converter.fold} {code}"


def _code_of(function: ConverterFunction) -> str:
    """Identifies the package that a function is defined in, or its file where it lies in no package."""
    name = (getattr(function, "__module__", None) or "").partition(".")[0]
    package = sys.modules.get(name)
    if package is not None and getattr(package, "__path__", None) and package.__file__:
        return f"{_release_of(name)} {source_digest(str(Path(package.__file__).parent))}".strip()
    try:
        path = inspect.getsourcefile(function)
    except TypeError:
        path = None
    return "" if path is None or not Path(path).is_file() else file_digest(path)


@functools.cache
def _release_of(package: str) -> str:
    return " ".join(f"{name} {version(name)}" for name in sorted(set(packages_distributions().get(package, ()))))
