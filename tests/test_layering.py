"""Which package may import which: the architecture's table, held against the sources and the declared dependencies.

And the one module of each package that may name PyTorch's private parts.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterator, Sequence, Set
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeGuard

import pytest
import torch

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent

MAY_IMPORT: Final[dict[str, set[str]]] = {
    "trt_core": set(),
    "trt_portable": {"trt_core"},
    "trt_lowering": {"trt_core"},
    "trt_partition": {"trt_core"},
    "trt_converters": {"trt_core"},
    "trt_runtime": {"trt_core"},
    "trt_frontends": {"trt_converters", "trt_core", "trt_lowering", "trt_partition", "trt_portable", "trt_runtime"},
}
"""Package to the packages of ours that it may import, at any depth of its code."""

ALSO_DEPENDS_ON: Final[dict[str, set[str]]] = {
    # Both load a provider through trt_core's facade, and the portable one must be there where TensorRT is not.
    "trt_converters": {"trt_portable"},
    "trt_runtime": {"trt_portable"},
}
"""Distributions that a package needs installed without importing them."""

COMES_WITH: Final = {"sympy": "torch", "triton": "torch", "typing_extensions": "torch"}
"""Modules that a dependency itself brings, and the dependency that brings them: Triton only where it is for CUDA."""


PYTHONS: Final = frozenset({"_exit", "_getframe", "_replace"})
"""Names that only look private: of `os`, of `sys`, and of named tuples."""


def _distribution(package: str) -> str:
    return package.replace("_", "-")


def _project(package: str) -> dict[str, Any]:
    text = (ROOT / "packages" / _distribution(package) / "pyproject.toml").read_text(encoding="utf-8")
    project: dict[str, Any] = tomllib.loads(text)["project"]
    return project


def _requirement_names(requirements: list[str]) -> set[str]:
    found = (re.match(r"[A-Za-z0-9._-]+", requirement) for requirement in requirements)
    return {match.group().lower() for match in found if match}


def imports_of(source: str) -> Iterator[tuple[int, str]]:
    """Yields (line, module) of every absolute import in a source text, those inside functions included."""
    for node in _importing(source):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.Call):
            yield node.lineno, ast.literal_eval(node.args[0])
        elif node.level == 0 and node.module:
            yield node.lineno, node.module


@functools.cache
def _importing(source: str) -> list[ast.Import | ast.ImportFrom | ast.Call]:
    """Returns what imports in a source text: several tests read each, and keep no trees."""
    nodes = ast.walk(ast.parse(source))
    return [node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom)) or _is_importing_call(node)]


def _is_importing_call(node: ast.AST) -> TypeGuard[ast.Call]:
    if not (isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant)):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return name in ("import_module", "__import__") and isinstance(node.args[0].value, str)


@functools.cache
def _imports(package: str) -> list[tuple[str, str]]:
    """Returns (place, top-level module) of every import in a package."""
    found = []
    for path in sorted((ROOT / "packages" / _distribution(package) / "src").rglob("*.py")):
        for line, module in imports_of(path.read_text(encoding="utf-8")):
            found.append((f"{path.relative_to(ROOT)}:{line}", module.partition(".")[0]))
    return found


def test_the_table_names_every_package() -> None:
    folders = {path.parent.name.replace("-", "_") for path in ROOT.glob("packages/*/pyproject.toml")}
    assert folders == set(MAY_IMPORT)


def test_the_table_has_no_cycle() -> None:
    order: list[str] = []
    while len(order) < len(MAY_IMPORT):
        ready = [name for name, below in MAY_IMPORT.items() if name not in order and below <= set(order)]
        assert ready, "packages import each other in a circle"
        order += ready


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_package_imports_only_what_lies_below_it(package: str) -> None:
    allowed = MAY_IMPORT[package] | {package}
    wrong = [f"{place} imports {name}" for place, name in _imports(package) if name in MAY_IMPORT.keys() - allowed]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_package_depends_on_exactly_what_the_table_says(package: str) -> None:
    declared = {name for name in _requirement_names(_project(package)["dependencies"]) if name.startswith("trt-")}
    expected = MAY_IMPORT[package] | ALSO_DEPENDS_ON.get(package, set())
    assert declared == {_distribution(name) for name in expected}


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_whatever_is_imported_is_declared(package: str) -> None:
    project = _project(package)
    declared = _requirement_names(project["dependencies"])
    for extra in project.get("optional-dependencies", {}).values():
        declared |= _requirement_names(extra)
    inherited = {"torch"} if "trt-core" in declared else set()  # trt-core's API is PyTorch's types
    own = {_distribution(path.name) for path in (ROOT / "packages" / _distribution(package) / "src").iterdir()}
    shown = {"triton-python-backend-utils"}  # by a server to the models that it runs; no distribution has it
    known = declared | inherited | own | shown
    wrong = [
        f"{place} imports {name}"
        for place, name in _imports(package)
        if name not in sys.stdlib_module_names and _distribution(COMES_WITH.get(name, name)) not in known
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", ["trt_converters", "trt_lowering", "trt_partition", "trt_portable"])
def test_modules_import_each_other_in_no_circle(package: str) -> None:
    """Imports at first use and for annotations count: a module can be read without those that read it."""
    source = ROOT / "packages" / _distribution(package) / "src"
    paths = {
        ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__"): path
        for path in source.rglob("*.py")
    }
    imports = {name: set(_modules_of(path, paths.keys())) - {name} for name, path in paths.items()}
    while leaves := [name for name, below in imports.items() if not below]:
        for name in leaves:
            del imports[name]
        for below in imports.values():
            below.difference_update(leaves)
    assert not imports, f"in circles, or above one: {', '.join(sorted(imports))}"


def test_what_does_not_quantize_pays_nothing_for_it() -> None:
    """Quantization after training is reached by its public names alone, which are loaded when they are first used."""
    source = ROOT / "packages/trt-frontends/src"
    users = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        for _, module in imports_of(path.read_text(encoding="utf-8"))
        if module.startswith("trt_frontends.quantization")
    }
    assert {user for user in users if not user.startswith("trt_frontends/quantization/")} == {
        "trt_frontends/__init__.py"
    }


def _modules_of(path: Path, known: Set[str]) -> Iterator[str]:
    """Yields the modules of a package that one of them imports, at any depth of its code."""
    for node in _importing(path.read_text(encoding="utf-8")):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name if name in known else node.module for name in names if {name, node.module} & known)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)


def test_the_scan_sees_imports_wherever_they_hide() -> None:
    source = """
