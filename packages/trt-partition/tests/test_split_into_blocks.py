"""Splitting graphs of real modules: results, parameters, metadata, sizes, effects."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx, nn

from trt_core import PartitionError, Reason
from trt_partition import find_boundaries, make_plan, make_report, split_into_blocks

aten = torch.ops.aten


def _assert_same(expected: Any, actual: Any) -> None:
    torch.utils._pytree.tree_map(lambda a, b: torch.testing.assert_close(a, b, rtol=0, atol=0), expected, actual)


def _children(split: fx.GraphModule) -> dict[str, fx.GraphModule]:
    return {name: child for name, child in split.named_children() if isinstance(child, fx.GraphModule)}


def test_split_module_is_called_like_the_model(branchy: Any, branchy_graph: Any, refuse: Any, settings: Any) -> None:
    model, inputs = branchy
    split = split_into_blocks(branchy_graph, make_plan(branchy_graph, refuse("relu.default"), settings()))
    _assert_same(model(*inputs), split(*inputs))
    _assert_same(model(*inputs), split(inputs[0], extra=inputs[1]))


def test_children_are_the_blocks_in_order(branchy_graph: Any, refuse: Any, settings: Any) -> None:
    plan = make_plan(branchy_graph, refuse("relu.default", "sigmoid.default"), settings())
    split = split_into_blocks(branchy_graph, plan)
    assert list(_children(split)) == [block.name for block in plan.blocks]
    calls = [node.target for node in split.graph.nodes if node.op == "call_module"]
    assert calls == [block.name for block in plan.blocks]


def test_parameters_move_into_the_child_that_uses_them(
    branchy: Any, branchy_graph: Any, refuse: Any, settings: Any
) -> None:
    split = split_into_blocks(branchy_graph, make_plan(branchy_graph, refuse("relu.default"), settings()))
    owners = {name: child for child in split.children() for name, _ in child.named_parameters()}
    assert set(owners) == {f"{layer}.{kind}" for layer in ("first", "second", "third") for kind in ("weight", "bias")}
    for name, child in owners.items():
        assert child.get_parameter(name).data_ptr() == branchy_graph.get_parameter(name).data_ptr()
    assert not any(node.op == "get_attr" for node in split.graph.nodes)


def test_nodes_keep_names_and_metadata(branchy_graph: Any, refuse: Any, settings: Any) -> None:
    split = split_into_blocks(branchy_graph, make_plan(branchy_graph, refuse("relu.default"), settings()))
    original = {node.name: node for node in branchy_graph.graph.nodes}
    for child in _children(split).values():
        child.graph.lint()
        for node in child.graph.nodes:
            if node.op == "call_function":
                source = original[node.name]
                assert node.target is source.target
                for key in ("val", "nn_module_stack", "stack_trace"):
                    assert node.meta[key] is source.meta[key]
            elif node.op == "placeholder":
                assert isinstance(node.meta["val"], torch.Tensor)
    for node in split.graph.nodes:
        assert node.op == "output" or "val" in node.meta


def test_children_take_and_return_tensors_only(branchy_dynamic: Any, refuse: Any, settings: Any) -> None:
    plan = make_plan(branchy_dynamic, refuse("relu.default", "sigmoid.default"), settings())
    boundaries = find_boundaries(branchy_dynamic, plan)
    for boundary in boundaries.blocks.values():
        for node in (*boundary.inputs, *boundary.outputs):
            assert isinstance(node.meta["val"], torch.Tensor)


@pytest.mark.sampled
@pytest.mark.parametrize("rows", [2, 3, 11])
@pytest.mark.parametrize("refused", [(), ("relu.default",), ("relu.default", "linear.default", "tanh.default")])
def test_dynamic_batch(
    branchy: Any, branchy_dynamic: Any, refuse: Any, settings: Any, rows: int, refused: tuple[str, ...]
) -> None:
    split = split_into_blocks(branchy_dynamic, make_plan(branchy_dynamic, refuse(*refused), settings()))
    inputs = (torch.randn(rows, 4), {"bias": torch.randn(4)})
    _assert_same(branchy[0](*inputs), split(*inputs))


class Reshaping(nn.Module):
    """Reads sizes of the input after stretches that run elsewhere, and returns one."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, int, torch.Tensor]:
        z = torch.relu(torch.tanh(x))
        z = torch.tanh(torch.cat([z, y])).reshape(-1, 2)
        z = torch.relu(z)
        return torch.sin(z).reshape(x.shape[0] + y.shape[0], 4), x.shape[0] * 2 + y.shape[0], x


