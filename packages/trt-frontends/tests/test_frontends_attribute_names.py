"""Models whose tensors and children are called like attributes of `fx.GraphModule`, which graphs are run as."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import fx, nn

from trt_core import InputError
from trt_frontends import compile, explain, load, refit_module_weights, save

KINDS = ("buffer", "state", "parameter", "child")
NAMES = [name for name in dir(fx.GraphModule) if not hasattr(nn.Module, name) and not name.startswith("__")] + [
    *("meta", "shape_env", "_graph", "_code", "_guards_fn", "validate_inputs", "range_constraints", "inputs", "device"),
    *("_run_on_acc_0", "_run_on_gpu_1", "_lowered_constant0", "_of_model_graph", "_bounds", "_takes"),
]
METHODS = ["modules", "type", "half", "float", "register_buffer", "get_submodule", "add_module", "to", "requires_grad_"]
"""Methods of every module, which constants may hide."""


class Named(nn.Module):
    """Holds something under each name, and uses all of it."""

    def __init__(self, kinds: dict[str, str]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lin = nn.Linear(3, 3)
        self.kinds = kinds
        for name, kind in kinds.items():
            if kind == "parameter":
                self.register_parameter(name, nn.Parameter(torch.randn(3)))
            elif kind == "child":
                self.add_module(name, nn.Linear(3, 3))
            elif kind == "constant":
                vars(self)[name] = torch.randn(3)
            else:
                self.register_buffer(name, torch.randn(3))
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.lin(x)
        for name, kind in self.kinds.items():
            if kind == "child":
                y = y + self._modules[name](x)
            elif kind == "constant":
                y = y + vars(self)[name]
            elif kind == "parameter":
                y = y + self._parameters[name]
            else:
                if kind == "state":
                    self._buffers[name].add_(1)
                y = y + self._buffers[name]
        return torch.linalg.matrix_exp(y.t() @ y * 1e-3) @ self.lin.weight  # PyTorch runs this, and reads a weight


def _mixed(kinds: tuple[str, ...] = KINDS) -> dict[str, str]:
    return {name: kinds[index % len(kinds)] for index, name in enumerate(NAMES)}


def _close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["state", "constant", "mixed"])
def test_models_may_call_their_parts_like_attributes_of_graph_modules(kind: str, tmp_path: Path) -> None:
    kinds = _mixed() if kind == "mixed" else dict.fromkeys([*NAMES, *(METHODS if kind == "constant" else [])], kind)
    x, eager = torch.randn(2, 3), Named(kinds)
    if kind == "mixed":
        assert explain(Named(kinds), arg_inputs=[x]).engines
    compiled = compile(Named(kinds), arg_inputs=[x], optimization_level=0)
    state = copy.deepcopy(compiled.state_dict())
    save(compiled, tmp_path / "model.trtp")
    loaded = load(tmp_path / "model.trtp")
    first = eager(x)
    for wanted in (first, eager(x)):
        _close(compiled(x), wanted)
        _close(loaded(x), wanted)
    if kind == "state":
        assert set(NAMES) <= compiled.state_dict().keys()
        assert set(NAMES) <= dict(loaded.named_buffers()).keys()
        compiled.load_state_dict(state)
        _close(compiled(x), first)


@pytest.mark.parametrize("name", ["parameters", "named_modules", "children"])
def test_attributes_that_hide_what_pytorch_needs_are_named(name: str) -> None:
    model = nn.Sequential(nn.ReLU(), Named({}))
    vars(model[1])[name] = torch.ones(3)
    with pytest.raises(InputError, match=f"the attribute {name} of Named hides the method of nn.Module"):
        compile(model, arg_inputs=[torch.ones(2, 3)])


def test_weights_of_such_names_are_refitted(tmp_path: Path) -> None:
    kinds = _mixed(("buffer", "parameter", "child"))
    model, x = Named(kinds), torch.randn(2, 3)
    compiled = compile(copy.deepcopy(model), arg_inputs=[x], optimization_level=0, refit=True)
    save(compiled, tmp_path / "model.trtp")
    with torch.no_grad():
        for value in model.state_dict().values():
            value.mul_(0.5)
    for found in (compiled, load(tmp_path / "model.trtp")):
        _close(refit_module_weights(found, model.state_dict())(x), model(x))


def test_torch_compile_takes_models_with_such_names() -> None:
    model, x = Named(_mixed()), torch.randn(2, 3)
    eager = copy.deepcopy(model)
    compiled = torch.compile(model, backend="torch_tensorrt", options={"optimization_level": 0})
    with torch.no_grad():
        for _ in range(2):
            _close(compiled(x), eager(x))


def test_programs_of_such_models_are_saved_and_traced_again(tmp_path: Path) -> None:
    class WritesToViews(Named):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self._buffers["graph"].view(3, 1)[0].add_(1)
            return super().forward(x) + self._buffers["graph"]

    kinds = {**_mixed(), "graph": "buffer"}
    x, eager = torch.randn(2, 3), WritesToViews(kinds)
    program = torch.export.export(WritesToViews(kinds), (x,))
    save(program, tmp_path / "model.trtp")
    loaded = load(tmp_path / "model.trtp")
    assert set(NAMES) <= {name.partition(".")[0] for name in loaded.state_dict()}
    compiled = compile(WritesToViews(kinds), arg_inputs=[x], optimization_level=0)
    for wanted in (eager(x), eager(x)):
        _close(loaded(x), wanted)
        _close(compiled(x), wanted)
    assert "graph" in compiled.state_dict()
