"""What compiled and loaded models say of themselves, and results that come back as the classes that they were."""

from __future__ import annotations

import dataclasses
import json
import pickle
import tempfile
from collections import OrderedDict, defaultdict, deque, namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from program_files import ProgramFile
from torch import nn

import trt_frontends
import trt_runtime
from trt_core import Input
from trt_runtime import ExecutionError, InputError, PlanError
from trt_runtime.command_line import main
from trt_runtime.program.fields import FACTS
from trt_runtime.program.interface import DynamicSize, FixedSpec, TensorSpec
from trt_runtime.program.model_facts import Result


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, state: dict[str, torch.Tensor], scale: float = 2.0) -> dict[str, Any]:
        return {"a": torch.relu(self.linear(x)) * scale, "b": (state["h"] * 2, state["h"].sum())}


def _nested() -> nn.Module:
    x = Input(min_shape=(1, 8, 8), opt_shape=(2, 16, 8), max_shape=(4, 32, 8), dimensions={0: "batch", 1: "8*length"})
    h = Input(min_shape=(1, 3), opt_shape=(2, 3), max_shape=(4, 3))
    return trt_frontends.compile(Nested().eval(), arg_inputs=(x, {"h": h}, 2.0), min_block_size=1)


def test_inputs_and_outputs_are_data_before_and_after_saving(tmp_path: Path) -> None:
    compiled = _nested()
    batch, length = DynamicSize("batch", 1, 2, 4), DynamicSize("8*length", 8, 16, 32)
    rows = DynamicSize("state['h'].shape[0]", 1, 2, 4)
    assert compiled.inputs == (
        TensorSpec("x", torch.float32, (batch, length, 8), "cpu"),
        TensorSpec("state['h']", torch.float32, (rows, 3), "cpu"),
        FixedSpec("scale", 2.0),
    )
    assert compiled.outputs == (
        TensorSpec("output['a']", torch.float32, (batch, length, 8), "cpu"),
        TensorSpec("output['b'][0]", torch.float32, (rows, 3), "cpu"),
        TensorSpec("output['b'][1]", torch.float32, (), "cpu"),
    )
    trt_frontends.save(compiled, tmp_path / "model.trtp")
    loaded = trt_runtime.load(tmp_path / "model.trtp")
    assert (loaded.inputs, loaded.outputs) == (compiled.inputs, compiled.outputs)
    assert loaded.device == compiled.device == torch.device("cpu")
    assert loaded.dtype == compiled.dtype == torch.float32


