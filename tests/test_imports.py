"""What importing a package loads, and what it must not."""

from __future__ import annotations

import os
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

WITHOUT_DYNAMO: Final = ("trt_runtime.isolation.isolated_program",)
"""Modules whose users wait for a process, and are not to wait longer for what only tracing needs."""

MODULES: Final = {
    "trt_core.modelopt_operators",
    "trt_core.quantization",
    "trt_core.trt",
    "trt_frontends.distributed",
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
import os, sys, torch, warnings
before = set(sys.modules)
warnings.filterwarnings("error", category=DeprecationWarning, module="trt_")
for package in sys.argv[1:]:
    if len(sys.argv) > 2:  # each in a fork, which has imported nothing but PyTorch
        child = os.fork()
        if child:
            if os.waitpid(child, 0)[1]:
                sys.exit(package)
            continue
    __import__(package)
    print(package, torch.cuda.is_initialized(), *sorted(set(sys.modules) - before))
    break
"""


@pytest.fixture(scope="module")
def all_imported() -> dict[str, list[str]]:
    """What importing each package in a fresh process tells."""
    lines = []
    for packages in (
        [(*PACKAGES, *WITHOUT_DYNAMO)]
        if hasattr(os, "fork")
        else [[package] for package in (*PACKAGES, *WITHOUT_DYNAMO)]
    ):
        done = run_python(_SCRIPT, *packages, bare=True)
        assert done.returncode == 0, done.stderr
        lines += done.stdout.splitlines()
    return {package: told for package, *told in map(str.split, lines)}


@pytest.fixture(params=PACKAGES)
def imported(request: pytest.FixtureRequest, all_imported: dict[str, list[str]]) -> tuple[str, bool, set[str]]:
    """Imports a package in a fresh process: (package, whether CUDA was initialized, modules it added to torch's)."""
    initialized, *modules = all_imported[request.param]
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


@pytest.mark.parametrize("module", WITHOUT_DYNAMO)
def test_some_modules_do_without_dynamo(module: str, all_imported: dict[str, list[str]]) -> None:
    assert not {"torch._dynamo", "torch._inductor"} & set(all_imported[module])


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
