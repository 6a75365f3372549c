"""What scripts of this field call: runtime switches, log levels, defaults, under the alias too."""

from __future__ import annotations

import copy
import importlib
import logging
import pickle
import re
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fresh_process import run_python
from torch import nn

import trt_frontends
from trt_core import ExecutionError, InputError, LoweringError, PlanError, SettingsError, logger, trt
from trt_frontends import distributed, dynamo, runtime, torch_tensorrt
from trt_frontends.custom_engine_cache import BaseEngineCache
from trt_frontends.dynamo import _defaults, lowering, utils
from trt_frontends.dynamo.conversion import converter_utils
from trt_frontends.runtime import PythonTorchTensorRTModule, ResourceAllocationStrategy, TorchTensorRTModule
from trt_partition.report.data import Communication
from trt_runtime import TRTModule
from trt_runtime.module import engines_of

X = torch.ones(2, 4)


@pytest.fixture
def compiled(mlp: nn.Module) -> nn.Module:
    return trt_frontends.compile(mlp, arg_inputs=(X,), min_block_size=1)


def test_calls_on_the_cpu_are_not_recorded(compiled: nn.Module) -> None:
    with pytest.warns(UserWarning, match="runs on the CPU"), runtime.enable_cudagraphs(compiled) as graphed:
        assert graphed is compiled
    with pytest.warns(UserWarning, match=r"call what enable_cudagraphs\(module\) yields"), runtime.enable_cudagraphs():
        torch.testing.assert_close(compiled(X), compiled(X))
    with pytest.warns(UserWarning, match="has no effect"):
        runtime.set_cudagraphs_mode(True)
    assert runtime.get_cudagraphs_mode() is False


def test_switches_say_when_they_have_no_effect(compiled: nn.Module) -> None:
    with pytest.warns(UserWarning, match="fits its sizes best"), runtime.optimization_profile(compiled, 1) as chosen:
        assert chosen is compiled
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runtime.set_cudagraphs_mode(False)
        with (
            runtime.enable_output_allocator(compiled),
            runtime.set_multi_device_safe_mode(True),
            ResourceAllocationStrategy(compiled, dynamically_allocate_resources=False),
            runtime.optimization_profile(compiled),
        ):
            compiled(X)
    with pytest.raises(ExecutionError, match="enable_weight_streaming=True"):
        runtime.weight_streaming(compiled)


def test_engines_communicate_in_the_groups_of_the_model(compiled: nn.Module) -> None:
    distributed.setup_nccl_for_torch_tensorrt()
    assert distributed.get_active_group() is None and distributed.get_active_group_name() == ""
    group = SimpleNamespace(group_name="7")
    with distributed.distributed_group(group), distributed.distributed_group(group, compiled) as found:
        assert found is compiled
    with pytest.warns(UserWarning, match="captured with"):
        distributed.set_distributed_group(nn.Linear(2, 2), group)
    report = compiled.meta["partition_report"]
    moved = replace(report.nodes[0], communication=Communication("3", (0, 1), 8))
    compiled.meta["partition_report"] = replace(report, nodes=(moved,))
    with pytest.raises(InputError, match="'3', not in '7'"):
        distributed.set_distributed_group(compiled, group)
    compiled.meta["partition_report"] = report


def test_outputs_of_the_next_call_are_allocated_in_a_call(compiled: nn.Module) -> None:
    (engine,) = engines_of(compiled)
    wanted = compiled(X)
    switch = runtime.enable_pre_allocated_outputs(compiled)
    switch.set_pre_allocated_output(True)
    assert engine.allocates_ahead
    first = compiled(X)
    second = compiled(-X)
    assert torch.equal(first, wanted)
    assert not torch.equal(second, wanted)
    with runtime.enable_pre_allocated_outputs(compiled):
        assert engine.allocates_ahead
    assert engine.allocates_ahead
    switch.set_pre_allocated_output(False)
    assert not engine.allocates_ahead


