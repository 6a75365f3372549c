"""Engines: results, shapes, memory, threads and lifetime."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_networks import nonzero
from torch.utils._python_dispatch import TorchDispatchMode

from trt_core import ExecutionError, InputError, trt
from trt_core.log import note_error
from trt_runtime import Binding, TRTModule
from trt_runtime.engine import ENGINES
from trt_runtime.engine_context import CallShapes


def test_static_engine(static_engine: TRTModule) -> None:
    x = torch.randn(2, 3)
    assert torch.equal(static_engine(x), x.relu())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(rows=st.integers(1, 8))
def test_dynamic_engine(dynamic_engine: TRTModule, rows: int) -> None:
    x = torch.randn(rows, 3)
    y = dynamic_engine(x)
    assert y.shape == (rows, 3)
    assert torch.equal(y, x + x)


class _Short:
    """A provider's context whose first runs find no memory."""

    def __init__(self, native: Any, failures: int) -> None:
        self._native = native
        self.failures = failures

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    def execute_async_v3(self, stream: int) -> bool:
        self.failures -= 1
        if self.failures < 0:
            return bool(self._native.execute_async_v3(stream))
        note_error("layer 'relu': CUDA out of memory")
        return False


@pytest.mark.parametrize("failures", [1, 2])
def test_memory_of_garbage_is_given_back_before_a_run_fails(static_engine: TRTModule, failures: int) -> None:
    x = torch.randn(2, 3)
    context = ENGINES.engine_for(static_engine.plan, static_engine.header.text, x.device)._new_context(0)
    context._native = _Short(context._native, failures)
    held = torch.ones(9)
    lives = weakref.ref(held)
    cycle: list[Any] = [held]
    cycle.append(cycle)
    del held, cycle
    if failures == 1:
        assert torch.equal(context.run([x], 0)[0], x.relu())
    else:
        with pytest.raises(ExecutionError, match="out of memory"):
            context.run([x], 0)
        assert torch.equal(context.run([x], 0)[0], x.relu())
    assert lives() is None


def test_results_do_not_share_memory(static_engine: TRTModule) -> None:
    first = static_engine(torch.ones(2, 3))
    second = static_engine(torch.full((2, 3), 5.0))
    assert torch.equal(first, torch.ones(2, 3))
    assert torch.equal(second, torch.full((2, 3), 5.0))


@pytest.mark.parametrize(
    "layout",
    [
        lambda x: x.t().contiguous().t(),
        lambda x: torch.cat([x, x], dim=1)[:, :3],
        lambda x: x[:1].expand(2, 3),
        lambda x: torch.cat([torch.zeros(1), x.reshape(-1)])[1:].view(2, 3),
    ],
    ids=["transposed", "sliced", "expanded", "offset"],
)
def test_any_memory_layout(static_engine: TRTModule, layout: Any) -> None:
    x = layout(torch.randn(2, 3))
    for _ in range(2):
        assert torch.equal(static_engine(x), x.relu())


def test_layouts_may_alternate(static_engine: TRTModule) -> None:
    x = torch.randn(2, 3)
    for value in (x, x.t().contiguous().t(), x, x[:1].expand(2, 3), x):
        assert torch.equal(static_engine(value), value.relu())


def test_several_inputs_and_outputs(two_in_two_out: TRTModule) -> None:
    a, b = torch.randint(9, (2, 3, 4), dtype=torch.int32)
    total, rest = two_in_two_out(a, b)
    assert torch.equal(total, a + b)
    assert torch.equal(rest, a - b)


def test_one_tensor_for_two_inputs(two_in_two_out: TRTModule) -> None:
    a = torch.randint(9, (3, 4), dtype=torch.int32)
    total, rest = two_in_two_out(a, a)
    assert torch.equal(total, a + a)
    assert torch.equal(rest, torch.zeros_like(a))


def test_shared_dimensions_must_agree(two_in_two_out: TRTModule) -> None:
    a = torch.zeros(3, 4, dtype=torch.int32)
    with pytest.raises(InputError, match=r"dimension 1 of input 1 \('b'\) of engine 'block' is 2, not 4") as caught:
        two_in_two_out(a, a[:, :2])
    assert "s1 = 4" in caught.value.why


def test_a_tuple_of_one(make_engine: Any) -> None:
    binding = Binding("x", torch.float32, (2,))

    def identity(network: Any, tensors: Sequence[Any]) -> list[Any]:
        return [network.add_identity(tensors[0]).get_output(0)]

    engine = make_engine(identity, [binding], [Binding("y", torch.float32, (2,))], returns_tuple=True)
    (y,) = engine(torch.ones(2))
    assert torch.equal(y, torch.ones(2))


def test_an_engine_without_inputs(make_engine: Any) -> None:
    values = torch.arange(3, dtype=torch.float32)

    def constant(network: Any, tensors: Sequence[Any]) -> list[Any]:
        weights = trt.Weights(trt.DataType.FLOAT, values.data_ptr(), 3)
        layer = network.add_constant((3,), weights)
        return [network.add_identity(layer.get_output(0)).get_output(0)]

    engine = make_engine(constant, [], [Binding("y", torch.float32, (3,))])
    assert torch.equal(engine(), values)
    assert torch.equal(engine(), values)


