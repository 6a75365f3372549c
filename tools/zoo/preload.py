"""Imports what every case needs. The server that children are forked from imports this once."""

from __future__ import annotations

import contextlib
import importlib
import warnings
from typing import Final

_MODULES: Final = (
    "torch._dynamo",
    "torch._inductor.compile_fx",
    "torch.export",
    "torchvision.models",
    "timm",
    "transformers.modeling_utils",
    "transformers.models.auto.modeling_auto",
    "diffusers.models.modeling_utils",
    "trt_converters.aten",
    "trt_frontends.backend",
    "trt_portable",
    "tools.zoo.check",
    "tools.zoo.registry",
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    for _name in _MODULES:
        with contextlib.suppress(ImportError):  # entries of a library that is not installed fail one by one
            importlib.import_module(_name)