def test_memory_of_engines_is_given_back_after_each_call(compiled: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    (engine,) = engines_of(compiled)
    monkeypatch.setattr(engine, "_tensor_calls", None)  # as on GPUs, where calls have contexts
    wanted = compiled(X)
    assert len(engine.contexts) == 1
    with ResourceAllocationStrategy(compiled):
        for _ in range(2):
            assert torch.equal(compiled(X), wanted)
            assert len(engine.contexts) == 0
    assert torch.equal(compiled(X), wanted)
    assert len(engine.contexts) == 1
    ResourceAllocationStrategy(compiled, dynamically_allocate_resources=True)
    compiled(X)
    assert len(engine.contexts) == 0
    ResourceAllocationStrategy(compiled, dynamically_allocate_resources=False)
    compiled(X)
    assert len(engine.contexts) == 1


def test_engines_have_one_class(compiled: nn.Module) -> None:
    assert TorchTensorRTModule is PythonTorchTensorRTModule
    assert any(isinstance(child, TorchTensorRTModule) for child in compiled.modules())


@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("internal_errors", logging.CRITICAL),
        ("errors", logging.ERROR),
        ("warnings", logging.WARNING),
        ("info", logging.INFO),
        ("debug", logging.DEBUG),
        ("graphs", logging.DEBUG),
    ],
)
def test_levels_hold_inside_a_block(name: str, level: int) -> None:
    before = logger.level
    with getattr(trt_frontends.logging, name)():
        assert logger.getEffectiveLevel() == level
    assert logger.level == before


def test_a_level_is_set_for_good() -> None:
    before = logger.level
    try:
        trt_frontends.logging.set_level(logging.ERROR)
        assert logger.level == logging.ERROR
    finally:
        trt_frontends.logging.set_level(before)


def test_defaults_are_those_of_settings() -> None:
    assert dynamo.CompilationSettings().min_block_size == _defaults.MIN_BLOCK_SIZE
    assert _defaults.TIMING_CACHE_PATH.startswith(_defaults.ENGINE_CACHE_DIR)
    with pytest.raises(AttributeError, match="MIN_BLOCK_SIZES"):
        _ = _defaults.MIN_BLOCK_SIZES


def test_outputs_are_compared_by_their_angle() -> None:
    assert utils.cosine_similarity(X, X.half() * 2) == pytest.approx(1)
    assert utils.cosine_similarity(X, -X) == pytest.approx(-1)
    assert utils.cosine_similarity(X * 0, X * 0) == 1 > utils.COSINE_THRESHOLD
    assert utils.to_torch_device("cpu") == torch.device("cpu") == utils.to_torch_tensorrt_device("cpu").torch_device


def test_inputs_are_prepared_as_they_are_nested() -> None:
    channels_last = torch.ones(1, 3, 4, 4).to(memory_format=torch.channels_last)
    rows = trt_frontends.Input(min_shape=(1, 4), opt_shape=(2, 4), max_shape=(5, 4))
    found = utils.prepare_inputs([X.half(), {"image": channels_last}, (rows, 2)], disable_memory_format_check=True)
    half, image = trt_frontends.Input((2, 4), dtype="half"), trt_frontends.Input.from_tensor(channels_last)
    assert found == [half, {"image": image}, (rows, 2)]
    assert (rows.shape_mode, half.shape_mode) == (rows._ShapeMode.DYNAMIC, half._ShapeMode.STATIC)


def test_a_loaded_program_is_its_module(compiled: nn.Module, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"torch.export.load does not; output_format"):
        trt_frontends.save(compiled, tmp_path / "model.ep", inputs=[X], use_legacy_exporter=False, pickle_protocol=2)
    loaded = trt_frontends.load(tmp_path / "model.ep")
    assert loaded.module() is loaded
    torch.testing.assert_close(loaded.module()(X), compiled(X))
    with pytest.raises(AttributeError, match="modul"):
        _ = loaded.modul


def test_models_with_a_part_called_module_are_loaded(tmp_path: Path) -> None:
    model = nn.Sequential()
    model.add_module("module", nn.Linear(4, 4))
    compiled = trt_frontends.compile(model.eval(), arg_inputs=(X,), dryrun=True)
    trt_frontends.save(compiled, tmp_path / "model.trtp")
    loaded = trt_frontends.load(tmp_path / "model.trtp")
    torch.testing.assert_close(loaded(X), model(X))
    assert isinstance(loaded.module, nn.Module)