import a.b
from c import d
from . import nothing
def f():
    import e
    importlib.import_module("g.h")
    __import__("i")
if TYPE_CHECKING:
    from j import k
"""
    assert {module for _, module in imports_of(source)} == {"a.b", "c", "e", "g.h", "i", "j"}


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_only_internals_name_private_parts_of_pytorch(package: str) -> None:
    allowed = _attributes(package) | _attributes("trt_core")
    sources = {
        path: [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
        for path in sorted((ROOT / "packages" / _distribution(package) / "src").rglob("*.py"))
    }
    for nodes in sources.values():
        allowed |= own_names(nodes)
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path, nodes in sources.items()
        if path.name != "internals.py"
        for line, name in private_parts(nodes, allowed)
    ]
    assert not wrong, "take these from internals.py:\n" + "\n".join(wrong)


def test_the_scan_sees_private_parts_wherever_they_hide() -> None:
    source = """
from torch._ops import OpOverload
from torch.utils import _pytree
import torch._inductor
def f(x: torch._ops.OpOverload, node):
    from torch.fx.experimental.proxy_tensor import make_fx
    torch._check(torch._int_mm(x, x) is torch.ops.aten._safe_softmax)
    with with_attributes(torch.export, _printed=1, shown=2):
        return node._schema, node._hidden, torch.compiler._flag, x.mine, getattr(torch.export, "_guards", None)
class C:
    def g(self): return self._own, other._own
    _own = 1
"""
    nodes = [*ast.walk(ast.parse(source))]
    assert [name for _, name in sorted(private_parts(nodes, {"_schema"} | own_names(nodes)))] == [
        "torch._ops.OpOverload",
        "torch.utils._pytree",
        "torch._inductor",
        "torch._ops.OpOverload",
        "torch.fx.experimental.proxy_tensor.make_fx",
        "._printed",
        "._hidden",
        "torch.compiler._flag",
        "torch.export._guards",
    ]


def own_names(nodes: Sequence[Any]) -> set[str]:
    """Returns what a module itself defines or sets: its private names are its package's own."""
    names = {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    names |= {node.attr for node in nodes if isinstance(node, ast.Attribute) and _is_self(node.value)}
    return names | {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def private_parts(nodes: Sequence[Any], allowed: set[str]) -> Iterator[tuple[int, str]]:
    """Yields (line, name) of private modules, functions and attributes of PyTorch in a source.

    Operators are no private parts, whatever their names: `torch._int_mm` is `torch.ops.aten._int_mm`.

    Args:
        nodes: Those of the source.
        allowed: Private attributes that may be read.
    """
    inner = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    for node in nodes:
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr" and _root(node.args[0]) == "torch":
            names = [f"{ast.unparse(node.args[0])}.{ast.unparse(node.args[1])[1:-1]}"]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "with_attributes":
            given = [item.arg for item in node.keywords if item.arg is not None and item.arg not in allowed]
            yield from ((node.lineno, f".{name}") for name in given if _is_private(name))
        elif isinstance(node, ast.Attribute) and node.attr not in allowed:
            if _root(node) != "torch":
                if _is_private(node.attr) and node.attr not in PYTHONS and not _is_operator(node):
                    yield node.lineno, f".{node.attr}"
            elif id(node) not in inner and not _is_operator(node):
                names = [ast.unparse(node)]
        yield from ((node.lineno, name) for name in names if _is_private_part(name))


def _is_private_part(dotted: str) -> bool:
    root, *parts = dotted.split(".")
    return root == "torch" and (any(map(_is_private, parts)) or parts[:2] == ["fx", "experimental"])


def _root(node: ast.expr) -> str | None:
    """Returns the first name of a chain of attributes, None where it begins with something else."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _is_operator(node: ast.Attribute) -> bool:
    """Whether this is an operator, by whatever name, or `torch._check`, which PyTorch documents."""
    return node.attr == "_check" or hasattr(torch.ops.aten, node.attr) or ".ops." in ast.unparse(node)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _attributes(package: str) -> set[str]:
    """Private attributes that a package may read: those of its seam; none where it has no seam."""
    seam = find_spec(f"{package}.internals")
    return set() if seam is None else set(getattr(import_module(seam.name), "ATTRIBUTES", {}))
