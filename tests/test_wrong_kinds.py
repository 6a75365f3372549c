"""Whatever is given to a public function, what comes out is an error of ours, which names the argument."""

from __future__ import annotations

import importlib
import inspect
import itertools
import logging
import re
from collections.abc import Callable, Iterator
from inspect import signature
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from torch import fx, nn

import trt_frontends
from trt_core import CompilationSettings, Device, Input, InputError, InternalError, TrtError
from trt_core.held_arguments import held_to_signature
from trt_core.limits import CallLimits
from trt_frontends import dynamo
from trt_frontends.integrations.ray import BatchInference, ProgramServer
from trt_frontends.logging import Debugger
from trt_runtime import PreAllocatedOutputs, TextGenerator, TRTModule, load
from trt_runtime.isolation import Isolation

POSITIONAL_ONLY: Final = inspect.Parameter.POSITIONAL_ONLY
VAR_KEYWORD: Final = inspect.Parameter.VAR_KEYWORD
VAR_POSITIONAL: Final = inspect.Parameter.VAR_POSITIONAL
MODULES: Final = (
    "trt_core",
    "trt_runtime",
    "trt_runtime.diffusion",
    "trt_frontends",
    "trt_frontends.accuracy",
    "trt_frontends.dynamo",
    "trt_frontends.integrations.ray",
    "trt_frontends.integrations.triton",
    "trt_frontends.distributed",
    "trt_frontends.logging",
    "trt_frontends.quantization",
    "trt_frontends.runtime",
    "trt_converters",
    "trt_partition",
    "trt_lowering",
)
CONSTRUCTORS: Final = (
    BatchInference,
    CallLimits,
    Debugger,
    Device,
    Input,
    Isolation,
    PreAllocatedOutputs,
    ProgramServer,
    TextGenerator,
    trt_frontends.MutableModule,
    trt_frontends.QuantizationConfig,
)
METHODS: Final = (
    Input.from_tensor,
    Input.from_tensors,
    TextGenerator.load,
    trt_frontends.MutableModule.load,
    trt_frontends.MutableModule.save,
)
LEFT_OUT: Final = {
    "build_block": "is called once a block, by what makes blocks",
    "canonical_operator": "is called once a node",
    "check_graph_form": "is called once a pass",
    "converter": "is called some 700 times when converters are loaded; its own tests show what it refuses",
    "deployment": "imports Ray; test_ray shows what it refuses",
    "install_alias": "changes the process",
    "load_converters": "takes nothing",
    "set_provider": "changes the process; its own tests show what it refuses",
    "total_verdict": "is called once a node",
    "write_report": "prints",
}
"""Functions of these modules that are called too often to be held to anything, or that cannot be called here."""


def _doors() -> Iterator[tuple[str, Callable[..., Any]]]:
    found: dict[Any, str] = {}
    for name in MODULES:
        module = importlib.import_module(name)
        for attribute in getattr(module, "__all__", [one for one in vars(module) if one[0] != "_"]):
            door = getattr(module, attribute)
            of_module = str(getattr(door, "__module__", "")).startswith("trt_" if hasattr(module, "__all__") else name)
            if inspect.isfunction(door) and of_module and attribute not in LEFT_OUT and signature(door).parameters:
                found.setdefault(door, f"{name}.{attribute}")
    yield from ((title, door) for door, title in found.items())
    for door in (*CONSTRUCTORS, *METHODS):
        yield door.__qualname__, door


class Foreign:
    """What no function has ever seen."""


DOORS: Final = dict(_doors())
WRONG: Final[dict[str, Any]] = {
    "an object": Foreign(),
    "an int": 7,
    "a float": 2.5,
    "a string": "text",
    "bytes": b"bytes",
    "a list": ["text"],
    "a dict": {"a": 1},
    "a dict of objects": {3: object()},
    "None": None,
    "a tensor": torch.ones(2),
    "a bool": True,
    "a class": int,
}


