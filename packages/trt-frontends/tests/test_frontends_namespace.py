"""The names of the package: lazy imports, the dynamo namespace, the alias, and counting support in a graph."""

from __future__ import annotations

import importlib.util
import sys

import pytest
import torch
from fresh_process import run_python
from torch import nn

import trt_frontends
from trt_core import SettingsError
from trt_frontends import dynamo
from trt_frontends.dynamo.conversion._ConverterRegistry import DYNAMO_CONVERTERS
from trt_frontends.dynamo.partitioning import get_graph_converter_support


@pytest.mark.parametrize("name", trt_frontends.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(trt_frontends, name) is not None
    assert name in dir(trt_frontends)


def test_the_namespace_has_the_same_functions() -> None:
    for name in ("compile", "explain", "trace", "save", "load", "CompilationSettings", "PartitionReport"):
        assert getattr(dynamo, name) is getattr(trt_frontends, name)


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'compil'"):
        _ = trt_frontends.compil


def test_importing_costs_nothing_that_is_not_used() -> None:
    script = (
        "import sys, trt_frontends\n"
        "costly = ('tensorrt', 'trt_portable', 'trt_converters', 'trt_lowering', 'rich', 'typer', 'torch._inductor')\n"
        "print([name for name in costly if name in sys.modules])"
    )
    result = run_python(script, bare=True)
    assert result.stdout.strip() == "[]", result.stderr


def test_the_alias_is_the_package() -> None:
    before = set(sys.modules)
    if importlib.util.find_spec("torch_tensorrt") is not None:
        with pytest.raises(ImportError, match="is installed"):
            trt_frontends.install_alias()
        return
    try:
        trt_frontends.install_alias()
        trt_frontends.install_alias()  # again is fine
        import torch_tensorrt

        assert torch_tensorrt is trt_frontends
        from torch_tensorrt.dynamo.partitioning import get_graph_converter_support as aliased

        assert aliased is get_graph_converter_support
    finally:
        for name in set(sys.modules) - before:
            if name.partition(".")[0] == "torch_tensorrt":
                del sys.modules[name]


def test_the_registry_knows_the_built_in_converters() -> None:
    assert torch.ops.aten.embedding.default in DYNAMO_CONVERTERS
    assert torch.ops.aten.special_bessel_j0.default not in DYNAMO_CONVERTERS


def test_counting_support_in_a_graph(mlp: nn.Module) -> None:
    gm = torch.export.export(mlp, (torch.ones(2, 4),)).module()
    assert get_graph_converter_support(gm) == (3, 3)
    assert get_graph_converter_support(gm, torch_executed_ops={"aten.relu"}) == (2, 3)
    with pytest.raises(SettingsError, match=r"aten\.reluu"):
        get_graph_converter_support(gm, torch_executed_ops={"aten.reluu"})