def test_submodules_are_imported_under_the_alias() -> None:
    script = (
        "import trt_frontends; trt_frontends.install_alias()\n"
        "import torch_tensorrt, torch_tensorrt.logging\n"
        "from torch_tensorrt.dynamo._defaults import TIMING_CACHE_PATH\n"
        "from torch_tensorrt.dynamo.runtime import TorchTensorRTModule\n"
        "from torch_tensorrt.dynamo.conversion.impl.elementwise import add\n"
        "from torch_tensorrt.dynamo.utils import COSINE_THRESHOLD, cosine_similarity\n"
        "from torch_tensorrt.runtime import enable_cudagraphs, weight_streaming\n"
        "from torch_tensorrt.distributed import setup_nccl_for_torch_tensorrt\n"
        "from torch_tensorrt.distributed._nccl_utils import initialize_nccl_comm\n"
        "assert torch_tensorrt.runtime.enable_cudagraphs is enable_cudagraphs\n"
        "with torch_tensorrt.logging.errors(): print(torch_tensorrt.dynamo.runtime.TorchTensorRTModule.__name__)"
    )
    result = run_python(script)
    assert result.stdout.strip() == "TorchTensorRTModule", result.stderr


GUIDES = """
Input _Input.Input Device _Device.Device DeviceType EngineCapability dtype memory_format _enums.dtype compile save
load convert_method_to_trt_engine MutableTorchTensorRTModule logging.set_level dynamo.CompilationSettings
dynamo.Debugger dynamo.compile dynamo.trace dynamo.refit_module_weights dynamo.SourceIR
dynamo.convert_exported_program_to_serialized_trt_engine dynamo._compiler.compile dynamo._tracer.trace
dynamo._refit.refit_module_weights dynamo._settings.CompilationSettings dynamo.types.TRTTensor
dynamo.conversion._ConverterRegistry.DYNAMO_CONVERTERS dynamo.conversion._ConversionContext.ConversionContext
dynamo.conversion._ConverterRegistry.dynamo_tensorrt_converter dynamo.conversion._ConverterRegistry.ConverterPriority
dynamo.conversion.dynamo_tensorrt_converter dynamo.conversion.converter_utils.get_trt_tensor
dynamo.conversion.impl.elementwise.add dynamo.conversion.plugins.custom_op dynamo.lowering.get_decompositions
dynamo.lowering.pre_export_lowering dynamo.lowering.post_lowering dynamo.lowering.passes.add_lowering_pass
dynamo.lowering.passes._aten_lowering_pass._aten_lowering_pass
dynamo.lowering.passes.pass_utils.clean_up_graph_after_modifications dynamo.partitioning.get_graph_converter_support
dynamo.partitioning.hierarchical_adjacency_partition dynamo.runtime.TorchTensorRTModule
dynamo.runtime._TorchTensorRTModule.TorchTensorRTModule dynamo.runtime._ResourceAllocator.ResourceAllocationStrategy
dynamo.runtime._PythonTorchTensorRTModule.PythonTorchTensorRTModule dynamo.utils.prepare_inputs
runtime.TorchTensorRTModule runtime.PythonTorchTensorRTModule runtime.set_multi_device_safe_mode
runtime.enable_cudagraphs runtime.get_cudagraphs_mode runtime.get_whole_cudagraphs_mode runtime.set_cudagraphs_mode
runtime.enable_pre_allocated_outputs runtime.weight_streaming runtime.enable_output_allocator
"""
"""Names that torch-tensorrt's guides and references write, after `torch_tensorrt.`"""


@pytest.fixture
def _alias() -> Iterator[None]:
    trt_frontends.install_alias()
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "torch_tensorrt"]:
        del sys.modules[name]


@pytest.mark.usefixtures("_alias")
@pytest.mark.parametrize(
    "name",
    GUIDES.split(),
)
def test_names_that_guides_write_are_there(name: str) -> None:
    module, _, last = f"torch_tensorrt.{name}".rpartition(".")
    assert getattr(importlib.import_module(module), last) is not None
    if "._" not in name:
        assert eval(f"torch_tensorrt.{name}", {"torch_tensorrt": trt_frontends}) is not None


@pytest.mark.parametrize("name", ["enable_profiling", "get_layer_info", "serialized_engine"])
def test_attributes_of_engines_that_are_not_here_say_what_to_do(name: str) -> None:
    compiled = trt_frontends.compile(nn.ReLU().eval(), arg_inputs=[X], min_block_size=1)
    (engine,) = (module for module in compiled.modules() if isinstance(module, TRTModule))
    with pytest.raises(AttributeError, match=r"no attribute '\w+': .*(profile_layers|plan holds)"):
        getattr(engine, name)
    assert not hasattr(engine, "something_else")
    with pytest.raises(AttributeError, match="set_level"):
        _ = trt_frontends.logging.set_reportable_log_level


