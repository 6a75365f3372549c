"""Which kernel computes a product of few bits: one that works here and computes what floats do, the fastest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fresh_process import run_python
from low_precision_networks import COLUMNS, DEPTH, layers_of, linear, make_codes, product_builder, rounded

import trt_portable as trt
from trt_portable.builder.autotune import low_precision_choice
from trt_portable.builder.inductor.tactic import trace_engine
from trt_portable.kernels import low_precision_convolutions as convolution_kernels
from trt_portable.kernels import low_precision_products as product_kernels
from trt_portable.kernels.low_precision_convolutions import CONVOLUTION_KERNELS, ConvolutionForm
from trt_portable.kernels.low_precision_products import PRODUCT_KERNELS, REFERENCE, ProductForm


@pytest.fixture
def build(builder: Any, load: Any) -> Callable[..., Any]:
    return product_builder(builder, load)


def test_a_kernel_that_fails_or_errs_is_not_chosen(build: Any, execute: Any, logger: Any, monkeypatch: Any) -> None:
    def fail(*_: Any) -> Any:
        raise AssertionError("no such kernel")

    exact = product_kernels.IntegerProduct.compute
    monkeypatch.setattr(product_kernels, "int_mm_is_exact", lambda: True)
    monkeypatch.setattr(product_kernels.OneDnnLinear, "compute", fail)
    monkeypatch.setattr(product_kernels.IntegerProduct, "compute", lambda *given: exact(*given) + 1000)
    engine = build(linear(make_codes(trt.int8, COLUMNS, DEPTH), torch.rand(COLUMNS) + 1))
    (product,) = [layer for layer in layers_of(engine) if layer["LayerType"] == "LOW_PRECISION_PRODUCT"]
    assert product["TacticName"] == REFERENCE.name
    assert any("int_mm is left out" in text for _, text in logger.messages)


def test_the_timing_cache_remembers_kernels(build: Any, builder: Any, monkeypatch: Any) -> None:
    define = linear(make_codes(trt.int8, COLUMNS, DEPTH), torch.rand(COLUMNS))
    cache = builder.create_builder_config().create_timing_cache(b"")
    monkeypatch.setattr(
        low_precision_choice, "race_ways", lambda ways, *_: {way: float(way != REFERENCE.name) for way in ways}
    )
    first = build(define, level=3, cache=cache)
    monkeypatch.setattr(low_precision_choice, "race_ways", lambda *_: pytest.fail("timed again"))
    flags = [trt.BuilderFlag.ERROR_ON_TIMING_CACHE_MISS]
    engines = [first, build(define, level=3, cache=cache, flags=flags)]
    names = [
        layer["TacticName"] for engine in engines for layer in layers_of(engine) if "PRODUCT" in layer["LayerType"]
    ]
    assert names == [REFERENCE.name] * 2  # the last of the candidates, which nothing but its time speaks for


def test_an_unknown_choice_is_an_error_where_that_is_asked_for(builder: Any, logger: Any) -> None:
    network = builder.create_network()
    y = linear(make_codes(trt.int8, COLUMNS, DEPTH), torch.rand(COLUMNS))(
        network, network.add_input("x", trt.float32, (2, DEPTH))
    )
    network.mark_output(y)
    config = builder.create_builder_config()
    config.set_timing_cache(config.create_timing_cache(b""), False)
    config.set_flag(trt.BuilderFlag.ERROR_ON_TIMING_CACHE_MISS)
    assert builder.build_serialized_network(network, config) is None
    assert any("timing cache has no entry" in error for error in logger.errors)


def test_floats_are_held_only_where_that_is_allowed(build: Any, monkeypatch: Any) -> None:
    define = linear(make_codes(trt.fp8, COLUMNS, DEPTH), torch.rand(COLUMNS), trt.fp8)
    monkeypatch.setattr(
        low_precision_choice, "race_ways", lambda ways, *_: {way: float("once" not in way) for way in ways}
    )
    for setting, is_held in (("0", False), ("1", True)):
        monkeypatch.setenv(low_precision_choice.SWITCH, setting)
        (product,) = [la for la in layers_of(build(define, level=3)) if la["LayerType"] == "LOW_PRECISION_PRODUCT"]
        assert (product["TacticName"] == "dequantize_once") is is_held


def test_a_machine_without_the_kernel_computes_in_floats(
    build: Any, execute: Any, logger: Any, monkeypatch: Any
) -> None:
    codes, scale = make_codes(trt.int8, COLUMNS, DEPTH), torch.rand(COLUMNS) / 50
    plan = build(linear(codes, scale)).serialize()
    for kernel in PRODUCT_KERNELS.values():
        if kernel is not REFERENCE:
            monkeypatch.setattr(type(kernel), "accepts", lambda *_: False)
            monkeypatch.setattr(type(kernel), "prepare", lambda *_: pytest.fail("no such kernel here"))
    engine, x = trt.Runtime(logger).deserialize_cuda_engine(plan), torch.randn(3, DEPTH)
    wanted = rounded(x, 0.05, trt.int8) @ (codes.float() * scale[:, None]).t()
    found = execute(engine.create_execution_context(), {"x": x})["y"]
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-3)


_ON_ANOTHER_PROCESSOR = """
import sys
from pathlib import Path
import torch
import trt_portable as trt

