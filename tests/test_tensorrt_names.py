"""Every name of TensorRT that our packages use exists in both versions of the real bindings.

Three nets, so that none slips through: the syntax trees of all sources (`trt.X.Y`, names given as strings to the
network helpers, calls of `add_*`), every name that only one version has, and a recording of what really happens on
provider objects while models compile and run.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorrt_api
import torch
from binding_calls import PACKAGES, CallChecker, is_ours
from small_models import MODELS
from torch import nn

import trt_frontends
import trt_portable
from trt_core import Input

ROOT = Path(__file__).parents[1]
SOURCES = sorted(path for name in PACKAGES for path in (ROOT / f"packages/trt-{name}/src").rglob("*.py"))
APIS = [tensorrt_api.load(version) for version in tensorrt_api.VERSIONS]

GUARDED = {
    # name that only one version has -> functions that use it behind a check of the version
    "add_attention_v2": {"_attention_layer"},
    "CausalMaskKind": {"_attention_layer", "_causal_kind"},
}

PORTABLE_ONLY = {"call_limits", "collectives", "create_tensor_runner"}
"""What only the portable provider has; asked for with `hasattr` or a default, as TensorRT lacks it."""

HELPERS = {
    # network helper -> (position of the name among its arguments, enumeration)
    "binary": (1, "ElementWiseOperation"),
    "unary": (1, "UnaryOperation"),
    "activation": (1, "ActivationType"),
    "reduce": (1, "ReduceOperation"),
}


def _trees(pattern: str) -> Iterator[tuple[Path, ast.Module]]:
    """Yields the sources in which a regular expression is found."""
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        if re.search(pattern, text):
            yield path.relative_to(ROOT), ast.parse(text)


def _chains(tree: ast.Module) -> Iterator[list[str]]:
    """Yields attribute chains that start at `trt`: ["DataType", "FLOAT"]."""
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and id(node) not in inner:
            parts: list[str] = []
            current: ast.expr = node
            while isinstance(current, ast.Attribute):
                parts.insert(0, current.attr)
                current = current.value
            if isinstance(current, ast.Name) and current.id == "trt":
                yield parts


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.version)
def test_names_after_trt_exist(api: tensorrt_api.Api) -> None:
    missing = []
    seen = 0
    for path, tree in _trees(r"\btrt\b"):
        for name, *rest in _chains(tree):
            seen += 1
            if name.startswith("__") or name in GUARDED:
                continue
            known = api.has_name(name)
            if known and rest and name in api.data["enums"]:
                known = api.has_member(name, rest[0])
            elif known and rest and name in api.data["classes"]:
                known = rest[0] in api.attributes(name) | {"__init__"}
            if not known:
                missing.append(f"{path}: trt.{'.'.join([name, *rest])}")
    assert seen > 50
    assert not missing


def _literals(node: ast.expr) -> Iterator[str]:
    """Yields the strings that an expression can be, for constants and conditional expressions."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from _literals(node.body)
        yield from _literals(node.orelse)


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.version)
def test_names_given_to_network_helpers_exist(api: tensorrt_api.Api) -> None:
    missing = []
    seen = 0
    for path, tree in _trees(rf"\b({'|'.join(HELPERS)})\b"):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in HELPERS:
                position, enum = HELPERS[node.func.id]
                if len(node.args) > position:
                    for name in _literals(node.args[position]):
                        seen += 1
                        if not api.has_member(enum, name):
                            missing.append(f"{path}:{node.lineno}: {enum}.{name}")
    assert seen > 50
    assert not missing


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.version)
def test_calls_of_network_methods_fit_a_signature(api: tensorrt_api.Api) -> None:
    wrong = []
    seen = 0
    for path, tree in _trees(r"\badd_"):
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            method = node.func.attr
            if not method.startswith("add_") or not _is_network(node.func.value) or method in GUARDED:
                continue
            seen += 1
            if any(isinstance(argument, ast.Starred) for argument in node.args):
                continue
            keywords = {keyword.arg for keyword in node.keywords}
            overloads = api.parameters("INetworkDefinition", method)
            if not any(_fits(overload, len(node.args), keywords) for overload in overloads):
                wrong.append(f"{path}:{node.lineno}: {method}")
    assert seen > 20
    assert not wrong