@pytest.mark.usefixtures("_alias")
@pytest.mark.parametrize("name", torch_tensorrt.ABSENT)
def test_names_that_are_not_here_say_what_to_do(name: str) -> None:
    hint = re.escape(torch_tensorrt.ABSENT[name])
    parent, _, last = f"torch_tensorrt.{name}".rpartition(".")
    for statement in (f"import torch_tensorrt.{name}", f"from {parent} import {last}"):
        with pytest.raises(ImportError, match=hint):
            exec(statement)
    with pytest.raises(AttributeError, match=hint):
        eval(f"torch_tensorrt.{name}", {"torch_tensorrt": trt_frontends})
    with pytest.raises(ImportError, match="lists the names that are"):
        importlib.import_module("torch_tensorrt.dynamo.unheard_of")


@pytest.mark.parametrize(
    ("statement", "hint"),
    [
        ("from trt_frontends import Platform", "files of portable engines run on every system"),
        ("from trt_frontends.logging import set_reportable_log_level", r"write set_level\(logging.DEBUG\)"),
        (
            "from trt_frontends.dynamo.utils import prepare_inputs",
            r"install_alias\(\), and import torch_tensorrt.dynamo.ut",
        ),
        (
            "from trt_frontends.dynamo.lowering.passes import add_lowering_pass",
            r"import torch_tensorrt.dynamo.lowering.pas",
        ),
        ("from trt_frontends.logging import unheard_of", "cannot import name 'unheard_of'"),
    ],
)
def test_without_the_alias_they_say_so_too(statement: str, hint: str) -> None:
    with pytest.raises(ImportError, match=hint):
        exec(statement)


def test_axes_and_shapes_of_converters_are_read() -> None:
    assert converter_utils.get_positive_dim(-1, 3) == 2
    assert converter_utils.get_positive_dim([0, -2], 3) == (0, 1)
    assert converter_utils.get_axes_for_reduce_op((0, 2, 2)) == 0b101
    assert converter_utils.has_dynamic_shape((1, -1)) and not converter_utils.has_dynamic_shape((1, 2))
    assert converter_utils.extend_attr_to_tuple(2, 3) == converter_utils.extend_attr_to_tuple([2], 3) == (2, 2, 2)
    assert converter_utils.broadcastable(torch.ones(2, 3), torch.ones(3))
    assert not converter_utils.broadcastable(torch.ones(2, 3), torch.ones(2))
    assert converter_utils.SourceIR is dynamo.SourceIR


def test_passes_of_scripts_are_functions_of_the_graph(mlp: nn.Module) -> None:
    with pytest.raises(InputError, match="a function of a graph module"):
        lowering.add_lowering_pass("relu")
    with pytest.raises(InputError, match="there is no lowering pass 0"):
        lowering.remove_lowering_pass(0)
    lowering.add_lowering_pass(lambda gm: None)
    try:
        with pytest.raises(LoweringError, match="returned NoneType, not the graph module"):
            trt_frontends.compile(mlp, arg_inputs=(X,))
    finally:
        lowering.remove_lowering_pass(0)


def test_debuggers_log_to_a_folder_and_leave_all_as_it_was(mlp: nn.Module, tmp_path: Path) -> None:
    before = (logger.level, list(logger.handlers))
    with dynamo.Debugger(log_level="debug", logging_dir=tmp_path / "logs", engine_builder_monitor=False):
        trt_frontends.compile(mlp, arg_inputs=(X,), min_block_size=1)
    assert "built" in (tmp_path / "logs" / "trt.log").read_text()
    assert (logger.level, list(logger.handlers)) == before
    with pytest.warns(UserWarning, match="save_engine_profile has no effect: time layers with trtc profile"):
        dynamo.Debugger(save_engine_profile=True)
    with pytest.raises(InputError, match="did you mean 'debug'"):
        dynamo.Debugger(log_level="debugg")
    with pytest.raises(InputError, match="no option 'capture_fx_graphs_after'"):
        dynamo.Debugger(capture_fx_graphs_after=["x"])


class _InMemory(BaseEngineCache):
    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.loads = 0

    def save(self, hash: str, blob: bytes, *args: object, **kwargs: object) -> None:  # noqa: A002
        self.kept[hash] = blob

    def load(self, hash: str, *args: object, **kwargs: object) -> bytes | None:  # noqa: A002
        self.loads += hash in self.kept
        return self.kept.get(hash)


