"""What importing a package loads, and what it must not."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import pytest
from fresh_process import run_python

PACKAGES: Final = (
    "trt_core",
    "trt_portable",
    "trt_lowering",
    "trt_partition",
    "trt_converters",
    "trt_runtime",
    "trt_frontends",
)

MODULES: Final = {
    "trt_core.modelopt_operators",
    "trt_core.quantization",
    "trt_core.trt",
    "trt_frontends.dynamo",
    "trt_frontends.logging",
    "trt_frontends.quantization",
    "trt_frontends.runtime",
}
"""Public names that are modules."""

NEVER_AT_IMPORT: Final = (
    "tensorrt",
    "torch._inductor",
    "jinja2",
    "rich",
    "typer",
    "timm",
    "torchvision",
    "transformers",
    "matplotlib",
)
"""Modules that cost time or a device, and are loaded at first use."""

_SCRIPT = """
import sys, torch
before = set(sys.modules)
__import__(sys.argv[1])
print(torch.cuda.is_initialized(), *sorted(set(sys.modules) - before))
"""


@pytest.fixture(scope="module", params=PACKAGES)
def imported(request: pytest.FixtureRequest) -> tuple[str, bool, set[str]]:
    """Imports a package in a fresh process: (package, whether CUDA was initialized, modules it added to torch's)."""
    command = [sys.executable, "-W", "error::DeprecationWarning:trt_", "-c", _SCRIPT, request.param]
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    initialized, *modules = done.stdout.split()
    return request.param, initialized == "True", set(modules)


def test_importing_touches_no_cuda_device(imported: tuple[str, bool, set[str]]) -> None:
    assert not imported[1]


def test_importing_loads_nothing_costly(imported: tuple[str, bool, set[str]]) -> None:
    assert not imported[2] & set(NEVER_AT_IMPORT)


def test_importing_loads_no_provider(imported: tuple[str, bool, set[str]]) -> None:
    package, _, modules = imported
    assert "tensorrt" not in modules
    assert package == "trt_portable" or "trt_portable" not in modules


def test_the_runtime_needs_no_compiler(imported: tuple[str, bool, set[str]]) -> None:
    package, _, modules = imported
    if package in ("trt_core", "trt_portable", "trt_runtime"):
        assert not modules & {"trt_converters", "trt_frontends", "trt_lowering", "trt_partition"}


_SHADOWED = """
import importlib, pkgutil, sys
for name in sys.argv[1:]:
    package = importlib.import_module(name)
    own = {found.name for found in pkgutil.iter_modules(package.__path__)}
    for public in own & set(package.__all__):
        importlib.import_module(f"{name}.{public}")
    for public in sorted(own & set(package.__all__)):
        print(f"{name}.{public}", type(getattr(package, public)).__name__)
"""


def test_no_module_takes_the_place_of_a_public_name() -> None:
    done = run_python(_SHADOWED, *PACKAGES)
    assert done.returncode == 0, done.stderr
    kinds = dict(line.split() for line in done.stdout.splitlines())
    assert {name for name, kind in kinds.items() if kind == "module"} == MODULES