plan, rows, depth, columns, result = sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5]
with trt.device("cpu"):
    context = trt.Runtime(trt.Logger()).deserialize_cuda_engine(Path(plan).read_bytes()).create_execution_context()
x, y = torch.full((rows, depth), 100.0), torch.zeros(rows, columns)
context.set_input_shape("x", tuple(x.shape))
context.set_tensor_address("x", x.data_ptr())
context.set_tensor_address("y", y.data_ptr())
assert context.execute_async_v3(0)
torch.save(y, result)
"""


def test_an_engine_computes_the_same_on_a_processor_whose_sums_saturate(build: Any, tmp_path: Path) -> None:
    codes, scale = torch.full((COLUMNS, DEPTH), 127, dtype=torch.int8), torch.ones(COLUMNS)
    plan, found = tmp_path / "plan", tmp_path / "found"
    plan.write_bytes(build(linear(codes, scale)).serialize())
    arguments = (str(plan), "3", str(DEPTH), str(COLUMNS), str(found))
    done = run_python(_ON_ANOTHER_PROCESSOR, *arguments, env={"ONEDNN_MAX_CPU_ISA": "SSE41"})
    assert done.returncode == 0, done.stderr
    left = rounded(torch.full((3, DEPTH), 100.0), 0.05, trt.int8)
    torch.testing.assert_close(torch.load(found), left @ codes.float().t(), rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("kernels", "name"),
    [(product_kernels, "onednn"), (product_kernels, "int_mm"), (convolution_kernels, "onednn")],
    ids=["product", "int_mm", "convolution"],
)
def test_kernels_that_saturate_are_no_candidates(kernels: Any, name: str, monkeypatch: Any) -> None:
    product = ProductForm(COLUMNS, DEPTH, trt.int8, trt.int8, trt.float32, (COLUMNS, 1))
    geometry = ((1, 1), (0, 0), (1, 1), 1)
    convolution = ConvolutionForm((COLUMNS, DEPTH, 1, 1), *geometry, trt.int8, trt.int8, trt.float32, COLUMNS)
    for probe in ("int_mm_is_exact", "onednn_is_exact"):
        monkeypatch.setattr(kernels, probe, lambda: False, raising=False)
    form: Any = product if kernels is product_kernels else convolution
    known: Any = PRODUCT_KERNELS if kernels is product_kernels else CONVOLUTION_KERNELS
    assert not known[name].accepts(form, torch.device("cpu"))
    assert name == "onednn" or known[name].accepts(form, torch.device("cuda"))  # GPUs add up in 32 bits


def test_an_engine_with_kernels_that_no_compiler_knows_is_traced(build: Any, monkeypatch: Any) -> None:
    engine = build(linear(make_codes(trt.int8, COLUMNS, DEPTH), torch.rand(COLUMNS) / 50))
    graph = trace_engine(engine).graph
    assert all("onednn" not in str(node.target) for node in graph.nodes)