def test_engines_are_kept_where_users_keep_them(mlp: nn.Module) -> None:
    cache = _InMemory()
    for loads in (0, 1):
        compiled = trt_frontends.compile(mlp, arg_inputs=(X,), min_block_size=1, custom_engine_cache=cache)
        torch.testing.assert_close(compiled(X), mlp(X))
        assert (len(cache.kept), cache.loads) == (1, loads)
    trt_frontends.compile(mlp, arg_inputs=(X,), min_block_size=1, custom_engine_cache=cache, reuse_cached_engines=False)
    assert cache.loads == 1


@pytest.mark.parametrize("door", ["torch.compile", "optimize"])
def test_engines_of_torch_compile_are_kept_there_too(mlp: nn.Module, door: str) -> None:
    cache = _InMemory()
    options: dict[str, Any] = {"min_block_size": 1, "custom_engine_cache": cache}
    for loads in (0, 1):
        torch._dynamo.reset()
        compiled = (
            torch.compile(mlp, backend="torch_tensorrt", options=options)
            if door == "torch.compile"
            else trt_frontends.optimize(mlp, min_block_size=1, custom_engine_cache=cache)
        )
        with torch.no_grad():
            torch.testing.assert_close(compiled(X), mlp(X))
        assert (len(cache.kept), cache.loads) == (1, loads)
    with pytest.raises(InputError, match="does not save and load"):
        trt_frontends.optimize(mlp, custom_engine_cache=object())  # type: ignore[arg-type]


def test_engines_that_are_damaged_are_built_anew(mlp: nn.Module, caplog: pytest.LogCaptureFixture) -> None:
    cache = _InMemory()
    trt_frontends.compile(mlp, arg_inputs=(X,), min_block_size=1, custom_engine_cache=cache)
    (digest,) = cache.kept
    cache.kept[digest] = cache.kept[digest][:-8]
    with caplog.at_level(logging.WARNING):
        compiled = trt_frontends.compile(mlp, arg_inputs=(X,), min_block_size=1, custom_engine_cache=cache)
    assert "what is no engine" in caplog.text
    torch.testing.assert_close(compiled(X), mlp(X))
    with pytest.raises(InputError, match="does not save and load"):
        trt_frontends.compile(mlp, arg_inputs=(X,), custom_engine_cache=object())  # type: ignore[arg-type]


def test_types_have_the_names_that_scripts_write() -> None:
    assert trt_frontends.dtype.half is torch.float16 and trt_frontends.dtype.f32 is torch.float32
    assert trt_frontends.memory_format.channels_last is torch.channels_last


@pytest.mark.parametrize(
    "given", [torch.float16, np.float16, np.dtype("float16"), "half", "torch.float16", trt.DataType.HALF], ids=repr
)
def test_types_are_read_as_scripts_read_them(given: Any) -> None:
    assert trt_frontends.dtype._from(given) is torch.float16
    assert trt_frontends.dtype.try_from(given) is torch.float16


def test_what_is_no_type_is_none() -> None:
    assert trt_frontends.dtype.try_from("fp15") is None
    assert trt_frontends.dtype._from("fp15", use_default=True) is torch.float32
    with pytest.raises(InputError, match="'fp15' is not a data type"):
        trt_frontends.dtype._from("fp15")


def test_a_module_is_made_of_the_bytes_of_an_engine(mlp: nn.Module, compiled: nn.Module, tmp_path: Path) -> None:
    program = torch.export.export(mlp, (X,), dynamic_shapes=({0: torch.export.Dim("rows", min=1, max=5)},))
    rows = trt_frontends.Input(min_shape=(1, 4), opt_shape=(2, 4), max_shape=(5, 4))
    engine = dynamo.convert_exported_program_to_serialized_trt_engine(
        program, inputs=[rows], arg_input_binding_names=("x",), output_binding_names="y"
    )
    settings = trt_frontends.CompilationSettings(device=trt_frontends.Device("cpu"))
    module = TorchTensorRTModule(engine, ["x"], ["y"], name="bare", settings=settings)
    assert isinstance(module, TRTModule)
    assert isinstance(module, TorchTensorRTModule)
    assert isinstance(compiled.get_submodule("_run_on_acc_0"), PythonTorchTensorRTModule)
    assert not isinstance(mlp, TorchTensorRTModule)
    for count in (1, 3, 5):
        torch.testing.assert_close(module(X[:1].expand(count, 4).clone()), mlp(X[:1].expand(count, 4)))
    with pytest.raises(InputError, match="6"):
        module(torch.ones(6, 4))
    whole = nn.Sequential(module, nn.ReLU()).eval()
    trt_frontends.save(whole, tmp_path / "whole.trtp", arg_inputs=(X,))
    torch.testing.assert_close(trt_frontends.load(tmp_path / "whole.trtp")(X), mlp(X).relu())


