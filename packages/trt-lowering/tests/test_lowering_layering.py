from __future__ import annotations

import ast
import sys
from pathlib import Path

from fresh_process import run_python

import trt_lowering

SOURCES = sorted(Path(trt_lowering.__file__).parent.rglob("*.py"))


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


def test_imports_only_torch_core_and_the_standard_library():
    allowed = set(sys.stdlib_module_names) | {"torch", "trt_core", "trt_lowering"}
    assert {str(path): imported(path) - allowed for path in SOURCES if imported(path) - allowed} == {}


def test_public_names_exist():
    assert all(hasattr(trt_lowering, name) for name in trt_lowering.__all__)


def test_import_loads_neither_inductor_nor_cuda():
    code = (
        "import sys, torch, trt_lowering;"
        "assert 'torch._inductor' not in sys.modules;"
        "assert not torch.cuda.is_initialized()"
    )
    done = run_python(code, bare=True)
    assert done.returncode == 0, done.stderr