def _is_network(node: ast.expr) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name == "network"


def _fits(parameters: list[tuple[str, bool]], positional: int, keywords: set[str | None]) -> bool:
    if positional > len(parameters):
        return False
    remaining = dict(parameters[positional:])
    return keywords <= set(remaining) and all(default or name in keywords for name, default in remaining.items())


def test_names_of_one_version_stay_behind_a_version_check() -> None:
    first, second = (api.all_names() for api in APIS)
    only_newer = second - first  # the portable provider follows the newer one: what only the older has fails there
    stray = []
    for path, tree in _trees("|".join(map(re.escape, sorted(only_newer)))):
        for function in _functions(tree):
            for node in ast.walk(function):
                name = (
                    node.attr
                    if isinstance(node, ast.Attribute)
                    else node.value
                    if isinstance(node, ast.Constant) and isinstance(node.value, str)
                    else None
                )
                if name in only_newer and function.name not in GUARDED.get(name, set()):
                    stray.append(f"{path}:{node.lineno}: {name} in {function.name}")
    assert not stray


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


class Recorder:
    """Records which attributes of provider objects our packages read and write."""

    def __init__(self, module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: set[tuple[str, str]] = set()
        for name in dir(module):
            cls = getattr(module, name)
            if isinstance(cls, type) and cls.__module__.startswith(module.__name__) and name[:1].isupper():
                self._watch(cls, monkeypatch)

    def _watch(self, cls: type, monkeypatch: pytest.MonkeyPatch) -> None:
        seen = self.seen
        if "__getattribute__" in vars(cls) or any(base is BaseException for base in cls.__mro__):
            return
        read, write = cls.__getattribute__, cls.__setattr__

        def getattribute(instance: Any, attribute: str) -> Any:
            if is_ours(sys._getframe(1).f_code.co_filename):
                seen.add((type(instance).__name__, attribute))
            return read(instance, attribute)

        def setattribute(instance: Any, attribute: str, value: Any) -> None:
            if is_ours(sys._getframe(1).f_code.co_filename):
                seen.add((type(instance).__name__, attribute))
            write(instance, attribute, value)

        for method, replacement in (("__getattribute__", getattribute), ("__setattr__", setattribute)):
            try:
                monkeypatch.setattr(cls, method, replacement)
            except TypeError:  # an enumeration or a built-in type
                return


def test_what_is_used_while_models_compile_and_run_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(trt_portable, monkeypatch)
    for name in ("bert", "unet"):
        specs = MODELS[name].dynamic
        model = MODELS[name].make()
        compiled = trt_frontends.compile(trt_frontends.trace(model, arg_inputs=specs), arg_inputs=specs)
        with torch.no_grad():
            compiled(*[spec.example() for spec in specs])
    assert len(recorder.seen) > 50
    missing = []
    for class_name, attribute in sorted(recorder.seen):
        if attribute.startswith("_") or attribute in GUARDED or attribute in PORTABLE_ONLY:
            continue
        if class_name in ("RecordingLogger", "Logger"):
            continue
        for api in APIS:
            if class_name in api.data["classes"] and attribute not in api.attributes(class_name):
                missing.append(f"{api.version}: {class_name}.{attribute}")
    assert not missing


class Sized(nn.Module):
    """Reads sizes, and returns a tensor whose size depends on data."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.cat([x, x.flip(0)]).reshape(2, x.shape[0], -1).sort(-1).values
        return rows @ rows.transpose(1, 2), torch.nonzero(x > 0)


def test_calls_for_sizes_that_vary_fit_the_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = CallChecker(trt_portable, monkeypatch)
    rows = Input(min_shape=(2, 4), opt_shape=(3, 4), max_shape=(8, 4))
    compiled = trt_frontends.compile(Sized().eval(), arg_inputs=(rows,), min_block_size=1, optimization_level=0)
    x = torch.randn(5, 4)
    torch.testing.assert_close(compiled(x), Sized()(x))
    called = {name for _, name in calls.seen}
    assert {
        "set_shape",
        "add_optimization_profile",
        "set_input_shape",
        "infer_shapes",
        "set_output_allocator",
    } <= called
    assert not calls.wrong, "\n".join(calls.wrong)