@pytest.fixture(scope="module")
def fitting(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A value for each required parameter, by its name."""
    folder = tmp_path_factory.mktemp("doors")
    model, x = nn.ReLU().eval(), torch.ones(2)
    compiled = trt_frontends.compile(model, arg_inputs=[x], min_block_size=1)
    report = compiled.meta["partition_report"]
    engine = next(module for module in compiled.modules() if isinstance(module, TRTModule))
    program = torch.export.export(model, (x,))
    graph_module = fx.symbolic_trace(model)
    return {
        "after": report,
        "arg_inputs": [x],
        "args": [x],
        "before": report,
        "call": {},
        "compiled": compiled,
        "compiled_module": compiled,
        "data": b"",
        "directory": folder / "sharded",
        "dtype": torch.float32,
        "expected": [x],
        "exported_program": program,
        "folder": folder / "pipeline",
        "found": x,
        "function": torch.relu,
        "gm": graph_module,
        "graph_module": graph_module,
        "header": engine.header,
        "inputs": [x],
        "level": logging.INFO,
        "limits": CallLimits(),
        "max_length": 8,
        "mode": False,
        "model": model,
        "module": model,
        "mod": model,
        "new_weight_module": model,
        "op": torch.ops.aten.relu.default,
        "optimized": model,
        "outputs": [x],
        "parameters": ["x"],
        "parts": {},
        "passes": [],
        "path": folder / "model.trtp",
        "pipeline": model,
        "plan": engine.plan,
        "preserve": lambda operator: True,
        "program": program,
        "reference": x,
        "report": report,
        "repository": folder / "repository",
        "settings": CompilationSettings(),
        "step": model,
        "tensors": [x],
        "weights": {},
    }


@pytest.mark.sampled
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("title", DOORS)
def test_values_of_any_kind_are_taken_or_refused_in_our_words(
    title: str, kind: str, fitting: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # "text" is the name of a file
    door = DOORS[title]
    parameters = [one for one in signature(door).parameters.values() if one.kind not in (VAR_KEYWORD, VAR_POSITIONAL)]
    required = {
        one.name: fitting.get(one.name) for one in parameters if one.default is one.empty or one.name == "arg_inputs"
    }
    for parameter in parameters:
        given = {**required, parameter.name: WRONG[kind]}
        ordered = [given.pop(one.name) for one in parameters if one.kind is POSITIONAL_ONLY and one.name in given]
        if parameter.name == "progress" and kind == "a class":
            continue  # it can be called, and what it raises is the caller's
        try:
            door(*ordered, **given)
        except InternalError:
            raise AssertionError(f"{title}({parameter.name}={kind}) is told as a defect of ours") from None
        except (TrtError, OSError) as error:
            assert str(error), (title, parameter.name)
        except Exception as error:
            raise AssertionError(f"{title}({parameter.name}={kind}) raises {error!r}") from error


def test_a_refusal_names_function_argument_kind_and_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"load cannot take an int as operators\[1\]") as told:
        load(tmp_path / "model.trtp", operators=["torchvision", 3])  # type: ignore[list-item]
    assert (told.value.where, told.value.why) == ("the argument operators of load", "it is 3")
    assert told.value.hint == "give a list, each item a string"


def test_wrong_names_of_arguments_are_type_errors_as_everywhere_in_python() -> None:
    with pytest.raises(TypeError, match="compile: missing a required argument: 'module'"):
        trt_frontends.compile()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="load: got an unexpected keyword argument 'devic'"):
        load("model.trtp", devic="cuda")  # type: ignore[call-overload]


def _takes_all_forms(
    a: int, /, b: str | None = None, *more: int, c: bool, d: list[int] | float = 1.0, **named: int
) -> str:
    return "taken"


def _takes_two(first: int, second: int = 2) -> str:
    return "taken"


@pytest.mark.parametrize("function", [_takes_all_forms, _takes_two])
def test_arguments_find_their_parameters_as_in_python(function: Callable[..., str]) -> None:
    """Each choice of up to four arguments is taken, or not, as `inspect` says, and of the right kinds alone."""
    held = held_to_signature(function)
    names = ("a", "b", "c", "d", "first", "second", "other")
    for count, chosen in itertools.product(range(4), itertools.chain(*(combinations(names, n) for n in range(4)))):
        args: list[Any] = [1, None, 3][:count] if function is _takes_all_forms else [1] * count
        kwargs: dict[str, Any] = {name: None if name == "b" else 1 for name in chosen}
        if "c" in kwargs:
            kwargs["c"] = True
        try:
            signature(function).bind(*args, **kwargs)
        except TypeError as error:
            with pytest.raises(TypeError, match=f"^{re.escape(f'{function.__name__}: {error}')}$"):
                held(*args, **kwargs)
            continue
        assert held(*args, **kwargs) == "taken"
        for name in kwargs.keys() & signature(function).parameters.keys() - {"a"}:
            with pytest.raises(InputError, match=f"as {name}"):
                held(*args, **{**kwargs, name: object()})


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        (lambda: trt_frontends.Input((1, 2), dtyp=torch.half), "dtype"),
        (lambda: trt_frontends.Input(min_shap=(1,), opt_shape=(1,), max_shape=(2,)), "min_shape"),
        (lambda: trt_frontends.Device(gpuid=0), "gpu_id"),
        (lambda: trt_frontends.save(nn.ReLU(), "x.trtp", arg_input=()), "arg_inputs"),
        (lambda: dynamo.conversion.dynamo_tensorrt_converter(torch.ops.aten.relu.default, prioritty=1), "priority"),
    ],
)
def test_an_argument_of_no_such_name_is_refused_with_the_nearest(call: Callable[[], Any], meant: str) -> None:
    with pytest.raises(TypeError, match=f"unexpected keyword argument .*; did you mean '{meant}'"):
        call()


def test_choices_of_converters_are_held_to_their_kinds() -> None:
    with pytest.raises(InputError, match="dynamo_tensorrt_converter cannot take a str as priority"):
        dynamo.conversion.dynamo_tensorrt_converter(torch.ops.aten.relu.default, priority="high")