def test_inspect_tells_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compiled = _nested()
    path = tmp_path / "model.trtp"
    trt_frontends.save(compiled, path)
    assert main(["inspect", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["inputs"] == [spec.to_json() for spec in compiled.inputs]
    assert found["outputs"] == [spec.to_json() for spec in compiled.outputs]
    assert found["inputs"][0]["shape"] == [
        {"name": "batch", "min": 1, "opt": 2, "max": 4},
        {"name": "8*length", "min": 8, "opt": 16, "max": 32},
        8,
    ]
    assert main(["inspect", str(path)]) == 0
    text = capsys.readouterr().out
    for part in ("x: float32[batch, 8*length, 8] on cpu", "batch: 1, 2, 4", "scale: always 2.0", "output['b'][1]"):
        assert part in text


def test_numbers_are_told_by_their_kind(tmp_path: Path) -> None:
    class Counting(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
            return x + 1, x.shape[0] * 2

    rows = Input(min_shape=(1, 4), opt_shape=(2, 4), max_shape=(8, 4))
    compiled = trt_frontends.compile(Counting(), arg_inputs=(rows,), min_block_size=1)
    trt_frontends.save(compiled, tmp_path / "model.trtp")
    for module in (compiled, trt_runtime.load(tmp_path / "model.trtp")):
        assert module.outputs[1].to_json() == {"name": "output[1]", "number": "int"}


def test_sizes_that_depend_on_data_have_no_name(tmp_path: Path) -> None:
    class Chosen(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[x > 0] + 1

    compiled = trt_frontends.compile(Chosen(), arg_inputs=(torch.ones(4),), min_block_size=1)
    trt_frontends.save(compiled, tmp_path / "model.trtp")
    for module in (compiled, trt_runtime.load(tmp_path / "model.trtp")):
        (output,) = module.outputs
        assert output.shape == (DynamicSize("", None, None, None),)


def test_parts_of_a_model_come_before_what_it_says(tmp_path: Path) -> None:
    class Taken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inputs, self.device = nn.Linear(4, 4), nn.Linear(4, 4)
            self.config = nn.Parameter(torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.device(self.inputs(x)) * self.config

    model = Taken().eval()
    compiled = trt_frontends.compile(model, arg_inputs=(torch.ones(2, 4),), dryrun=True)
    trt_frontends.save(compiled, tmp_path / "model.trtp")
    loaded = trt_runtime.load(tmp_path / "model.trtp")
    for module in (compiled, loaded):
        assert isinstance(module.inputs, nn.Module) and isinstance(module.device, nn.Module)
        assert isinstance(module.config, torch.Tensor)
        torch.testing.assert_close(module(torch.ones(2, 4)), model(torch.ones(2, 4)))


# Attributes ----------------------------------------------------------------------------------------------------------


class _Configuration:
    def __init__(self) -> None:
        self.id2label = {0: "no", 1: "yes"}
        self.layers = (1, [2.5, None], {"deep": {"a": 1}})
        self.handle = object()

    @property
    def num_labels(self) -> int:
        return len(self.id2label)

    def to_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)


def test_configurations_are_kept(tmp_path: Path) -> None:
    model = nn.Linear(4, 2).eval()
    model.config, model.main_input_name = _Configuration(), "input"
    compiled = trt_frontends.compile(model, arg_inputs=(torch.ones(1, 4),))
    assert compiled.config is model.config and compiled.main_input_name == "input"
    assert compiled.can_generate() is False
    trt_frontends.save(compiled, tmp_path / "model.trtp")
    loaded = trt_runtime.load(tmp_path / "model.trtp")
    trt_frontends.save(loaded, tmp_path / "again.trtp")
    for module in (loaded, trt_runtime.load(tmp_path / "again.trtp")):
        assert module.config.id2label == {0: "no", 1: "yes"} and module.config.num_labels == 2
        assert module.config.layers[2].deep.a == 1 and "handle" not in module.config
        assert module.main_input_name == "input" and module.can_generate() is False
        assert module.meta == {}
        with pytest.raises(AttributeError, match="id2label"):
            _ = module.config.nothing


def test_metadata_of_the_user_goes_beside_what_is_said_of_the_model(tmp_path: Path) -> None:
    compiled = trt_frontends.compile(nn.Linear(4, 2).eval(), arg_inputs=(torch.ones(1, 4),))
    most = {str(index): "" for index in range(64)}
    trt_runtime.save(compiled, tmp_path / "model.trtp", metadata=most)
    loaded = trt_runtime.load(tmp_path / "model.trtp")
    assert loaded.meta == most and loaded.dtype is torch.float32
    with pytest.raises(InputError, match=FACTS):
        trt_runtime.save(compiled, tmp_path / "model.trtp", metadata={FACTS: "{}"})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"dimensions":{},"results":{"output":["a:b"]},"attributes":{},"plugins":[]}',
        '{"dimensions":{"s0":1},"results":{},"attributes":{},"plugins":[]}',
        '{"dimensions":{},"results":{},"attributes":{"config":{"value":0}},"plugins":[]}',
        '{"dimensions":{},"results":{"output":["a:b",["x","x"],null]},"attributes":{},"plugins":[]}',
        '{"dimensions":{},"results":{"output":["a:b",null,{"code":1}]},"attributes":{},"plugins":[]}',
        "\ud800",
    ],
)
def test_malformed_facts_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "model.trtp"
    trt_frontends.save(trt_frontends.compile(nn.ReLU(), arg_inputs=(torch.ones(1, 4),)), path)
    parts = ProgramFile.read(path.read_bytes())
    parts.graph["metadata"] = {FACTS: text}
    parts.write(path)
    with pytest.raises(PlanError):
        trt_runtime.load(path)
    assert main(["inspect", str(path)]) == 2


# Devices -------------------------------------------------------------------------------------------------------------


def test_programs_load_on_the_kind_of_device_that_they_were_compiled_for(tmp_path: Path) -> None:
    path = tmp_path / "model.trtp"
    trt_frontends.save(trt_frontends.compile(nn.ReLU(), arg_inputs=(torch.ones(1, 4),), device="cpu"), path)
    assert trt_runtime.load(path, device="cpu").device == torch.device("cpu")
    with pytest.raises(InputError, match="compiled for cpu, and cannot run on cuda:1"):
        trt_runtime.load(path, device="cuda:1")
    with pytest.raises(InputError, match="'nowhere' is no device"):
        trt_runtime.load(path, device="nowhere")


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_programs_load_on_another_gpu_and_move_there(tmp_path: Path) -> None:
    model, path = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval().cuda(), tmp_path / "model.trtp"
    trt_frontends.save(trt_frontends.compile(model, arg_inputs=(torch.ones(2, 4).cuda(),)), path)
    x = torch.randn(2, 4, device="cuda:1")
    loaded, moved = trt_runtime.load(path, device="cuda:1"), trt_runtime.load(path).to("cuda:1")
    for module in (loaded, moved):
        assert module.device == torch.device("cuda:1")
        torch.testing.assert_close(module(x), model.to("cuda:1")(x))


# Classes of results --------------------------------------------------------------------------------------------------

Pair = namedtuple("Pair", ["left", "right"])


@dataclasses.dataclass
class Outcome:
    value: torch.Tensor
    rest: Any = None
    nothing: torch.Tensor | None = None


class Bag:
    def __init__(self, items: list[torch.Tensor]) -> None:
        self.items = items


torch.export.register_dataclass(Outcome, serialized_type_name=f"{__name__}.Outcome")
torch.utils._pytree.register_pytree_node(
    Bag, lambda bag: (list(bag.items), None), lambda items, _: Bag(list(items)), serialized_type_name=f"{__name__}.Bag"
)


class Returning(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return Outcome(x + 1, OrderedDict(pair=Pair(x * 2, [x - 1])))


def _save(model: nn.Module, path: Path, *inputs: torch.Tensor) -> nn.Module:
    compiled = trt_frontends.compile(model.eval(), arg_inputs=inputs, min_block_size=1)
    trt_frontends.save(compiled, path)
    return compiled


def test_results_have_their_parts_as_attributes(tmp_path: Path) -> None:
    x = torch.ones(3)
    compiled = _save(Returning(), tmp_path / "model.trtp", x)
    assert isinstance(compiled(x), Outcome)
    result = trt_runtime.load(tmp_path / "model.trtp")(x)
    assert isinstance(result, Result) and isinstance(result, dict)
    assert torch.equal(result.value, x + 1) and result["value"] is result.value is result[0] is result.to_tuple()[0]
    assert torch.equal(result.rest["pair"][1][0], x - 1) and result.nothing is None
    with pytest.raises(AttributeError, match="only value, rest, nothing"):
        _ = result.values_


@pytest.mark.parametrize("keys", [("b", "a"), (2, 1)])
def test_ordered_dicts_come_back_as_such(keys: tuple[Any, Any], tmp_path: Path) -> None:
    class Ordered(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return OrderedDict(zip(keys, (x + 1, [OrderedDict(c=x)]), strict=True))

    x = torch.ones(3)
    _save(Ordered(), tmp_path / "model.trtp", x)
    result = trt_runtime.load(tmp_path / "model.trtp")(x)
    assert type(result) is OrderedDict and tuple(result) == keys
    assert type(result[keys[1]][0]) is OrderedDict and torch.equal(result[keys[0]], x + 1)


@pytest.mark.parametrize("isolated", [False, True])
def test_containers_of_python_and_sizes_come_back_as_such(isolated: bool, tmp_path: Path) -> None:
    class Containing(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            kinds = defaultdict(list, {"b": x + 1, "a": Pair(x, x.shape)})
            return kinds, deque([x * 2, x.shape[1:]], maxlen=3), OrderedDict(rows=x.shape[0])

    x = torch.ones(3, 4)
    rows = Input(min_shape=(1, 4), opt_shape=(3, 4), max_shape=(5, 4))
    compiled = trt_frontends.compile(Containing().eval(), arg_inputs=[rows], optimization_level=0)
    trt_frontends.save(compiled, tmp_path / "model.trtp")
    for program in (compiled, trt_runtime.load(tmp_path / "model.trtp", isolated=isolated)):
        kinds, pair, ordered = program(x[:2])
        assert type(kinds["a"][1]) is type(pair[1]) is torch.Size
        assert kinds["a"][1] == (2, 4) and pair[1] == (4,) and list(kinds) == ["b", "a"]
        assert type(pair) is deque and type(ordered) is OrderedDict and ordered == {"rows": 2}
        if not (isolated and program is not compiled):
            assert type(kinds) is defaultdict and kinds["c"] == [] and pair.maxlen == 3


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [("null,3]", "null,-3]", "maxlen"), ('"list"]', "[]]", ""), ('"list"]', '"open"]', "")],
)
def test_what_a_file_says_of_containers_makes_nothing_else(old: str, new: str, told: str, tmp_path: Path) -> None:
    class Containing(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return defaultdict(list, {"a": x + 1}), deque([x * 2], maxlen=3)

    x = torch.ones(3)
    program = _renamed(Containing(), tmp_path, x, old, new)
    if told:
        with pytest.raises(ExecutionError, match=rf"(?s)cannot be made a collections:deque.*{told}"):
            program(x)
    else:
        assert program(x)[0].default_factory is None


def test_results_of_classes_of_pytorch_come_back_as_such(tmp_path: Path) -> None:
    class Largest(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x.topk(2), {"max": (x + 1).max(1)}

    x = torch.randn(3, 4)
    _save(Largest(), tmp_path / "model.trtp", x)
    largest, rest = trt_runtime.load(tmp_path / "model.trtp")(x)
    assert type(largest) is torch.return_types.topk and torch.equal(largest.values, x.topk(2).values)
    assert type(rest["max"]) is torch.return_types.max and torch.equal(rest["max"].indices, x.argmax(1))


def _renamed(model: nn.Module, folder: Path, x: torch.Tensor, old: str, new: str) -> Any:
    """A model that is saved and loaded, with something else in what its program says of it."""
    _save(model, folder / "model.trtp", x)
    parts = ProgramFile.read((folder / "model.trtp").read_bytes())
    facts = parts.graph["metadata"][FACTS]
    assert old in facts
    parts.graph["metadata"][FACTS] = facts.replace(old, new)
    parts.write(folder / "renamed.trtp")
    return trt_runtime.load(folder / "renamed.trtp")


@pytest.mark.parametrize("name", ["torch.return_types:nothing", "torch.return_types:sys", "torch.return_types:"])
def test_names_of_classes_that_pytorch_does_not_have_are_passed_over(name: str, tmp_path: Path) -> None:
    class Largest(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x.topk(2)

    x = torch.randn(3, 4)
    assert type(_renamed(Largest(), tmp_path, x, "torch.return_types:topk", name)(x)) is tuple


def test_results_are_of_the_classes_that_are_named(tmp_path: Path) -> None:
    x = torch.ones(3)
    _save(Returning(), tmp_path / "model.trtp", x)
    named = [Outcome, f"{__name__}:Pair"]
    result = trt_runtime.load(tmp_path / "model.trtp", result_types=named)(x)
    assert type(result) is Outcome and type(result.rest["pair"]) is Pair
    assert torch.equal(result.rest["pair"].right[0], x - 1)
    with pytest.raises(InputError, match="no result of the program is of the class"):
        trt_runtime.load(tmp_path / "model.trtp", result_types=[SimpleNamespace])
    with pytest.raises(InputError, match="no class that is imported"):
        trt_runtime.load(tmp_path / "model.trtp", result_types=["somewhere:Outcome"])


class Renamed(Pair):
    """Named tuples are what they are by their base, too."""


@pytest.mark.parametrize(("kind", "isolated"), [(Pair, False), (Renamed, False), (Renamed, True)])
def test_named_tuples_keep_their_names(kind: Any, isolated: bool, tmp_path: Path) -> None:
    class Pairing(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return {"pair": kind(x + 1, Pair(x * 2, [Bag([x])]))}

    x = torch.ones(3)
    _save(Pairing(), tmp_path / "model.trtp", x)
    program = trt_runtime.load(tmp_path / "model.trtp", isolated=isolated)
    pair = pickle.loads(pickle.dumps(program(x)["pair"]))
    assert isinstance(pair, tuple) and type(pair).__name__ == kind.__name__ and pair._fields == kind._fields
    left, right = pair
    assert left is pair.left and torch.equal(left, x + 1) and torch.equal(right.left, x * 2)
    assert torch.equal(torch.utils._pytree.tree_leaves(pair)[2], x) and "left=" in repr(pair)


@pytest.mark.parametrize("names", ['["left","class"]', '["_left","right"]', '["fi","\ufb01"]', '["left"]'])
def test_tuples_have_no_names_that_python_refuses(names: str, tmp_path: Path) -> None:
    class Pairing(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return Pair(x + 1, x * 2)

    x = torch.ones(3)
    assert type(_renamed(Pairing(), tmp_path, x, '["left","right"]', names)(x)) is tuple


def test_every_class_that_pytorch_takes_apart_is_saved(tmp_path: Path) -> None:
    class Bagging(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return {"bag": Bag([x + 1, x * 2])}

    x = torch.ones(3)
    _save(Bagging(), tmp_path / "model.trtp", x)
    result = trt_runtime.load(tmp_path / "model.trtp")(x)
    assert torch.equal(result["bag"][1], x * 2)


def test_caches_of_transformers_are_saved_and_made_again(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from transformers.integrations import executorch  # what it imports teaches PyTorch to take caches apart

    register = getattr(executorch, "register_dynamic_cache_export_support", lambda: None)
    register()

    class Caching(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            cache = transformers.DynamicCache()
            cache.update(x + 1, x * 2, 0)
            return transformers.modeling_outputs.BaseModelOutputWithPast(x - 1, cache)

    x = torch.ones(1, 2, 3, 4)
    _save(Caching(), tmp_path / "model.trtp", x)
    plain = trt_runtime.load(tmp_path / "model.trtp")(x)
    assert torch.equal(plain.past_key_values.value_cache[0], x * 2) and torch.equal(plain[0], x - 1)
    types = [transformers.DynamicCache, transformers.modeling_outputs.BaseModelOutputWithPast]
    whole = trt_runtime.load(tmp_path / "model.trtp", result_types=types)(x)
    assert type(whole) is types[1] and type(whole.past_key_values) is types[0]
    assert torch.equal(whole.past_key_values.layers[0].keys, x + 1)


def test_programs_of_pytorchs_format_have_a_module(tmp_path: Path) -> None:
    x = torch.ones(2, 4)
    compiled = trt_frontends.compile(nn.Linear(4, 4).eval(), arg_inputs=(x,), min_block_size=1)
    trt_frontends.save(compiled, tmp_path / "model.pt2", inputs=[x], format="exported_program")
    loaded = trt_runtime.load(tmp_path / "model.pt2", trust=True)
    torch.testing.assert_close(loaded.module()(x), compiled(x))


# A structure is written as nested tuples: what makes it, and of what. `t3` is the input times 3.
CLASSES = {
    "tuple": lambda parts: tuple(parts),
    "list": lambda parts: list(parts),
    "dict": lambda parts: {f"key {number}": part for number, part in enumerate(parts)},
    "ordered": lambda parts: OrderedDict(enumerate(parts)),
    "namedtuple": lambda parts: Pair(parts[0], parts[-1]),
    "dataclass": lambda parts: Outcome(parts[0], parts[-1]),
    "registered": lambda parts: Bag(list(parts)),
}
LEAVES = [*(f"t{factor}" for factor in range(1, 6)), "none", "number", "text"]


def _built(structure: Any, x: torch.Tensor) -> Any:
    if isinstance(structure, tuple):
        return CLASSES[structure[0]]([_built(part, x) for part in structure[1]])
    plain = {"none": None, "number": 3, "text": "said"}
    return plain[structure] if structure in plain else x * int(structure[1:])


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.recursive(
        st.sampled_from(LEAVES),
        lambda parts: st.tuples(st.sampled_from(sorted(CLASSES)), st.lists(parts, min_size=1, max_size=3)),
        max_leaves=6,
    )
)
def test_results_of_any_structure_come_back_compiled_and_loaded(structure: Any) -> None:
    class Structured(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return _built(structure, x), x - 1

    x = torch.randn(3)
    wanted = Structured()(x)
    with tempfile.TemporaryDirectory() as folder:
        compiled = _save(Structured(), Path(folder) / "model.trtp", x)
        plain = trt_runtime.load(Path(folder) / "model.trtp")
        classes = {"'dataclass'": Outcome, "'namedtuple'": Pair, "'registered'": Bag}
        named = [kind for word, kind in classes.items() if word in repr(structure)]
        whole = trt_runtime.load(Path(folder) / "model.trtp", result_types=named)
        for program in (compiled, whole):
            found = program(x)
            assert torch.utils._pytree.tree_structure(found) == torch.utils._pytree.tree_structure(wanted)
            _require_equal(found, wanted)
        tensors = [leaf for leaf in torch.utils._pytree.tree_leaves(_open(plain(x))) if isinstance(leaf, torch.Tensor)]
        expected = [leaf for leaf in torch.utils._pytree.tree_leaves(wanted) if isinstance(leaf, torch.Tensor)]
        _require_equal(tensors, expected)


def _open(value: Any) -> Any:
    """Results whose classes were not named, as what they are: dicts, lists and tuples."""
    if isinstance(value, dict):
        return [_open(part) for part in value.values()]
    return [_open(part) for part in value] if isinstance(value, (list, tuple)) else value


def _require_equal(found: Any, wanted: Any) -> None:
    """Same leaves in the same order."""
    leaves = zip(torch.utils._pytree.tree_leaves(found), torch.utils._pytree.tree_leaves(wanted), strict=True)
    for value, expected in leaves:
        assert torch.equal(value, expected) if isinstance(expected, torch.Tensor) else value == expected
