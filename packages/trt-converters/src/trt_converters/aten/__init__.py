"""Converters of PyTorch's operators, one function per operator, one module per family.

A converter is named after its operator, its parameters mirror the schema, and the schema is the first line of its
docstring. Importing a module registers its converters; `load` imports all of them.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil

from trt_converters.aten import experts, vision


def load() -> None:
    """Imports every family, once; operators that other packages define are registered when those are there."""
    _import_families()
    vision.register()
    experts.register()


@functools.cache
def _import_families() -> None:
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
