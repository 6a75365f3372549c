from __future__ import annotations

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import Dim

from trt_core import CompilationSettings, Device
from trt_core.weight_recipes import RECIPE, Source, replay
from trt_lowering import lower
from trt_lowering.passes.cleanup import EliminateDeadCode
from trt_lowering.passes.flatten import RemoveAssertions
from trt_lowering.passes.functionalize import Functionalize
from trt_lowering.passes.known_values import FoldConstants


def fold(gm, settings, **options):
    RemoveAssertions()(gm)
    result = FoldConstants(settings, **options)(gm)
    EliminateDeadCode()(gm)
    gm.recompile()
    return result


def test_masks_and_positions_are_computed_once(captured, settings, operators, compare):
    def function(x):
        positions = torch.arange(4)
        mask = (positions[:, None] >= positions[None, :]).float()
        return x * mask

    x = torch.randn(4, 4)
    gm = captured(function, x)
    assert fold(gm, settings).changes == 1
    assert operators(gm) == {"mul": 1}
    compare(function(x), gm(x))
    assert len(list(gm.buffers())) == 1


def test_views_of_parameters_share_their_memory(captured, settings, operators):
    class Transposed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(600, 600))

        def forward(self, x):
            return x @ self.weight.t()

    model = Transposed()
    gm = captured(model, torch.randn(2, 600))
    fold(gm, settings)
    assert operators(gm) == {"matmul": 1}
    (node,) = gm.graph.find_nodes(op="get_attr")
    assert getattr(gm, node.target).data_ptr() == model.weight.data_ptr()


def test_what_reads_a_view_that_the_model_returns_is_not_known_without_it(captured, settings, compare):
    def function(x):
        made = torch.full((2, 3), 1.5)
        column = made.unsqueeze(-1).view(-1, 1)
        return column @ column.t(), column, made, x + column.sum()

    x = torch.randn(3)
    gm = captured(function, x)
    fold(gm, settings)
    compare(function(x), gm(x))
    _, column, made, _ = gm(x)
    assert column.data_ptr() == made.data_ptr()


def test_large_results_of_small_things_stay(captured, settings, operators):
    gm = captured(lambda x: x + torch.arange(1000), torch.randn(1000))
    assert not fold(gm, settings, small_bytes=100).changed
    assert operators(gm)["arange"] == 1


def test_dynamic_sizes_stay(captured, settings):
    gm = captured(
        lambda x: x + torch.arange(x.shape[0]), torch.randn(4), dynamic_shapes=(({0: Dim("n", min=1, max=8)},),)
    )
    assert not fold(gm, settings).changed


def test_random_and_named_operators_stay(captured, settings, operators):
    gm = captured(lambda x: x + torch.rand(3) + torch.arange(3), torch.randn(3))
    assert not fold(gm, settings.replace(torch_executed_ops={"aten.arange"})).changed


def test_written_state_is_not_constant(captured, settings, operators):
    class Step(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("steps", torch.zeros(1))
            self.register_buffer("scale", torch.ones(1))

        def forward(self, x):
            self.steps.add_(1)
            return x * self.steps * (self.scale + 1)

    gm = captured(Step(), torch.randn(1))
    Functionalize()(gm)
    assert fold(gm, settings).changes == 1
    assert operators(gm)["add"] == 1
    assert [gm(torch.ones(1)).item() for _ in range(2)] == [2.0, 4.0]


def test_constants_of_weights_keep_their_recipe_for_refit(captured, settings):
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(3))

        def forward(self, x):
            return x * (self.weight + 1)

    gm = captured(Scaled(), torch.randn(3))
    gm.graph.find_nodes(op="get_attr")[0].meta[RECIPE] = Source("weight", torch.float32, (3,))
    assert fold(gm, settings.replace(refit=True)).changed
    (constant,) = gm.graph.find_nodes(op="get_attr")
    other = torch.randn(3)
    assert torch.equal(replay(constant.meta[RECIPE], {"weight": other}), other + 1)


def test_lists_are_folded_only_through_their_items(captured, settings, operators, compare):
    class Parts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.randn(4, 2))

        def forward(self, x):
            first, second = self.table.split(2)
            return x @ first + second

    x = torch.randn(2, 2)
    model = Parts()
    gm = captured(model, x)
    assert fold(gm, settings).changes == 2
    assert not operators(gm)["split"]
    compare(model(x), gm(x))


def test_list_used_whole_stays(captured, settings, compare):
    class Joined(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.randn(4, 2))

        def forward(self, x):
            parts = self.table.unbind(0)
            return torch.cat([x, *parts]), parts[0] + x[:2]

    x = torch.randn(3)
    model = Joined()
    gm = captured(model, x)
    fold(gm, settings)
    compare(model(x), gm(x))


def test_constants_without_data_fold_to_constants_without_data() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * (self.weight + torch.arange(4, device=x.device)).exp()

    def constants(model: nn.Module, x: torch.Tensor) -> tuple[int, list[torch.Tensor]]:
        program = torch.export.export(model, (x,))
        gm = lower(program, CompilationSettings(device=Device("cpu")), preserve=lambda target: True)
        found = [gm.get_buffer(str(node.target)) for node in gm.graph.find_nodes(op="get_attr")]
        return len(gm.graph.nodes), found

    nodes, (real,) = constants(Scaled(), torch.ones(4))
    assert not isinstance(real, FakeTensor)
    with FakeTensorMode():
        model, x = Scaled(), torch.ones(4)
    assert constants(model, x)[0] == nodes
    (fake,) = constants(model, x)[1]
    assert isinstance(fake, FakeTensor) and fake.shape == (4,)
    with torch.device("meta"):
        model, x = Scaled(), torch.ones(4)
    (meta,) = [value for value in constants(model, x)[1] if value.is_meta]
    assert meta.shape == (4,)