def test_an_engine_without_a_header_has_the_bindings_that_it_says(mlp: nn.Module) -> None:
    program = torch.export.export(mlp, (X,))
    engine = dynamo.convert_exported_program_to_serialized_trt_engine(
        program, inputs=[X], arg_input_binding_names=("x",), output_binding_names="y"
    )
    module = TorchTensorRTModule(engine)
    assert str(module.header.inputs[0]) == "x: float32[2, 4]"
    torch.testing.assert_close(module(X), mlp(X))
    with pytest.raises(PlanError, match=r"no inputs 'w'\n.*its inputs are 'x'"):
        TorchTensorRTModule(engine, input_binding_names=["w"])
    with pytest.raises(PlanError, match="no outputs"):
        TorchTensorRTModule(engine, ["x"], [])
    with pytest.raises(InputError, match="needs an engine"):
        TorchTensorRTModule()
    with pytest.raises(PlanError, match="cannot be loaded"):
        TorchTensorRTModule(b"no engine")
    with pytest.raises(PlanError, match="is empty"):
        TorchTensorRTModule(b"")
    with pytest.raises(InputError, match="input_binding_names"):
        TorchTensorRTModule(engine, input_binding_names="x")


def test_arguments_have_the_names_that_scripts_write(mlp: nn.Module, tmp_path: Path) -> None:
    named: Any = trt_frontends
    program = torch.export.export(mlp, (X,))
    compiled = named.dynamo.compile(exported_program=program, inputs=[X], min_block_size=1, optimization_level=0)
    named.save(module=compiled, file_path=tmp_path / "model.trtp")
    assert torch.equal(named.load(file_path=tmp_path / "model.trtp")(X), compiled(X))
    mutable = named.MutableTorchTensorRTModule(pytorch_model=mlp, min_block_size=1, optimization_level=0)
    torch.testing.assert_close(mutable(X), mlp(X))
    with pytest.raises(TypeError, match="load: file_path and path are the same thing"):
        named.load(path=tmp_path / "model.trtp", file_path=tmp_path / "model.trtp")


def test_the_frontend_may_be_named_by_its_place(mlp: nn.Module) -> None:
    x = torch.ones(2, 4)
    compile_by_place: Any = trt_frontends.compile  # type checkers know `ir` by its name alone
    convert: Any = trt_frontends.convert_method_to_trt_engine
    for compiled in (compile_by_place(mlp, "dynamo", [x]), compile_by_place(mlp, "dynamo", inputs=[x])):
        torch.testing.assert_close(compiled(x), mlp(x))
    assert isinstance(compile_by_place(mlp, "torch_compile"), torch._dynamo.OptimizedModule)
    assert convert(mlp, "forward", [x], "dynamo")
    with pytest.raises(SettingsError, match=r"ir='ts' cannot be had"):
        compile_by_place(mlp, "ts", [x])
    with pytest.raises(TypeError, match="ir is given twice"):
        compile_by_place(mlp, "dynamo", [x], ir="dynamo")


@pytest.mark.parametrize(
    ("described", "name", "hint"),
    [
        (trt_frontends.Device("cpu"), "device_type", "is_cpu and is_dla say what it is"),
        (trt_frontends.Device("cpu"), "to", "torch_device is the same device"),
        (trt_frontends.Input((2,)), "torch_tensor", r"example\(\) makes a tensor"),
        (trt_frontends.Input((2,)), "low_tensor_domain_incl", "tensor_domain is the pair"),
        (trt_frontends.Input((2,)), "nothing", "has no attribute 'nothing'$"),
    ],
)
def test_attributes_that_are_not_here_say_what_to_do_instead(described: Any, name: str, hint: str) -> None:
    with pytest.raises(AttributeError, match=hint):
        getattr(described, name)
    assert copy.deepcopy(described) == pickle.loads(pickle.dumps(described)) == described