@pytest.fixture(scope="module")
def reshaping(capture: Any) -> fx.GraphModule:
    rows, more = torch.export.Dim("rows", min=2, max=9), torch.export.Dim("more", min=2, max=9)
    module = capture(Reshaping(), torch.randn(3, 4), torch.randn(5, 4), dynamic=({0: rows}, {0: more}))
    assert isinstance(module, fx.GraphModule)
    return module


@pytest.mark.parametrize("refused", [(), ("relu.default",), ("tanh.default",), ("sin.default", "cat.default")])
def test_sizes_are_computed_in_each_block_and_outputs_at_the_root(
    reshaping: Any, refuse: Any, settings: Any, refused: tuple[str, ...]
) -> None:
    split = split_into_blocks(reshaping, make_plan(reshaping, refuse(*refused), settings()))
    inputs = torch.randn(4, 4), torch.randn(7, 4)
    _assert_same(Reshaping()(*inputs), split(*inputs))
    assert split(*inputs)[1] == 15
    for child in _children(split).values():
        assert all(isinstance(n.meta["val"], torch.Tensor) for n in child.graph.nodes if n.op == "placeholder")


def test_size_is_read_from_a_tensor_that_the_block_takes_anyway(
    branchy_dynamic: Any, refuse: Any, settings: Any
) -> None:
    """The last stretch needs the batch, which every tensor that it takes has: the input `x` is not handed on."""
    plan = make_plan(branchy_dynamic, refuse("sigmoid.default"), settings())
    last = find_boundaries(branchy_dynamic, plan).blocks[plan.engines[-1].name]
    assert "x" not in {node.name for node in last.inputs}
    assert last.readings


class Updating(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(x)
        self.count.add_(y.sum(0))
        return torch.sin(y + torch.rand_like(y))


@pytest.mark.parametrize("functional", [True, False])
def test_effects_happen_once_in_order_and_survive_dead_code_elimination(
    capture: Any, refuse: Any, settings: Any, functional: bool
) -> None:
    expected, module = Updating(), capture(Updating(), torch.randn(2, 4), functional=functional)
    plan = make_plan(module, refuse(), settings())
    split = split_into_blocks(module, plan)
    split.graph.eliminate_dead_code()
    split.recompile()
    x = torch.randn(2, 4)
    for _ in range(2):
        torch.manual_seed(3)
        want = expected(x)
        torch.manual_seed(3)
        torch.testing.assert_close(split(x), want, rtol=0, atol=0)
    counts = [buffer for name, buffer in split.named_buffers() if name.endswith("count")]
    torch.testing.assert_close(counts[0], expected.count, rtol=0, atol=0)


class Passing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))

    def forward(self, x: torch.Tensor) -> tuple[Any, ...]:
        return x, self.weight, None, 3, torch.tanh(x)


def test_outputs_that_no_block_makes(capture: Any, refuse: Any, settings: Any) -> None:
    model = Passing()
    gm = capture(model, torch.randn(4))
    x = torch.randn(4)
    split = split_into_blocks(gm, make_plan(gm, refuse(), settings()))
    same, weight, nothing, three, y = split(x)
    assert same is x
    assert nothing is None
    assert three == 3
    assert weight.data_ptr() == gm.weight.data_ptr()
    torch.testing.assert_close(y, torch.tanh(x))


class Counting(nn.Module):
    def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        count = n.item()
        torch._check(count >= 1)
        torch._check(count <= 4)
        return torch.relu(torch.tanh(x) * torch.ones(count, 4)[:1]) + torch.full((count, 4), 0.5)[:1]


