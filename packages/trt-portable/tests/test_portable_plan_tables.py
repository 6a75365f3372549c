"""The tables of plans: read field by field, and never changed without another version of the format."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module
from typing import Any, Final

import pytest
import torch

import trt_portable as trt
from trt_core.files.container import LAYOUT
from trt_portable.network.layer import LAYER_CLASSES
from trt_portable.network.recurrence import Matrix, Recurrence
from trt_portable.network.serialization import FUSED, HOMES, TensorEntry
from trt_portable.optimization_profile import Profile, Range
from trt_portable.plan import tables
from trt_portable.plan.artifact import Artifact, Varying
from trt_portable.plan.engine_info import EngineInfo, IOTensor, WeightSlot
from trt_portable.plan.plan_file import PlanError, read_plan, write_plan
from trt_portable.runtime.cuda_engine import load_engine

LAYOUTS: Final = {
    3: "9428b80070799739",
    4: "f2abdce0686da9f5",
    5: "a8d775fc555aa480",
    6: "e6e44009b2fb6c4b",
    7: "aad3e109ac8966c4",
    8: "4e41e6bb25eebd3d",
    9: "89c73fdd50d45d67",
    10: "75aee997ecf3bc31",
    11: "c69f1e4f0039109a",
    12: "a3c8f76170f3deeb",
    13: "c2b114c9a5a49c75",
    14: "9c7cfd33957cc2dc",
    15: "c3ada232bcae3afa",
    16: "5c881d00101e2c38",
    17: "2ed1bfce9a528e26",
    18: "0f042c798b48152d",
    19: "874b72862284fa8c",
    20: "24943f119c82ab0b",
    21: "b539d5a7b50606fa",
    22: "2c88037123910117",
    23: "d754c395032e47da",
    24: "19c997eb5287fc8f",
    25: "81cb1505ecdc1191",
}
"""Digest of every table by version of the format. A version keeps its digest for ever."""


RECORDS: Final = (TensorEntry, EngineInfo, IOTensor, WeightSlot, Profile, Range, Recurrence, Matrix, Artifact, Varying)
"""Dataclasses that a plan holds; a field of each is a field there."""


def _layout() -> str:
    """What a plan of the present version looks like: fields of tables and records, attributes of layers."""
    parts: dict[str, Any] = {name: value for name, value in vars(tables).items() if name.isupper()}
    parts["container"] = LAYOUT
    for record in RECORDS:
        parts[record.__name__] = [field.name for field in fields(record)]
    del parts["FORMAT_VERSION"]
    homes = (*HOMES, FUSED)
    for home in homes:
        import_module(home)
    for name, kind in LAYER_CLASSES.items():
        if kind.__module__ not in homes:
            continue  # of another test
        parts[f"layer {name}"] = [attribute.name for attribute in kind._ATTRIBUTES], kind._ROLES, kind._NESTED
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def test_a_changed_table_has_another_version() -> None:
    assert LAYOUTS.get(tables.FORMAT_VERSION) == _layout(), (
        f"a table of plans, or an attribute of a layer, has changed: raise FORMAT_VERSION in trt_portable.plan.tables "
        f"and record the digest {_layout()} under the new version here"
    )
    assert len(set(LAYOUTS.values())) == len(LAYOUTS)


def _network() -> bytes:
    """A network with weights, a profile, a loop and layers with attributes of several kinds."""
    builder = trt.Builder(trt.Logger())
    network = builder.create_network()
    x = network.add_input("x", trt.DataType.FLOAT, (-1, 4))
    constant = network.add_constant((1, 4), trt.Weights(torch.ones(4).numpy())).get_output(0)
    start = network.add_elementwise(x, constant, trt.ElementWiseOperation.PROD).get_output(0)
    loop = network.add_loop()
    count = network.add_constant((), trt.Weights(torch.tensor(2, dtype=torch.int32).numpy())).get_output(0)
    loop.add_trip_limit(count, trt.TripLimit.COUNT)
    state = loop.add_recurrence(start)
    state.set_input(1, network.add_activation(state.get_output(0), trt.ActivationType.RELU).get_output(0))
    result = loop.add_loop_output(state.get_output(0), trt.LoopOutput.LAST_VALUE, 0).get_output(0)
    network.mark_output(result)
    config = builder.create_builder_config()
    profile = builder.create_optimization_profile()
    profile.set_shape("x", (1, 4), (2, 4), (3, 4))
    config.add_optimization_profile(profile)
    built = builder.build_serialized_network(network, config)
    assert built is not None
    return bytes(built)


def _objects(tree: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object of a structure whose fields are a table's, one of each kind."""
    if isinstance(tree, dict):
        yield path, tree
        for name, item in tree.items():
            yield from _objects(item, f"{path}.{name}")
    elif isinstance(tree, list):
        for item in tree:
            yield from _objects(item, path)


FREE: Final = {"settings", "dimension_names", "weights", "weight_specs", "weight_names", "values", "shapes"}
"""Objects with names of their own: what is missing there is found by what needs it, if anything does."""


def test_every_missing_or_foreign_field_is_named() -> None:
    """Each field of each table of a plan is taken away, and one is added: both are refused in words of ours."""
    plan = read_plan(_network())
    reporter = trt.Runtime(trt.Logger(trt.Logger.INTERNAL_ERROR))._reporter
    tried = set()
    for number, (path, table) in enumerate(_objects(plan.structure)):
        if FREE.intersection(path.split(".")):
            continue
        for field in [*table, "foreign"]:
            if (path, field, table.get("type")) in tried:
                continue
            tried.add((path, field, table.get("type")))
            structure = json.loads(json.dumps(plan.structure))
            changed = [found for _, found in _objects(structure)][number]
            changed.pop(field, None)
            if field == "foreign":
                changed[field] = 0
            if field in ("provider", "features"):
                with pytest.raises(PlanError, match=r"provider|features|trt-portable engine"):
                    read_plan(write_plan({**structure, field: None}, plan.weights))
                continue
            if field in ("provider_version", "torch_version"):
                continue  # a writer always adds them
            with pytest.raises(PlanError) as caught:
                load_engine(write_plan(structure, plan.weights, plan.structure["features"]), reporter)
            message = str(caught.value)
            assert repr(field) in message or "unknown type" in message or field == "type", (path, field, message)
            assert f"format {tables.FORMAT_VERSION}" in message
            assert "trt-portable" in message and "KeyError" not in message
    assert len(tried) > 80


@pytest.mark.parametrize("flags", [True, 1, "TF32", {"TF32": 1}, [True], None])
def test_flags_are_a_list_of_names(flags: Any) -> None:
    read = read_plan(_network())
    structure = json.loads(json.dumps(read.structure))
    structure["engine"]["settings"]["flags"] = flags
    plan = write_plan(structure, read.weights)
    with trt.device("cpu"):
        assert trt.Runtime(trt.Logger()).deserialize_cuda_engine(plan) is None
