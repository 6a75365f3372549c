"""What importing a package loads, and what it must not."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import pytest

PACKAGES: Final = (
    "trt_core",
    "trt_portable",
    "trt_lowering",
    "trt_partition",
    "trt_converters",
    "trt_runtime",
    "trt_frontends",
)

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
