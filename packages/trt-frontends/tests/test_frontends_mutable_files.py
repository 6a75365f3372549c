"""Mutable modules: settings of either generation, ranges of sizes, and files of them."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.export import Dim

import trt_frontends
import trt_runtime
from trt_core import InputError, PlanError
from trt_core.internals import pytree
from trt_frontends import MutableModule, MutableTorchTensorRTModule, mutable_module

X = torch.ones(3, 4)


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU()).eval()


def _count_builds(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    built: list[Any] = []
    original = mutable_module.compile
    monkeypatch.setattr(
        mutable_module, "compile", lambda *args, **given: built.append(args) or original(*args, **given)
    )
    return built


def test_settings_of_either_generation() -> None:
    assert MutableTorchTensorRTModule is MutableModule is trt_frontends.MutableModule
    model = _model()
    with pytest.warns(DeprecationWarning, match="immutable_weights"):
        mutable = MutableTorchTensorRTModule(
            model, immutable_weights=False, use_python=False, enabled_precisions={torch.float32}, min_block_size=1
        )
    torch.testing.assert_close(mutable(X), model(X))


def test_a_range_of_sizes_has_one_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    built = _count_builds(monkeypatch)
    model = _model()
    mutable = MutableModule(model, min_block_size=1)
    mutable.set_expected_dynamic_shape_range(({0: Dim("batch", min=2, max=6)},))
    for rows, builds in ((3, 1), (6, 1), (2, 1), (7, 2), (5, 2)):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(mutable(x), model(x))
        assert len(built) == builds
    mutable.load_state_dict(_model().state_dict())
    torch.testing.assert_close(mutable(X), model(X))
    assert len(built) == 2
    mutable.set_expected_dynamic_shape_range(({1: None},), {})
    torch.testing.assert_close(mutable(X), model(X))
    assert len(built) == 3


@pytest.mark.parametrize(
    "ranges",
    [({0: 4},), ([1],), (3,), 3, ({0: Dim("batch")},), ({"x": {0: "batch"}},), {0: Dim("batch", min=1, max=4)}],
)
def test_ranges_that_cannot_be_read(ranges: Any) -> None:
    mutable = MutableModule(_model(), min_block_size=1)
    for given in ((ranges,), ((), ranges if isinstance(ranges, tuple) else {"x": {0: ranges}})):
        with pytest.raises(InputError, match=r"ranges? of"):
            mutable.set_expected_dynamic_shape_range(*given)


def test_ranges_of_inputs_that_a_call_leaves_out() -> None:
    class Masked(nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
            return x + 1 if mask is None else x * mask

    rows = {0: Dim("rows", min=1, max=4)}
    mutable = MutableModule(Masked(), min_block_size=1)
    mutable.set_expected_dynamic_shape_range((rows, rows))
    torch.testing.assert_close(mutable(X), X + 1)
    torch.testing.assert_close(mutable(X, X), X * X)
    mutable.set_expected_dynamic_shape_range(({5: rows[0]},))
    with pytest.raises(InputError, match="no axis 5"):
        mutable(X)


def test_a_file_without_the_model_follows_other_weights(tmp_path: Path) -> None:
    model, other, path = _model(), _model(), tmp_path / "mutable.pkl"
    mutable = MutableModule(model, min_block_size=1)
    with pytest.raises(InputError, match="nothing to save"):
        MutableModule.save(mutable, path)
    mutable(X), mutable(X[:2])
    mutable.save(path)
    loaded = MutableModule.load(path)
    for x in (X, X[:2]):
        torch.testing.assert_close(loaded(x), model(x))
    assert loaded.state_dict().keys() == model.state_dict().keys()
    loaded.load_state_dict(other.state_dict())
    for x in (X, X[:2]):
        torch.testing.assert_close(loaded(x), other(x))
    with pytest.raises(InputError, match=r"load\(path, module=model\)"):
        loaded(torch.ones(1, 4))
    again = tmp_path / "again.pkl"
    MutableModule.save(loaded, again)
    torch.testing.assert_close(MutableModule.load(again)(X), other(X))


def test_a_file_with_the_model_compiles_what_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, path = _model(), tmp_path / "mutable.pkl"
    mutable = MutableModule(model, min_block_size=1)
    mutable(X)
    MutableModule.save(mutable, path)
    built = _count_builds(monkeypatch)
    twin = _model()
    loaded = MutableModule.load(path, twin, min_block_size=1)
    torch.testing.assert_close(loaded(X), model(X))
    assert not built
    torch.testing.assert_close(loaded(X[:1]), model(X[:1]))
    assert len(built) == 1
    with torch.no_grad():
        twin[0].bias.add_(3)
    torch.testing.assert_close(loaded(X), twin(X))
    assert len(built) == 1
    with pytest.raises(InputError, match=r"other weights than those that were saved\n  where: 1\.bias"):
        MutableModule.load(path, nn.Sequential(nn.Linear(4, 8), nn.Identity()).eval())


def test_a_loaded_program_runs_once_a_call(tmp_path: Path) -> None:
    model, path = _Counter().eval(), tmp_path / "mutable.pkl"
    mutable = MutableModule(model, min_block_size=1)
    torch.testing.assert_close(mutable(X), X.relu() + 1)
    MutableModule.save(mutable, path)
    loaded = MutableModule.load(path)
    for count in (2, 3):
        torch.testing.assert_close(loaded(X), X.relu() + count)


class _Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: any shape, float32."""
        self.count.add_(1)
        return torch.relu(x) + self.count


