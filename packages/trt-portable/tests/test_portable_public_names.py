"""The facade: what the stub lists is there, and nothing is imported before it is used."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest
from fresh_process import run_python

import trt_portable as trt
from trt_portable import read_stub
from trt_portable.network.serialization import FUSED, HOMES, layer_class

STUB = Path(trt.__file__).with_suffix(".pyi")


def test_every_public_name_is_there() -> None:
    homes, constants = read_stub(STUB)
    (listed,) = (
        ast.literal_eval(statement.value)
        for statement in ast.parse(STUB.read_text()).body
        if isinstance(statement, ast.Assign)
    )
    assert sorted(listed) == sorted(trt.__all__) == sorted({*homes, *constants})
    assert [name for name in listed if not hasattr(trt, name)] == []
    assert set(listed) <= set(dir(trt))
    assert trt.float32 is trt.DataType.FLOAT


def test_names_live_where_the_stub_says() -> None:
    homes, _ = read_stub(STUB)
    for name, home in homes.items():
        value = getattr(trt, name)
        if inspect.isclass(value):
            assert value.__module__.startswith(home), f"{name} lives in {value.__module__}"


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Bulider'"):
        trt.Bulider  # noqa: B018


def test_a_function_keeps_its_name_beside_the_module_of_that_name() -> None:
    script = "import trt_portable.runtime.cuda_engine, trt_portable as trt; assert callable(trt.device), trt.device"
    assert run_python(script, bare=True).returncode == 0


def test_every_kind_of_layer_is_where_it_is_said_to_be() -> None:
    for module, kinds in HOMES.items():
        for kind in kinds:
            found = layer_class(kind)
            assert found is not None
            assert found.__module__ == module
    from trt_portable.network.layer import LAYER_CLASSES

    assert layer_class("TELEPATHY") is None
    listed = {kind for kinds in HOMES.values() for kind in kinds}
    others = {kind: found.__module__ for kind, found in LAYER_CLASSES.items() if kind not in listed}
    assert listed <= set(LAYER_CLASSES) and others and set(others.values()) == {FUSED}


def test_plugins_are_imported_with_the_first_one() -> None:
    script = """
import sys
import trt_portable as trt

builder = trt.Builder(trt.Logger())
network = builder.create_network()
x = network.add_input("x", trt.float32, (2,))
network.mark_output(network.add_identity(x).get_output(0))
plan = builder.build_serialized_network(network, builder.create_builder_config())
assert trt.Runtime(trt.Logger()).deserialize_cuda_engine(plan).num_layers
print([name for name in sys.modules if name.startswith(("trt_portable.plugin", "trt_portable.layers.plugin_"))])
"""
    run = run_python(script, bare=True)
    assert run.stdout == "[]\n", run.stderr


def test_objects_show_the_names_of_the_api_alone() -> None:
    """Clients that print a network take every other name for an attribute of a layer."""
    network = trt.Builder(trt.Logger()).create_network()
    x = network.add_input("x", trt.float32, (1, 2, 4, 4))
    assert x is not None
    layer = network.add_pooling_nd(x, trt.PoolingType.MAX, trt.DimsHW(2, 2))
    assert layer is not None
    own = [name for name in dir(layer) if not hasattr(trt.ILayer, name)]
    assert "window_size_nd" in own
    assert not [name for name in own if name.startswith("_")]
    assert getattr(trt.PoolingType.MAX, "__entries").keys() == trt.PoolingType.__members__.keys()
