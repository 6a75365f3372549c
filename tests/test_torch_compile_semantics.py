"""`torch.compile` with our backend behaves as `backend="aot_eager"` does, in all that surrounds a call."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch_compile_programs import Model, Program, growing_rows, matrix, overlapping, strided
from torch_compile_reference import agree

from trt_frontends import model_report

pytestmark = [pytest.mark.sampled(4), pytest.mark.usefixtures("fresh_dynamo"), pytest.mark.filterwarnings("ignore")]


def growing_matrix(call: int) -> Sequence[Any]:
    return (torch.randn(3 + call, 4 + call),)


def images(_: int) -> Sequence[Any]:
    return (torch.randn(2, 3, 5, 5),)


def growing_images(call: int) -> Sequence[Any]:
    return (torch.randn(2 + call, 3, 5 + call, 5).to(memory_format=torch.channels_last),)


def channels_last_images(_: int) -> Sequence[Any]:
    return (torch.randn(1, 3, 5, 5).to(memory_format=torch.channels_last),)


def twice(_: int) -> Sequence[Any]:
    x = torch.randn(4, 4)
    return x, x


def two(_: int) -> Sequence[Any]:
    return torch.randn(3, 4), torch.randn(3, 4)


def _write_to_view_after_a_break(model: Model, x: torch.Tensor) -> Any:
    h = torch.relu(x)
    view = h[:, :2]
    torch._dynamo.graph_break()
    view.zero_()
    return h * 2


def _reassign_state(model: Model, x: torch.Tensor) -> Any:
    model.count = model.count + 1
    model.hidden = 0.9 * model.hidden + 0.1 * x.mean(0)
    return model.linear(x) + model.count + model.hidden


def _write_to_buffers(model: Model, x: torch.Tensor) -> Any:
    model.count += 1
    model.cache.index_copy_(0, torch.tensor([1]), x[:1])
    return model.linear(x) * model.count + model.cache


def _views_of_a_result(_: Model, x: torch.Tensor) -> Any:
    h = torch.relu(x)
    return h, h[1:], h.t(), h.reshape(-1), h.unsqueeze(0).expand(2, *h.shape)


def _views_of_a_constant(_: Model, x: torch.Tensor) -> Any:
    c = torch.arange(12.0).view(3, 4)
    c[0].add_(1)
    return c, c[1:], c.t(), x + c, torch.ones(4, 4)[1:]


def _split_unsafely(_: Model, x: torch.Tensor) -> Any:
    h = torch.relu(x)
    return h, torch.unsafe_split(h, 2, 1), x.unsafe_split_with_sizes([1, 3], 1), torch.unsafe_chunk(x + 1, 2, 1)


def _half_without_gradients(model: Model, x: torch.Tensor) -> Any:
    with torch.no_grad():
        y = model.linear(x)
    return y, model.linear(y)


def _autocast(model: Model, x: torch.Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = model.linear(x)
    return y, y.float()


def _write_to_overlapping(_: Model, x: torch.Tensor, y: torch.Tensor) -> Any:
    x.add_(1)
    return y * 2


def _branch_on_a_value(_: Model, x: torch.Tensor) -> Any:
    return torch.relu(x) * 2 if x.sum() > 0 else torch.relu(x) - 1


def _generator(_: Model, x: torch.Tensor) -> Any:
    return x + torch.rand(4), functional.dropout(torch.relu(x), 0.5, training=True), torch.randn_like(x)


def _drop_layers(model: Model, x: torch.Tensor) -> Any:
    for _ in range(3):
        if torch.rand(()).item() < 0.5:
            x = model.linear(x)
    return x


def _own_generator(model: Model, x: torch.Tensor) -> Any:
    return model.linear(x) + torch.rand(4, generator=torch.Generator().manual_seed(3))


def _autocast_in_part(model: Model, x: torch.Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16), torch.autocast("cpu", enabled=False):
        return model.linear(x)


def _inference_mode(model: Model, x: torch.Tensor) -> Any:
    with torch.inference_mode():
        return model.linear(x) * 2


def _with_gradients_inside(model: Model, x: torch.Tensor) -> Any:
    with torch.enable_grad():
        return model.linear(x).detach()


def _keep_in_containers(model: Model, x: torch.Tensor) -> Any:
    model.kept = {**getattr(model, "kept", {}), "last": x.sum()}
    model.calls = [*getattr(model, "calls", []), len(model.kept)]
    return model.linear(x) * len(model.calls) + model.kept["last"]


def _share_a_layer(model: Model, x: torch.Tensor) -> Any:
    x = model.linear(torch.relu(model.linear(x)))
    torch._dynamo.graph_break()
    return functional.linear(x, model.linear.weight)


def numbered(call: int) -> Sequence[Any]:
    return torch.randn(3, 4), (2, 3.5, True)[call % 3]


def one_number(call: int) -> Sequence[Any]:
    return (torch.tensor((0.0, -0.0, float("nan"))[call % 3], dtype=torch.float64),)


def _sum_in_64_bits(model: Model, x: torch.Tensor) -> Any:
    if not hasattr(model, "total"):
        model.register_buffer("total", torch.zeros((), dtype=torch.float64))
    model.total += x.sum()
    return model.linear(x)


def shrinking_rows(call: int) -> Sequence[Any]:
    return (torch.randn((3, 1, 0)[call % 3], 4),)


CASES: dict[str, tuple[Program, Callable[[int], Sequence[Any]], dict[str, Any]]] = {
    "views of a constant": (_views_of_a_constant, matrix, {}),
    "unsafe splits": (_split_unsafely, matrix, {}),
    "unsafe splits of sizes that vary": (_split_unsafely, growing_rows, {}),
    "a write to a view after a graph break": (_write_to_view_after_a_break, matrix, {}),
    "an operator that checks its result": (
        lambda m, x: m.layers[0](torch.linalg.inv(m.linear.weight @ m.linear.weight.t() + torch.eye(4)) @ x.t()),
        lambda _: (torch.randn(4, 4),),
        {},
    ),
    "a view of an input": (lambda m, x: (x[:, 1:], torch.relu(x)), matrix, {}),
    "a view of an input with sizes that vary": (
        lambda m, x: (x[1:], x.t(), torch.relu(x)),
        growing_matrix,
        {"dynamic": True},
    ),
    "an input": (lambda m, x: (x, torch.relu(x)), matrix, {}),
    "a copy of an input": (lambda m, x: (x.clone(), torch.relu(x)), matrix, {}),
    "results that share memory": (_views_of_a_result, matrix, {}),
    "results that share memory, with sizes that vary": (_views_of_a_result, growing_matrix, {"dynamic": True}),
    "one result twice": (lambda m, x: (lambda h: (h, h))(torch.relu(x)), matrix, {}),
    "equal results that share nothing": (lambda m, x: (torch.relu(x), torch.relu(x)), matrix, {}),
    "a view with an offset": (lambda m, x: torch.relu(x)[1:], matrix, {}),
    "pieces": (lambda m, x: (torch.relu(x).split(2, 1), torch.tanh(x).unbind(0)), matrix, {}),
    "an expanded result": (lambda m, x: torch.relu(x[:, :1]).expand(3, 4), matrix, {}),
    "a constant": (lambda m, x: (torch.zeros(3), torch.ones(2) * 3, torch.relu(x)), matrix, {}),
    "a parameter and a view of it": (lambda m, x: (m.linear.weight, m.linear.weight.t(), m.linear(x)), matrix, {}),
    "a parameter where gradients are recorded": (lambda m, x: (m.linear.weight, m.linear(x)), matrix, {"grad": True}),
    "gradients": (lambda m, x: (m.linear(x), x.argmax(1), x * 2), matrix, {"grad": True}),
    "gradients switched off inside": (_half_without_gradients, matrix, {"grad": True}),
    "a tensor and a view of it, with gradients": (
        lambda m, x: (lambda h: (h, h.detach(), h[1:]))(m.linear(x)),
        matrix,
        {"grad": True},
    ),
    "detached results": (lambda m, x: (x.detach(), m.linear(x).detach()), matrix, {"grad": True}),
    "a transposed input": (lambda m, x: torch.relu(x.t()), matrix, {}),
    "channels last": (lambda m, x: torch.relu(m.conv(x)), channels_last_images, {}),
    "channels last with sizes that vary": (lambda m, x: torch.relu(m.conv(x)), growing_images, {"dynamic": True}),
    "extents of one": (lambda m, x: torch.relu(x)[:, None], matrix, {}),
    "a write to an input": (lambda m, x: torch.relu(x.add_(1)), matrix, {}),
    "a write to a view of an input": (lambda m, x: (x[0].add_(1), torch.relu(x))[1], matrix, {}),
    "a write to an input that overlaps another": (_write_to_overlapping, overlapping, {}),
    "one tensor given twice": (lambda m, x, y: (x + y, x), twice, {}),
    "one tensor given twice, and written to": (lambda m, x, y: x.mul_(2) + y, twice, {}),
    "an input transposed in place": (lambda m, x: (x.t_(), torch.relu(x))[1], matrix, {}),
    "an input copied to another": (lambda m, x, y: (x.copy_(y), y * 2), two, {}),
    "state that is assigned": (_reassign_state, matrix, {}),
    "buffers that are written to": (_write_to_buffers, matrix, {}),
    "statistics in training": (lambda m, x: torch.relu(m.train().norm(x)), images, {}),
    "statistics of what nobody uses": (lambda m, x: (m.train().norm(x), x * 2)[1], images, {}),
    "statistics taken twice": (lambda m, x: (m.train().norm(x), m.norm(x)), images, {}),
    "statistics in evaluation": (lambda m, x: torch.relu(m.eval().norm(x)), images, {}),
    "batch norm with sizes that vary": (lambda m, x: torch.relu(m.eval().norm(x)), growing_images, {"dynamic": True}),
    "random numbers": (_generator, matrix, {}),
    "vmap": (lambda m, x: torch.vmap(lambda row: torch.relu(row) * row.sum())(x), matrix, {}),
    "the value of a tensor": (lambda m, x: torch.relu(x) * x.sum().item(), matrix, {}),
    "a branch on a value": (_branch_on_a_value, matrix, {}),
    "a shape that depends on values": (lambda m, x: (torch.relu(x).nonzero(), torch.relu(x)[x > 0]), matrix, {}),
    "sizes among the results": (
        lambda m, x: (x.shape[0], torch.relu(x), x.shape[0] * 2),
        growing_rows,
        {"dynamic": True},
    ),
    "sizes that change": (lambda m, x: m.linear(x).reshape(-1), growing_rows, {}),
    "complex numbers": (lambda m, x: (torch.fft.fft(torch.relu(x)), torch.complex(x, x).conj()), matrix, {}),
    "Fourier transforms along other axes": (
        lambda m, x: (
            torch.fft.hfft(x, dim=0),
            torch.fft.irfft2(x, dim=(1, 0)),
            torch.stft(x.flatten(), 4, return_complex=False),
        ),
        lambda call: (torch.randn(6, 5),),
        {},
    ),
    "a type that is asked for with an order": (
        lambda m, x: (x.cfloat(memory_format=torch.contiguous_format), x.cfloat()),
        lambda call: (torch.randn(4, 3).t(),),
        {},
    ),
    "64 bits": (lambda m, x: (x.double() * 2, (x > 0).to(torch.int64).sum(1)), matrix, {}),
    "structures": (lambda m, x: {"a": [torch.relu(x), (x.sum(), 3)], "n": None, "s": "text"}, matrix, {}),
    "nothing": (lambda m, x: None, matrix, {}),
    "an overlap that is written to, with sizes that vary": (_write_to_overlapping, overlapping, {"dynamic": True}),
    "layers dropped at random": (_drop_layers, matrix, {}),
    "a generator of its own": (_own_generator, matrix, {}),
    "dropout in training": (lambda m, x: functional.dropout(m.linear(x), 0.5, True), matrix, {}),
    "an order drawn at random": (lambda m, x: m.linear(x)[torch.randperm(x.shape[0])], growing_rows, {}),
    "autocast switched off inside": (_autocast_in_part, matrix, {}),
    "inference mode inside": (_inference_mode, matrix, {}),
    "gradients switched on inside": (_with_gradients_inside, matrix, {}),
    "state in containers": (_keep_in_containers, matrix, {}),
    "a layer used three times": (_share_a_layer, matrix, {}),
    "a number that changes": (lambda m, x, k: m.linear(x) * k, numbered, {}),
    "a number in a tensor that is written to": (
        lambda m, x: x.exp_(),
        lambda call: (torch.tensor(float(call), dtype=torch.float64),),
        {},
    ),
    "a sum in 64 bits": (_sum_in_64_bits, matrix, {}),
    "a zero with a sign": (lambda m, x: 1 / x, one_number, {}),
    "strides that change": (lambda m, x: (m.linear(x), torch.relu(x)), strided, {}),
    "another way at one row": (
        lambda m, x: m.linear(x) * 2 if x.shape[0] == 1 else m.linear(x),
        shrinking_rows,
        {"dynamic": True},
    ),
    "no rows": (lambda m, x: m.linear(x).softmax(-1), shrinking_rows, {}),
    "a function differentiated inside": (lambda m, x: torch.func.grad(lambda v: (v**2).sum())(x), matrix, {}),
    "NumPy inside": (lambda m, x: torch.from_numpy(x.numpy() * 2) + torch.relu(x), matrix, {}),
    "nothing to compute": (lambda m, x: (x[0], x.t()), matrix, {}),
}


LAYER = torch.nn.Linear(4, 4)
DERIVATIVES: dict[str, Callable[[torch.Tensor], Any]] = {
    "grad": lambda x: torch.func.grad(lambda v: (v**3).sum())(x),
    "grad through a layer": lambda x: torch.func.grad(lambda v: LAYER(v).pow(2).sum())(x),
    "grad of parameters": lambda x: torch.func.grad(
        lambda held: torch.func.functional_call(LAYER, held, (x,)).pow(2).sum()
    )({"weight": LAYER.weight, "bias": LAYER.bias}),
    "grad of each row": lambda x: torch.vmap(torch.func.grad(lambda v: v.sin().sum()))(x),
    "jacrev": lambda x: torch.func.jacrev(torch.sin)(x),
    "hessian": lambda x: torch.func.hessian(lambda v: (v**3).sum())(x),
    "jvp": lambda x: torch.func.jvp(torch.square, (x,), (x,)),
}


@pytest.mark.sampled
@pytest.mark.parametrize("context", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", DERIVATIVES)
def test_functions_differentiated_inside_have_their_gradients(name: str, context: Callable[[], Any]) -> None:
    """Operators that stay whole have none, and gradients that are off where a graph is made functional are zero."""
    function = DERIVATIVES[name]
    optimized = torch.compile(function, backend="torch_tensorrt", options={"min_block_size": 1})
    x = torch.randn(3, 4)
    expected = function(x)
    with context():
        torch.testing.assert_close(optimized(x.clone()), expected, rtol=1e-4, atol=1e-5)


def test_nested_tensors_are_computed_with_in_pytorch() -> None:
    rows = [torch.randn(2, 3), torch.randn(4, 3)]
    optimized = torch.compile(lambda x: x.relu() * 2, backend="torch_tensorrt", options={"min_block_size": 1})
    with torch.no_grad():
        for given in (rows, rows[:1], [*rows, *rows]):
            found = optimized(torch.nested.nested_tensor(given, layout=torch.jagged))
            torch.testing.assert_close(list(found.unbind()), [row.relu() * 2 for row in given])


@pytest.mark.parametrize("name", CASES)
def test_a_program_behaves_as_with_aot_eager(name: str) -> None:
    if name == "inference mode inside" and torch.__version__ < "2.12":
        pytest.skip("aot_eager of PyTorch 2.11 fails")
    function, inputs, how = CASES[name]
    agree(lambda: Model(function), inputs, **how)


def test_autocast_behaves_as_with_aot_eager() -> None:
    agree(lambda: Model(_autocast), matrix)


def _assert_values(model: Model, x: torch.Tensor) -> Any:
    torch._assert_async((x > 0).all(), "x is not positive")  # an assert, which pytest would rewrite
    return model.linear(x), x.t()


def _assert_what_is_computed(model: Model, x: torch.Tensor) -> Any:
    hidden = torch.relu(model.linear(x))
    torch._assert_async((x.sum(1) > 0).all(), "a row is not positive")
    return model.linear(hidden).softmax(-1)


def _assert_after_a_write(model: Model, x: torch.Tensor) -> Any:
    model.count.add_(1)
    torch._assert_async((x > 0).any(), "nothing is positive")
    return model.linear(x) * model.count


def _assert_a_number(model: Model, x: torch.Tensor) -> Any:
    number = x[0, 0].item()
    torch._check(number > 0, lambda: "the first number is not positive")
    return model.linear(x) * number


def _assert_a_count(model: Model, x: torch.Tensor) -> Any:
    places = (x > 0).nonzero()
    torch._check(places.shape[0] > 2, lambda: "too few are positive")
    return places, model.linear(x)


def _positive(x: torch.Tensor) -> torch.Tensor:
    torch._assert_async((x > 0).all(), "not positive inside")
    return x * 2


def _assert_in_a_branch(model: Model, x: torch.Tensor) -> Any:
    return model.linear(torch.cond(x.sum() < 10, _positive, lambda v: v + 1, (x,)))


def _assert_in_a_branch_of_a_branch(model: Model, x: torch.Tensor) -> Any:
    def inner(v: torch.Tensor) -> torch.Tensor:
        return torch.cond(v.mean() < 10, _positive, lambda w: w + 1, (v,))

    return model.linear(torch.cond(x.sum() < 20, inner, lambda v: v + 1, (x,)))


def _assert_in_a_loop(model: Model, x: torch.Tensor) -> Any:
    done = torch.zeros((), dtype=torch.int64)
    _, y = torch.while_loop(lambda i, v: i < 2, lambda i, v: (i + 1, _positive(v)), (done, model.linear(x).abs() + x))
    return y, model.linear(x)


ENGINES_OF_ASSERTING: dict[Program, int] = {
    **dict.fromkeys([_assert_values, _assert_what_is_computed, _assert_after_a_write, _assert_a_count], 1),
    **dict.fromkeys([_assert_in_a_branch, _assert_in_a_branch_of_a_branch], 2),  # around PyTorch's
    **dict.fromkeys([_assert_a_number, _assert_in_a_loop], 1),
}


def _as_aot_eager(
    function: Program,
    inputs: Sequence[torch.Tensor],
    errors: tuple[type[Exception], ...],
    said: Callable[[Exception], Any],
    *,
    dynamic: bool,
) -> tuple[Any, list[bool]]:
    """Holds calls to those of `aot_eager`: what errors say, results, and what was counted; returns which fail."""
    seen: dict[str, list[Any]] = {}
    for backend in ("aot_eager", "torch_tensorrt"):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = Model(function)
        options = {"min_block_size": 1} if backend == "torch_tensorrt" else None
        optimized = torch.compile(model, backend=backend, dynamic=dynamic, options=options)
        seen[backend] = []
        for x in inputs:
            error, results = None, None
            try:
                with torch.no_grad():
                    results = optimized(x)
            except errors as raised:
                error = said(raised)
            seen[backend].append((error, results, model.count.clone()))
    for found, expected in zip(seen["torch_tensorrt"], seen["aot_eager"], strict=True):
        assert found[0] == expected[0]
        torch.testing.assert_close(found[1:], expected[1:], rtol=1e-4, atol=1e-5)
    return optimized, [error is not None for error, *_ in seen["aot_eager"]]


@pytest.mark.sampled
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", ENGINES_OF_ASSERTING)
@torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True)
def test_what_a_model_asserts_of_values_is_checked_at_every_call(function: Program, dynamic: bool) -> None:
    inputs = (torch.ones(3, 4) / 4, -torch.ones(3, 4), torch.ones(3, 4) / 2)
    optimized, fails = _as_aot_eager(function, inputs, (RuntimeError,), str, dynamic=dynamic)
    assert model_report(optimized).engines == ENGINES_OF_ASSERTING[function]
    assert fails == [False, True, False]


def _table(model: Model) -> torch.Tensor:
    return model.linear.weight.detach() * 2  # (4, 4), computed


LOOKUPS: dict[str, tuple[Callable[..., Any], Sequence[int]]] = {
    "embedding": (lambda t, i: functional.embedding(i, t), (4, -1)),
    "index_select": (lambda t, i: t.index_select(0, i), (4, -1)),
    "index_select of columns": (lambda t, i: t.index_select(1, i), (4, -1)),
    "gather": (lambda t, i: t.gather(1, i.expand(4, 2)), (4, -1)),
    "index": (lambda t, i: t[i], (4, -5)),
    "indices of two axes": (lambda t, i: t[i.abs() % 4, i], (4, -5)),
    "index behind an axis": (lambda t, i: t[:, i], (4, -5)),
    "take": (lambda t, i: t.take(i), (16, -17)),
    "index_put": (lambda t, i: t.index_put((i,), t[:1]), (4, -5)),
    "index_put that adds": (lambda t, i: t.index_put((i,), t[:2], accumulate=True), (4, -5)),
    "index_add": (lambda t, i: t.index_add(0, i, t[:2]), (4, -1)),
    "index_add of numbers": (lambda t, i: t[0].index_add(0, i, t[0, :2]), (4, -1)),
    "index_copy": (lambda t, i: t.index_copy(0, i, t[:2]), (4, -1)),
    "index_fill": (lambda t, i: t.index_fill(0, i, 1.0), (4, -5)),
    "index_reduce": (lambda t, i: t.index_reduce(0, i, t[:2], "amax"), (4, -1)),
    "put": (lambda t, i: t.put(i, t[0, :2]), (16, -17)),
    "scatter": (lambda t, i: t.scatter(1, i.expand(4, 2), t[:, :2]), (4, -1)),
    "scatter a number": (lambda t, i: t.scatter(1, i.expand(4, 2), 2.0), (4, -1)),
    "scatter_add": (lambda t, i: t.scatter_add(1, i.expand(4, 2), t[:, :2]), (4, -1)),
    "scatter_reduce": (lambda t, i: t.scatter_reduce(1, i.expand(4, 2), t[:, :2], "amax"), (4, -1)),
    "nll_loss": (lambda t, i: functional.nll_loss(t[:2], i), (4, -1)),
    "cross_entropy": (lambda t, i: functional.cross_entropy(t[:2], i, label_smoothing=0.1), (4, -1)),
    "nll_loss of pictures": (lambda t, i: functional.nll_loss(t[:1, :, None, None], i[None, :1, None]), (4, -1)),
    "embedding_bag": (lambda t, i: functional.embedding_bag(i[None], t), (4, -1)),
    "one_hot": (lambda t, i: functional.one_hot(i, 4) * t[0], (4, -1)),
    "multi_margin_loss": (lambda t, i: functional.multi_margin_loss(t[:2], i), (4, -1)),
    "multilabel_margin_loss": (lambda t, i: functional.multilabel_margin_loss(t[0, :2], i), (2, -2)),
    "searchsorted": (lambda t, i: torch.searchsorted(t[0, :2] * 0, t[1], sorter=i), (2, -1)),
    "max_unpool": (lambda t, i: functional.max_unpool2d(t[None, :1, :1], i[None, None, :1], 2), (16, -1)),
}
SCATTERED = {"index_put", "index_copy", "scatter", "scatter a number"}  # layers refuse these
COMPUTING = {"indices of two axes", "nll_loss of pictures", "max_unpool", "multilabel_margin_loss"}  # of what is given
WORDED_BY_US = {"embedding_bag", "one_hot", "searchsorted", "max_unpool"}


@pytest.mark.sampled
@pytest.mark.parametrize("computed", [False, True], ids=["given", "computed"])
@pytest.mark.parametrize("name", LOOKUPS)
def test_indices_that_are_outside_are_the_errors_of_aot_eager(name: str, computed: bool) -> None:
    """Checks before anything was written; where the indices are given, around the one engine, not in between."""
    if name == "one_hot" and torch.__version__ < "2.12":
        pytest.skip("aot_eager of PyTorch 2.11 makes rows of zeros of classes that there are not")
    look_up, outside = LOOKUPS[name]

    def run(model: Model, index: torch.Tensor) -> Any:
        model.count.add_(1)
        return look_up(_table(model), index * 2 - index if computed else index)

    def said(error: Exception) -> Any:
        return type(error).__name__, "" if name in WORDED_BY_US else str(error)

    inputs = [torch.tensor(places) for places in ([0, 1], [outside[0], 1], [outside[1], 0], [1, 0])]
    optimized, fails = _as_aot_eager(run, inputs, (IndexError, RuntimeError), said, dynamic=False)
    assert fails == [False, True, True, False]
    (build,) = model_report(optimized).graphs[0].builds
    assert build.partition is not None
    checks = [node for node in build.partition.nodes if "check_indices" in node.op]
    assert len(build.partition.engines) <= 1
    assert bool(checks) == ((computed or name in COMPUTING) and name not in SCATTERED)


def _bags(x: torch.Tensor, offsets: torch.Tensor, last: bool = False) -> torch.Tensor:
    places = torch.tensor([0, 1, 2, 2, 1, 0])
    return functional.embedding_bag(places, x * 2, offsets, mode="sum", include_last_offset=last)


REFUSED_VALUES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Sequence[Any]]] = {
    "binary_cross_entropy": (
        lambda x: functional.binary_cross_entropy(x * 2, x.detach() * 0 + 0.5),
        (0.25, 0.75, -0.25, math.nan, 0.5),
    ),
    "targets of binary_cross_entropy": (
        lambda x: functional.binary_cross_entropy(torch.sigmoid(x), target=x, weight=x.exp(), reduction="none"),
        (0.25, 1.5, math.nan, 1.0),
    ),
    "masked_scatter": (lambda x: x.masked_scatter(x > 0, x[:2] * 2), (-1.0, 1.0, 0.0)),
    "masked_scatter of rows": (lambda x: x.masked_scatter(x[0] > 0, torch.ones(7)), (-1.0, 1.0, 0.0)),
    "histc": (lambda x: torch.histc(x * 2, bins=4), (1.0, math.inf, math.nan, 0.0)),
    "begin of bags": (lambda x: _bags(x, x[0, :2].long() * torch.tensor([1, 2])), (0.0, 1.0, 0.5)),
    "end of bags": (lambda x: _bags(x, x[0, :2].long() * torch.tensor([0, 3])), (2.0, 3.0, 1.0)),
    "last end of bags": (lambda x: _bags(x, x[0, :2].long() * torch.tensor([0, 1]), True), (6.0, 7.0, 1.0)),
}


@pytest.mark.sampled
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", REFUSED_VALUES)
def test_values_that_operators_refuse_are_the_errors_of_aot_eager(name: str, dynamic: bool) -> None:
    """Before anything was written; one engine computes the operator, and what is asserted of its operands."""
    function, (good, *bad, fine) = REFUSED_VALUES[name]

    def run(model: Model, x: torch.Tensor) -> Any:
        model.count.add_(1)
        return function(x) + model.linear.bias.sum()

    def said(error: Exception) -> Any:
        return type(error).__name__, str(error)[:12]

    inputs = [torch.full((3, 4), value) for value in (good, *bad, fine)]
    optimized, fails = _as_aot_eager(run, inputs, (RuntimeError,), said, dynamic=dynamic)
    assert fails == [False, *(True for _ in bad), False]
    assert model_report(optimized).engines == 1


def test_values_that_cannot_be_others_are_not_asserted() -> None:
    def run(model: Model, x: torch.Tensor) -> Any:
        enough, bags = x.masked_scatter(x > 0, x * 2), functional.embedding_bag(torch.zeros(3, 2).long(), x)
        return enough, bags, torch.histc(x, bins=4, min=0, max=1)

    optimized = torch.compile(Model(run), backend="torch_tensorrt", dynamic=False, options={"min_block_size": 1})
    with torch.no_grad():
        optimized(torch.full((3, 4), math.nan))
    (build,) = model_report(optimized).graphs[0].builds
    assert build.partition is not None
    assert not [node for node in build.partition.nodes if "assert" in node.op]


def test_tables_and_positions_of_sizes_that_vary_are_checked() -> None:
    def run(model: Model, x: torch.Tensor, index: torch.Tensor) -> Any:
        return x[index], functional.embedding(torch.arange(x.shape[0]), model.linear.weight), x.take(index)

    optimized = torch.compile(Model(run), backend="torch_tensorrt", dynamic=True, options={"min_block_size": 1})
    with torch.no_grad():
        for rows in (3, 4, 2):
            x = torch.randn(rows, 4)
            assert torch.equal(optimized(x, torch.tensor([rows - 1, -rows]))[0], x[[-1, 0]])
            with pytest.raises(IndexError, match=f"index {rows} is out of bounds for dimension 0 with size {rows}"):
                optimized(x, torch.tensor([rows, 0]))
        with pytest.raises(IndexError, match="index out of range in self"):
            optimized(torch.randn(5, 4), torch.tensor([0, 1]))
    assert model_report(optimized).coverage == 1


@pytest.mark.parametrize("options", [{"precision": torch.float16}, {"enable_autocast": True}])
@pytest.mark.parametrize("function", [_write_to_buffers, lambda m, x: m.linear(x.add_(1))])
def test_half_precision_writes_back(options: dict[str, Any], function: Program) -> None:
    torch.manual_seed(0)
    model, twin = Model(function), Model(function)
    twin.load_state_dict(model.state_dict())
    optimized = torch.compile(model, backend="torch_tensorrt", options={"min_block_size": 1, **options})
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(3, 4)
            y = x.clone()
            torch.testing.assert_close(optimized(x), twin(y), rtol=2e-2, atol=2e-2)
            torch.testing.assert_close(x, y, rtol=1e-2, atol=1e-2)  # half has 11 bits
            torch.testing.assert_close(model.cache, twin.cache, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_statistics_in_half_are_those_of_aot_eager(dtype: torch.dtype) -> None:
    """PyTorch describes them in float32, and its kernel makes halves, which the next engine was not built for."""

    def run(model: Model, x: torch.Tensor) -> Any:
        running = model.row_norm.running_mean, model.row_norm.running_var
        return functional.instance_norm(model.row_norm(x), *running), x.sum(1)

    agree(lambda: Model(run).to(dtype), lambda _: (torch.randn(3, 4, 5).to(dtype),), tolerance=4e-2)


def test_results_whose_size_depends_on_data_keep_their_strides() -> None:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        agree(lambda: Model(lambda m, x: (torch.relu(x).nonzero(), torch.relu(x)[x > 0])), matrix)


def test_numbers_that_python_draws_are_new_ones_at_every_call() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x * random.uniform(1, 2) + random.randint(0, 9)

    compiled = torch.compile(forward, backend="torch_tensorrt", options={"min_block_size": 1})
    for seed in range(3):
        random.seed(seed)
        expected = forward(torch.ones(3))
        random.seed(seed)
        torch.testing.assert_close(compiled(torch.ones(3)), expected)


def test_captured_scalars() -> None:
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        agree(lambda: Model(lambda m, x: torch.relu(x) * x.sum().item() + x.argmax().item()), matrix)


def test_a_number_that_is_read_to_index_ends_a_graph_and_compiles_once(caplog: pytest.LogCaptureFixture) -> None:
    from torch._dynamo.utils import counters

    optimized = torch.compile(
        lambda x, i: torch.relu(x[i] * 2), backend="torch_tensorrt", options={"min_block_size": 1}
    )
    x = torch.randn(4)
    frames = []
    with torch.no_grad():
        for place in range(4):
            torch.testing.assert_close(optimized(x, torch.tensor(place)), torch.relu(x[place] * 2))
            frames.append(counters["frames"]["total"])
    assert frames[1:] == frames[:1] * 3
    assert not [record for record in caplog.records if "runs in PyTorch" in record.getMessage()]