def test_damaged_and_foreign_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mutable.pkl"
    mutable = MutableModule(_model(), min_block_size=1)
    mutable(X)
    MutableModule.save(mutable, path)
    whole = path.read_bytes()
    weights = whole.index(mutable.state_dict()["0.weight"].numpy().tobytes())
    flipped = whole[:weights] + bytes([whole[weights] ^ 1]) + whole[weights + 1 :]
    for damaged in (b"", b"no program", whole[:-40], whole.replace(b"float32", b"float99"), flipped):
        path.write_bytes(damaged)
        with pytest.raises(PlanError, match=r"not a saved program|truncated or corrupt"):
            MutableModule.load(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("weights.json", "[]")
    with pytest.raises(PlanError, match="a mutable module in the archive that earlier versions wrote"):
        MutableModule.load(path)


@pytest.mark.parametrize(
    ("held", "metadata"),
    [
        (lambda: {"weight": torch.ones(3)}, {}),
        (lambda: {"weight": torch.ones(1).expand(1 << 30)}, {"mutable_module": "1"}),
        (lambda: [torch.ones(3)], {"mutable_module": "1"}),
    ],
)
def test_programs_that_hold_no_weights_are_refused(
    held: Callable[[], Any], metadata: dict[str, str], tmp_path: Path
) -> None:
    path, graph, tensors = tmp_path / "other.trtp", fx.Graph(), {}
    leaves, structure = pytree.tree_flatten(held())
    for number, tensor in enumerate(leaves):
        tensors[f"held_{number}"] = tensor
    graph.output(pytree.tree_unflatten([graph.get_attr(name) for name in tensors], structure))
    trt_runtime.save(fx.GraphModule(tensors, graph), path, metadata=metadata)
    with pytest.raises(PlanError, match="no saved mutable module"):
        MutableModule.load(path)


def test_weights_that_are_tied_or_called_like_parts_of_modules_are_kept(tmp_path: Path) -> None:
    tied = torch.randn(8, 4)
    weights = {"graph": tied, "a.meta": tied, "a.b": tied.t(), "empty": torch.empty(0, 3), "half": tied.half()}
    path = tmp_path / "mutable.trtp"
    mutable_module.write_file(path, weights, [])
    found, programs = mutable_module.read_file(path)
    assert not programs and found.keys() == weights.keys()
    for name, value in weights.items():
        assert found[name].dtype is value.dtype and torch.equal(found[name], value), name


@pytest.mark.parametrize(
    "names",
    [
        ("",),
        ("a..b",),
        ("a.",),
        ("a", "a.b"),
        (1,),
        (True,),
        (".".join("a" * 200),),
        ("training.a",),
        ("a._buffers",),
        tuple(f"m{at}.{'.'.join('a' * 120)}" for at in range(1200)),
    ],
    ids=(
        "none",
        "an empty part",
        "no end",
        "inside of another",
        "a number",
        "a truth",
        "depth",
        "a flag of modules",
        "what modules hold",
        "many modules",
    ),
)
def test_names_that_make_no_tree_of_modules_are_refused(names: tuple[Any, ...], tmp_path: Path) -> None:
    """They left as errors of modules, in Python's own words, or made a gigabyte of modules."""
    path = tmp_path / "mutable.trtp"
    mutable_module.write_file(path, dict.fromkeys(names, torch.ones(3)), [])
    with pytest.raises(PlanError):
        MutableModule.load(path)


@pytest.mark.parametrize("name", ["forward", "children.0.weight", "__class__.x", "eval", "a b"])
def test_weights_that_are_called_like_methods_of_modules_can_be_replaced(name: str, tmp_path: Path) -> None:
    path = tmp_path / "mutable.trtp"
    mutable_module.write_file(path, {name: torch.ones(3)}, [])
    loaded = MutableModule.load(path)
    assert loaded.state_dict().keys() == {name}
    loaded.load_state_dict({name: torch.zeros(3)})
    assert not loaded.state_dict()[name].any() and not loaded.training
