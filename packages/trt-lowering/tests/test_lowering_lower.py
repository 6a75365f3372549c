from __future__ import annotations

import copy
import importlib

import pytest
import torch
from torch.export import Dim

from trt_core import LoweringError
from trt_lowering import check_graph_form, decompose_program, export_module, lower
from trt_lowering.operator_traits import mutated_arguments

pytestmark = pytest.mark.sampled(4)

BATCH = ({0: Dim("b", min=1, max=16)},)


class Tower(torch.nn.Module):
    """In-place activations, dropout, a buffer, keyword inputs and nested results."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)
        self.activation, self.dropout = torch.nn.ReLU(inplace=True), torch.nn.Dropout(0.5)
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x, *, shift=None):
        y = self.dropout(self.activation(self.norm(self.conv(x))))
        y += 1
        if shift is not None:
            y = y + shift
        return {"out": y * self.scale, "parts": (torch.nn.functional.mish(y), [y.mean()])}


@pytest.fixture
def tower():
    return Tower().eval()


def test_lowered_module_is_called_like_the_model(tower, settings, preserve, compare):
    x, shift = torch.randn(4, 3, 8, 8), torch.randn(6, 6)
    program = export_module(tower, (x,), {"shift": shift}, dynamic_shapes={"x": BATCH[0], "shift": None})
    gm = lower(program, settings, preserve=preserve)
    check_graph_form(gm)
    for batch in (1, 2, 7):
        x = torch.randn(batch, 3, 8, 8)
        compare(tower(x, shift=shift), gm(x, shift=shift), 1e-6)  # mish is decomposed: one rounding
    assert set(gm(x, shift=shift)) == {"out", "parts"}


def test_parameters_are_shared_and_the_program_is_left_alone(tower, settings, preserve):
    program = export_module(tower, (torch.randn(2, 3, 8, 8),))
    before, code = copy.deepcopy(program.graph_signature), program.graph_module.code
    state = dict(program.state_dict)
    gm = lower(program, settings, preserve=preserve)
    assert program.graph_module.code == code
    assert str(program.graph_signature) == str(before)
    assert dict(program.state_dict).keys() == state.keys()
    own = {tensor.data_ptr() for tensor in (*gm.parameters(), *gm.buffers())}
    assert {parameter.data_ptr() for parameter in tower.parameters()} <= own


def test_module_can_be_switched_between_modes(tower, settings, preserve):
    gm = lower(export_module(tower, (torch.randn(2, 3, 8, 8),)), settings, preserve=preserve)
    assert gm.eval() is gm


def test_inputs_come_first(tower, settings, preserve):
    gm = lower(export_module(tower, (torch.randn(2, 3, 8, 8),)), settings, preserve=preserve)
    assert next(iter(gm.graph.nodes)).op == "placeholder"


def test_named_operators_survive_every_pass(tower, settings, preserve, operators):
    named = settings.replace(torch_executed_ops={"aten.mish", "aten.dropout"})
    gm = lower(export_module(tower, (torch.randn(2, 3, 8, 8),)), named, preserve=preserve)
    assert operators(gm)["mish"] == 1
    assert operators(gm)["dropout"] == 1


class Windows(torch.nn.Module):
    """Writes to a window of a tensor that is read afterwards."""

    def forward(self, x):
        mask = torch.zeros_like(x)
        mask[:, 1:] = 1
        mask[:, 0].add_(2)
        return torch.nn.functional.linear(x * mask, torch.ones(2, 3))


def test_entangled_writes_are_traced_anew_and_operators_kept(settings, preserve, operators, compare):
    x = torch.randn(4, 3)
    program = export_module(Windows(), (x,), dynamic_shapes=BATCH)
    gm = lower(program, settings, preserve=preserve)
    check_graph_form(gm)
    assert operators(gm)["linear"] == 1
    for batch in (2, 5):
        x = torch.randn(batch, 3)
        compare(Windows()(x), gm(x))


class Cache(torch.nn.Module):
    """A key-value cache: writes to a slice of a buffer and to an input."""

    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(4, 3))
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    def forward(self, x, log):
        self.cache[1:2].copy_(x)
        self.step.add_(1)
        log.add_(x.sum())
        return self.cache.sum(0) + self.step


class Shared(torch.nn.Module):
    """A buffer of two modules, that one writes to at a constant place and the other reads."""

    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(4, 3))
        self.reader = torch.nn.Module()
        self.reader.register_buffer("cache", self.cache)

    def forward(self, x):
        self.cache.index_copy_(0, torch.tensor([1]), x)
        return self.reader.cache * 2


def test_a_buffer_of_two_modules_is_written_to_without_another_trace(settings, preserve, compare, monkeypatch):
    monkeypatch.setattr(importlib.import_module("trt_lowering.lower"), "retrace", None)
    model, x = Shared(), torch.randn(1, 3)
    gm = lower(export_module(copy.deepcopy(model), (x,)), settings, preserve=preserve)
    for _ in range(2):
        x = torch.randn(1, 3)
        compare(model(x), gm(x))
    (cache,) = (value for value in gm.buffers() if value.shape == (4, 3))
    compare(model.cache, cache)


def test_a_part_of_a_buffer_of_two_modules_is_written_to(settings, preserve, compare):
    class Part(Shared):
        def forward(self, x):
            self.cache[1:2].add_(x)
            return self.reader.cache * 2

    model, x = Part(), torch.randn(1, 3)
    program = export_module(copy.deepcopy(model), (x,))
    for gm in (lower(program, settings, preserve=preserve), decompose_program(program, settings, preserve=preserve)):
        callable_ = gm.module() if isinstance(gm, torch.export.ExportedProgram) else gm
        reference = copy.deepcopy(model)
        for buffer in callable_.buffers():
            buffer.zero_()
        for _ in range(2):
            compare(reference(x), callable_(x))


def test_written_state_stays_state(settings, preserve, compare):
    x = torch.randn(1, 3)
    model = Cache()
    gm = lower(export_module(copy.deepcopy(model), (x, torch.zeros(1))), settings, preserve=preserve)
    check_graph_form(gm)
    logs = torch.zeros(1), torch.zeros(1)
    for _ in range(3):
        x = torch.randn(1, 3)
        compare(model(x, logs[0]), gm(x, logs[1]))
    compare(logs[0], logs[1])
    state = dict(gm.named_buffers())
    compare(model.cache, state["cache"])


def test_autocast_regions_are_traced_with_their_casts(settings, preserve, compare):
    class Mixed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 3)

        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = self.linear(x)
            return y.float() + x

    model, x = Mixed(), torch.randn(2, 3)
    gm = lower(export_module(model, (x,)), settings, preserve=preserve)
    check_graph_form(gm)
    kinds = {node.meta["val"].dtype for node in gm.graph.nodes if node.op == "call_function"}
    assert torch.bfloat16 in kinds
    compare(model(x), gm(x), 1e-2)  # bfloat16 inside


def test_settings_reach_the_type_passes(tower, settings, preserve):
    x = torch.randn(2, 3, 8, 8)
    program = export_module(tower, (x,))
    for changes in ({"precision": torch.float16}, {"enable_autocast": True, "autocast_dtype": torch.float16}):
        gm = lower(program, settings.replace(**changes), preserve=preserve)
        (conv,) = (node for node in gm.graph.nodes if node.target is torch.ops.aten.conv2d.default)
        assert conv.meta["val"].dtype == torch.float16
        result = gm(x)["out"]
        assert result.dtype == torch.float32
        # three operators in float16 (spacing 1e-3) on values of up to about 8
        torch.testing.assert_close(result, tower(x)["out"], rtol=5e-3, atol=1e-2)


def test_weights_are_cast_at_compile_time(settings, preserve, operators):
    model = torch.nn.Linear(4, 4)
    program = export_module(model, (torch.randn(2, 4),))
    gm = lower(program, settings.replace(precision=torch.float16), preserve=preserve)
    assert operators(gm) == {"_to_copy": 2, "linear": 1}
    assert {node.meta["val"].dtype for node in gm.graph.find_nodes(op="get_attr")} == {torch.float16}


def test_decomposed_program_has_the_same_signature_and_saves(tower, settings, preserve, tmp_path, compare):
    x = torch.randn(4, 3, 8, 8)
    program = export_module(tower, (x,), dynamic_shapes={"x": BATCH[0]})
    decomposed = decompose_program(program, settings, preserve=preserve)
    targets = {node.target for node in decomposed.graph.nodes if node.op == "call_function"}
    assert torch.ops.aten.mish.default not in targets
    assert not any(mutated_arguments(target) for target in targets if isinstance(target, torch._ops.OpOverload))
    assert len(decomposed.graph_signature.user_outputs) == len(program.graph_signature.user_outputs)
    torch.export.save(decomposed, tmp_path / "tower.pt2")
    loaded = torch.export.load(tmp_path / "tower.pt2")
    for batch in (2, 5):
        x = torch.randn(batch, 3, 8, 8)
        compare(tower(x), decomposed.module()(x), 1e-6)
        compare(tower(x), loaded.module()(x), 1e-6)


def test_decomposed_program_lowers_like_the_original(tower, settings, preserve, operators):
    program = export_module(tower, (torch.randn(4, 3, 8, 8),))
    direct = lower(program, settings, preserve=preserve)
    staged = lower(decompose_program(program, settings, preserve=preserve), settings, preserve=preserve)
    assert operators(direct) == operators(staged)


def test_loaded_programs_lower(tower, settings, preserve, tmp_path, compare):
    x = torch.randn(4, 3, 8, 8)
    program = export_module(tower, (x,), dynamic_shapes={"x": BATCH[0]})
    torch.export.save(program, tmp_path / "tower.pt2")
    gm = lower(torch.export.load(tmp_path / "tower.pt2"), settings, preserve=preserve)
    check_graph_form(gm)
    x = torch.randn(5, 3, 8, 8)
    compare(tower(x), gm(x), 1e-6)


def test_inputs_called_like_python_builtins_keep_their_names(settings, preserve, compare):
    class Named(torch.nn.Module):
        def forward(self, input, *, shift=None):
            return torch.nn.functional.mish(input) + shift

    inputs = torch.randn(2, 3), torch.randn(2, 3)
    program = export_module(Named(), inputs[:1], {"shift": inputs[1]})
    decomposed = decompose_program(program, settings, preserve=preserve)
    assert decomposed.graph_signature.user_inputs == program.graph_signature.user_inputs
    compare(Named()(inputs[0], shift=inputs[1]), decomposed.module()(inputs[0], shift=inputs[1]), 1e-6)


def test_decomposed_programs_with_entangled_writes(settings, preserve, compare):
    x = torch.randn(4, 3)
    program = decompose_program(export_module(Windows(), (x,)), settings, preserve=preserve)
    compare(Windows()(x), program.module()(x))


def test_control_flow_is_left_whole(settings, preserve, compare):
    class Branch(torch.nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda v: v.sin(), lambda v: v.cos(), (x,)) + 1

    gm = lower(export_module(Branch(), (torch.ones(3),)), settings, preserve=preserve)
    check_graph_form(gm)
    for x in (torch.ones(3), -torch.ones(3)):
        compare(Branch()(x), gm(x))


class Changes(torch.nn.Module):
    """Changes its input, a view of it or its buffer by a function, and uses them."""

    def __init__(self, change):
        super().__init__()
        self.change = change
        self.register_buffer("table", torch.ones(4, 1, 4))

    def forward(self, x):
        self.change(self, x)
        return x.sum() + self.table.sum()


LOST = {
    "t_": lambda module, x: x.squeeze_(1).t_(),
    "transpose_": lambda module, x: x.transpose_(0, 1),
    "squeeze_": lambda module, x: x.squeeze_(),
    "swapaxes_": lambda module, x: x.add_(1).swapaxes_(0, 2),
    "swapdims_": lambda module, x: (x.swapdims_(0, 2), x.mul_(2)),
    "resize_": lambda module, x: x.resize_(2, 4),
    "as_strided_": lambda module, x: x.as_strided_((2, 4), (4, 1)),
    "set_": lambda module, x: x.set_(module.table.clone()),
}


@pytest.mark.parametrize("operator", LOST)
def test_changes_of_an_input_other_than_to_its_elements_are_refused(operator, settings, preserve):
    program = export_module(Changes(LOST[operator]), (torch.ones(4, 1, 4),))
    for attempt in (lower, decompose_program):
        with pytest.raises(LoweringError, match=rf"the model changes input x by {operator}\(\)"):
            attempt(program, settings, preserve=preserve)


def _in_regions(change):
    def run(module, x):
        with torch.no_grad():
            module.table.add_(1)
            with torch.autocast("cpu", torch.bfloat16):
                change(module, x)

    return run


@pytest.mark.parametrize("operator", ["t_", "transpose_"])
def test_changes_in_wrapped_regions_are_refused_like_others(operator, settings, preserve):
    program = export_module(Changes(_in_regions(LOST[operator])), (torch.ones(4, 1, 4),))
    for attempt in (lower, decompose_program):
        with pytest.raises(LoweringError, match=rf"the model changes input x by {operator}\(\)"):
            attempt(program, settings, preserve=preserve)


def test_changes_of_a_buffer_and_of_data_are_refused(settings, preserve):
    program = export_module(Changes(lambda module, x: module.table.transpose_(0, 1)), (torch.ones(4, 1, 4),))
    with pytest.raises(LoweringError, match="the model changes its tensor table by transpose_"):
        lower(program, settings, preserve=preserve)
    program = export_module(Changes(lambda module, x: setattr(x, "data", x * 2)), (torch.ones(4, 1, 4),))
    with pytest.raises(LoweringError, match="assigns to the data of a tensor"):
        lower(program, settings, preserve=preserve)


@pytest.mark.parametrize(
    "change",
    [
        lambda module, x: x.transpose_(0, 1).transpose_(0, 1),
        lambda module, x: x.squeeze_(0),
        lambda module, x: x.clone().t_() if x.dim() == 2 else x.clone().squeeze_(),
        lambda module, x: x[:2].transpose_(0, 1).mul_(2),
    ],
)
def test_changes_that_leave_an_input_its_shape_are_kept(change, settings, preserve, compare):
    eager, x = Changes(change), torch.rand(4, 1, 4)
    gm = lower(export_module(eager, (x.clone(),)), settings, preserve=preserve)
    wanted, given = x.clone(), x.clone()
    compare(eager(wanted), gm(given), 1e-6)
    compare(wanted, given, 0)


def test_buffers_that_overlap_are_named_where_one_is_written(settings, preserve):
    class Overlapping(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("cache", torch.zeros(4, 3))
            self.register_buffer("first", self.cache[0])

        def forward(self, x):
            self.cache.add_(x)
            return self.first * 2

    program = export_module(Overlapping(), (torch.ones(3),))
    with pytest.raises(LoweringError, match="the buffers cache and first lie in one memory"):
        lower(program, settings, preserve=preserve)


class Passes(torch.nn.Module):
    """Hands contents on between its buffers and its input."""

    def __init__(self, change):
        super().__init__()
        self.change = change
        self.register_buffer("last", torch.arange(16.0).reshape(4, 4))
        self.register_buffer("before", torch.zeros(4, 4))

    def forward(self, x):
        parts = self.last.view(-1)  # with views of what is written to, the whole program is traced again
        return self.change(self, x), parts[0] * 2


@pytest.mark.parametrize(
    "change",
    [
        lambda module, x: (module.before.copy_(module.last), module.last.add_(x), x * 2)[2],
        lambda module, x: (module.before.copy_(module.last.t()), module.last.add_(x), x * 2)[2],
        lambda module, x: (module.before.copy_(module.last), module.last.t().add_(x), x * 2)[2],
        lambda module, x: (old := module.last.clone(), module.last.copy_(x), x.copy_(old), x * 2)[3],
    ],
)
def test_states_are_handed_on_as_they_were_before_they_are_written_to(change, settings, preserve, compare):
    eager = Passes(change)
    gm = lower(export_module(copy.deepcopy(eager), (torch.rand(4, 4),)), settings, preserve=preserve)
    check_graph_form(gm)
    wanted, given = torch.ones(4, 4), torch.ones(4, 4)
    for _ in range(2):
        compare(eager(wanted), gm(given), 1e-6)
        compare([wanted, eager.last], [given, gm.last], 0)
        compare(eager.before, getattr(gm, "before", eager.before), 0)  # one that is not used is not kept


OTHER_NAMES = {
    "dropout that is off": lambda x: torch.nn.functional.dropout(x, 0.5, False),
    "einsum": lambda x: torch.einsum("ij->ij", x),
    "type_as": lambda x: x.type_as(x),
    "to": lambda x: x.to(torch.float32),
    "to a copy": lambda x: x.to(torch.float32, copy=True),
    "contiguous": lambda x: x.contiguous(),
    "atleast": torch.atleast_2d,
    "broadcast": lambda x: torch.broadcast_tensors(x, x)[0],
    "meshgrid": lambda x: torch.meshgrid(x[0], x[0], indexing="ij")[0],
}
WRITES = {
    "whole": lambda x: x.mul_(2),
    "part": lambda x: x[0].mul_(2),
    "part of what is turned": lambda x: x.t()[:1].mul_(2),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("name", OTHER_NAMES)
@pytest.mark.parametrize("made", [False, True], ids=["input", "made"])
def test_writes_to_what_has_another_name_reach_it(name, write, made, lower_module, compare):
    def function(x):
        whole = x * 3 if made else x
        other = OTHER_NAMES[name](whole)
        # the same elements again and again, of which PyTorch lets nobody write to the whole
        other = whole if other.stride() == (1, 0) else other
        WRITES[write](other)
        return whole + 1, other * 1

    x = torch.randn(3, 4)
    lowered = lower_module(function, x, preserve=lambda target: True)
    mine, others = x.clone(), x.clone()
    compare(function(mine), lowered(others))
    assert torch.equal(mine, others)


def test_a_result_that_is_a_written_input_by_another_name_is_that_input(lower_module):
    lowered = lower_module(lambda x: (x.add_(1).to(x.dtype), x.to(x.dtype, copy=True)), torch.randn(3))
    x = torch.zeros(3)
    same, copied = lowered(x)
    assert same is x
    assert copied is not x and torch.equal(copied, torch.ones(3))