def test_number_from_data_passes_between_pytorch_blocks(capture: Any, refuse: Any, settings: Any) -> None:
    gm = capture(Counting(), torch.randn(1, 4), torch.tensor(2))
    plan = make_plan(gm, refuse(), settings())
    assert "Dry-Run" in make_report(gm, plan, settings()).to_text()
    split = split_into_blocks(gm, plan)
    inputs = torch.randn(1, 4), torch.tensor(3)
    _assert_same(Counting()(*inputs), split(*inputs))
    for name, child in _children(split).items():
        if name.startswith("_run_on_acc_"):
            assert all(isinstance(n.meta["val"], torch.Tensor) for n in child.graph.nodes if n.op == "placeholder")


class Choosing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(x)
        return torch.relu(torch.cond(y.sum() > 0, lambda z: z * 2, lambda z: z - 1, (y,)))


def test_control_flow_runs_in_pytorch_with_its_branches(capture: Any, refuse: Any, settings: Any) -> None:
    gm = capture(Choosing(), torch.ones(3))
    plan = make_plan(gm, refuse("sub.Tensor"), settings())
    split = split_into_blocks(gm, plan)
    for x in (torch.ones(3), -torch.ones(3)):
        _assert_same(Choosing()(x), split(x))
    assert {verdict.reason for verdict in plan.verdicts.values() if not verdict.supported} == {Reason.HIGHER_ORDER}
    assert make_report(gm, plan, settings()).to_text()


def test_graph_that_torch_compile_captured_takes_sizes_as_inputs(refuse: Any, settings: Any) -> None:
    """Its placeholders are numbers, too; engines read them from the shapes of tensors."""
    from torch._dynamo.backends.common import aot_autograd

    captured: list[tuple[fx.GraphModule, fx.GraphModule]] = []

    def compiler(gm: fx.GraphModule, example: Any) -> Any:
        plan = make_plan(gm, refuse("relu.default"), settings())
        make_report(gm, plan, settings()).to_text()
        split = split_into_blocks(gm, plan)
        captured.append((gm, split))
        return lambda *args: split(*args)

    def model(x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(torch.tanh(x).reshape(x.shape[0] * 4) * 2)
        return torch.tanh(y.reshape(x.shape[0], 4)) + x.shape[0]

    compiled = torch.compile(model, backend=aot_autograd(fw_compiler=compiler), dynamic=True)
    for rows in (3, 5):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x), model(x), rtol=0, atol=0)
    gm, split = captured[0]
    numbers = [n for n in gm.graph.nodes if n.op == "placeholder" and not isinstance(n.meta["val"], torch.Tensor)]
    assert numbers
    for child in _children(split).values():
        assert all(isinstance(n.meta["val"], torch.Tensor) for n in child.graph.nodes if n.op == "placeholder")
    assert [name for name in _children(split) if name.startswith("_run_on_acc_")] == ["_run_on_acc_0", "_run_on_acc_2"]


def test_plan_of_another_graph_is_refused(branchy_graph: Any, reshaping: Any, refuse: Any, settings: Any) -> None:
    with pytest.raises(PartitionError, match="another graph"):
        split_into_blocks(branchy_graph, make_plan(reshaping, refuse(), settings()))


def test_original_graph_still_works(branchy: Any, branchy_graph: Any, refuse: Any, settings: Any) -> None:
    before = str(branchy_graph.graph)
    split_into_blocks(branchy_graph, make_plan(branchy_graph, refuse("relu.default"), settings()))
    assert str(branchy_graph.graph) == before
    _assert_same(branchy[0](*branchy[1]), branchy_graph(*branchy[1]))


class Counter(nn.Module):
    """Counts its calls in a buffer, which it also computes with."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return torch.relu(x) + self.calls


def test_state_is_taken_as_an_input_and_never_as_a_constant(capture: Any, refuse: Any, settings: Any) -> None:
    graph = capture(Counter(), torch.ones(2))
    plan = make_plan(graph, refuse(), settings())
    split = split_into_blocks(graph, plan)
    for child in _children(split).values():
        assert not list(child.buffers())
    assert [name for name, _ in split.named_buffers()] == ["calls"]
    x = torch.ones(2)
    results = [split(x) for _ in range(3)]
    for number, result in enumerate(results, start=1):
        torch.testing.assert_close(result, x + number)
    report = make_report(graph, plan, settings())
    assert all(block.parameters == 0 for block in report.blocks)