def test_data_dependent_output(make_engine: Any) -> None:
    engine = make_engine(nonzero, [Binding("x", torch.bool, (2, 3))], [Binding("y", torch.int64, (2, None))])
    for x in (torch.rand(2, 3) > 0.5, torch.ones(2, 3) > 0, torch.zeros(2, 3) > 0):
        assert torch.equal(engine(x), x.nonzero().t())


def test_results_with_data_dependent_shapes_do_not_share_memory(make_engine: Any) -> None:
    engine = make_engine(nonzero, [Binding("x", torch.bool, (3,))], [Binding("y", torch.int64, (1, None))])
    first = engine(torch.tensor([True, False, True]))
    engine(torch.tensor([False, True, True]))
    assert first.tolist() == [[0, 2]]


def _reshape(network: Any, tensors: Sequence[Any]) -> list[Any]:
    layer = network.add_shuffle(tensors[0])
    layer.set_input(1, tensors[1])
    return [layer.get_output(0)]


def test_inputs_that_are_read_on_the_host(make_engine: Any) -> None:
    engine = make_engine(
        _reshape,
        [Binding("x", torch.float32, (12,)), Binding("size", torch.int64, (2,))],
        [Binding("y", torch.float32, (None, None))],
        ranges=[[(12, 12, 12)], [(2, 2, 2)]],
        values={"size": ((1, 1), (3, 4), (12, 12))},
    )
    x = torch.randn(12)
    for rows in (3, 2, 2, 12):
        y = engine(x, torch.tensor([rows, 12 // rows]))
        assert torch.equal(y, x.view(rows, 12 // rows))


def test_empty_tensors(make_engine: Any, sum_and_difference: Any) -> None:
    engine = make_engine(
        sum_and_difference,
        [Binding("a", torch.float32, ("s0", 3)), Binding("b", torch.float32, ("s0", 3))],
        [Binding("total", torch.float32, ("s0", 3)), Binding("rest", torch.float32, ("s0", 3))],
        symbols={"s0": (0, 0)},
        ranges=[[(0, 2, 4), (3, 3, 3)]] * 2,
    )
    total, rest = engine(torch.empty(0, 3), torch.empty(0, 3))
    assert total.shape == rest.shape == (0, 3)
    total, _ = engine(torch.ones(2, 3), torch.ones(2, 3))
    assert torch.equal(total, torch.full((2, 3), 2.0))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((), "takes 1 inputs, 0 were given"),
        ((torch.ones(2, 3),) * 2, "takes 1 inputs, 2 were given"),
        ((3,), "is an int, not a tensor"),
        (
            (torch.ones(2, 3, dtype=torch.float64),),
            r"input 0 \('x'\) of engine 'block' has type float64, the engine was",
        ),
        ((torch.ones(2, 3).half(),), "has type float16, the engine was built for float32"),
        ((torch.ones(3),), r"input 0 \('x'\) of engine 'block' has rank 1, the engine was built for rank 2"),
        ((torch.ones(2, 3, 1),), "has rank 3, the engine was built for rank 2"),
        ((torch.ones(2, 4),), r"dimension 1 of input 0 \('x'\) of engine 'block' is 4, the engine was built for 3"),
        ((torch.ones(9, 3),), r"dimension 0 of input 0 \('x'\) of engine 'block' is 9, .* 1 to 8"),
        ((torch.ones(0, 3),), "is 0, .* 1 to 8"),
    ],
)
@pytest.mark.parametrize("warm", [False, True])
def test_inputs_that_do_not_fit(dynamic_engine: TRTModule, inputs: tuple[Any, ...], message: str, warm: bool) -> None:
    if warm:
        dynamic_engine(torch.ones(2, 3))
    with pytest.raises(InputError, match=message):
        dynamic_engine(*inputs)
    assert torch.equal(dynamic_engine(torch.ones(2, 3)), torch.full((2, 3), 2.0))


def test_inputs_that_require_gradients_are_refused(static_engine: TRTModule) -> None:
    x = torch.randn(2, 3, requires_grad=True)
    with pytest.raises(InputError, match=r"input 0 \('x'\) of engine 'block' requires gradients") as caught:
        static_engine(x)
    assert "torch.no_grad()" in caught.value.hint
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            assert torch.equal(static_engine(x), x.relu())
    assert torch.equal(static_engine(x.detach()), x.detach().relu())


def test_inference_mode(static_engine: TRTModule) -> None:
    with torch.inference_mode():
        x = torch.randn(2, 3)
        assert torch.equal(static_engine(x), x.relu())
    assert torch.equal(static_engine(x), x.relu())


def test_threads(dynamic_engine: TRTModule) -> None:
    barrier = threading.Barrier(4)

    def work(seed: int) -> bool:
        generator = torch.Generator().manual_seed(seed)
        barrier.wait()
        for _ in range(50):
            rows = int(torch.randint(1, 9, (), generator=generator))
            x = torch.randn(rows, 3, generator=generator)
            if not torch.equal(dynamic_engine(x), x + x):
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def test_shapes_may_alternate(dynamic_engine: TRTModule) -> None:
    for rows in (1, 8, 1, 8, 3, 1):
        x = torch.randn(rows, 3)
        assert torch.equal(dynamic_engine(x), x + x)
    with pytest.raises(InputError, match="has type float64"):
        dynamic_engine(torch.ones(8, 3, dtype=torch.float64))
    with pytest.raises(InputError, match="is 9"):
        dynamic_engine(torch.ones(9, 3))
    assert torch.equal(dynamic_engine(torch.ones(1, 3)), torch.full((1, 3), 2.0))


@given(shape=st.lists(st.integers(0, 5), max_size=5))
def test_strides_are_those_of_pytorch(shape: list[int]) -> None:
    (strided,) = CallShapes([], [tuple(shape)]).outputs
    assert strided == (tuple(shape), torch.empty(shape).stride())


def test_tensors_without_memory(dynamic_engine: TRTModule) -> None:
    freed = torch.ones(4, 3)
    freed.untyped_storage().resize_(0)
    for _ in range(2):
        with pytest.raises(InputError, match=r"input 0 .'x'. of .* has no memory"):
            dynamic_engine(freed)
        zero = torch._efficientzerotensor(4, 3)  # the derivative of what does not depend on an input
        assert torch.equal(dynamic_engine(zero), dynamic_engine(torch.zeros(4, 3)))


def test_function_transforms_are_refused(static_engine: TRTModule) -> None:
    x = torch.ones(2, 3)
    with pytest.raises(InputError, match="carries a forward-mode derivative"):
        torch.func.jvp(static_engine, (x,), (x,))
    with torch.autograd.forward_ad.dual_level():
        assert torch.equal(static_engine(x), static_engine(x))
        with pytest.raises(InputError, match="carries a forward-mode derivative"):
            static_engine(torch.autograd.forward_ad.make_dual(x, x))
    with pytest.raises(InputError, match=r"input 0 .'x'. of .* is mapped over by torch\.vmap"):
        torch.vmap(static_engine)(torch.ones(4, 2, 3))
    assert torch.equal(static_engine(x), x.relu())


def test_a_negated_view(static_engine: TRTModule) -> None:
    z = torch.randn(1, 1, dtype=torch.complex64).conj().imag.expand(2, 3)
    dense = torch._neg_view(torch.randn(2, 3))
    for x in (z, dense):
        assert x.is_neg()
        for _ in range(2):
            assert torch.equal(static_engine(x), x.relu())


def test_tensors_without_memory_are_refused(static_engine: TRTModule) -> None:
    static_engine(torch.ones(2, 3))
    with pytest.raises(InputError, match=r"layout torch\.sparse_coo, the engine was built for dense tensors"):
        static_engine(torch.ones(2, 3).to_sparse())
    with pytest.raises(InputError, match="meta device, where tensors have no values"):
        static_engine(torch.ones(2, 3, device="meta"))


def test_profilers_see_engines(static_engine: TRTModule) -> None:
    x = torch.ones(2, 3)
    static_engine(x)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        static_engine(x)
    assert "trt::execute_engine" in {event.key for event in profile.key_averages()}


def test_modes_see_engines(static_engine: TRTModule) -> None:
    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    seen: list[Any] = []
    static_engine(torch.ones(2, 3))
    with Record():
        static_engine(torch.ones(2, 3))
    assert torch.ops.trt.execute_engine.default in seen


def test_shapes_that_the_layers_refuse(make_engine: Any, sum_and_difference: Any) -> None:
    engine = make_engine(
        sum_and_difference,
        [Binding("a", torch.float32, ("s0",)), Binding("b", torch.float32, ("s1",))],
        [Binding("total", torch.float32, (None,)), Binding("rest", torch.float32, (None,))],
        symbols={"s0": (0, 0), "s1": (1, 0)},
        ranges=[[(1, 2, 4)]] * 2,
    )
    assert torch.equal(engine(torch.ones(4), torch.ones(1))[0], torch.full((4,), 2.0))
    with pytest.raises(InputError, match="cannot compute its output shapes") as caught:
        engine(torch.ones(4), torch.ones(3))
    assert "4" in caught.value.why and "3" in caught.value.why
    assert torch.equal(engine(torch.ones(3), torch.ones(3))[0], torch.full((3,), 2.0))


def test_a_failure_quotes_the_provider(make_engine: Any) -> None:
    values = torch.arange(3, dtype=torch.float32)

    def add_constant(network: Any, tensors: Sequence[Any]) -> list[Any]:
        weights = trt.Weights(trt.DataType.FLOAT, values.data_ptr(), 3)
        constant = network.add_constant((3,), weights).get_output(0)
        return [network.add_elementwise(tensors[0], constant, trt.ElementWiseOperation.SUM).get_output(0)]

    binding = Binding("x", torch.float32, (3,))
    engine = make_engine(add_constant, [binding], [Binding("y", torch.float32, (3,))], flags=["STRIP_PLAN"])
    for _ in range(2):
        with pytest.raises(ExecutionError, match="failed while running") as caught:
            engine(torch.ones(3))
        assert "refit" in caught.value.why
