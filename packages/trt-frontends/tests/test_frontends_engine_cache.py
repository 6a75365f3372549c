"""The engine cache under `compile` and `torch.compile`: a hit builds nothing, and is never the wrong engine."""

from __future__ import annotations

import dataclasses
import datetime
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_builds import record_builds
from fresh_process import run_python
from torch import nn
from trtc import app
from typer.testing import CliRunner

import trt_frontends
from trt_core import CacheError, Input
from trt_runtime import plan_from_bytes, plan_to_bytes
from trt_runtime.engine_cache import EngineCache

pytestmark = pytest.mark.sampled(4)

X = torch.linspace(-1, 1, 12).reshape(3, 4)


@pytest.fixture(autouse=True)
def _no_directory_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TRT_ENGINE_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the blocks that were converted and built."""
    return record_builds(monkeypatch)


def _compile(model: nn.Module, directory: Path, *inputs: Any, **settings: Any) -> nn.Module:
    given = {"engine_cache_dir": directory, "min_block_size": 1, **settings}
    return trt_frontends.compile(model, arg_inputs=inputs or (X,), **given)


def _engine_names(module: nn.Module) -> list[str]:
    return [child.header.name for child in module.children() if hasattr(child, "header")]


def test_a_second_compilation_builds_nothing(tmp_path: Path, builds: list[str], interrupted: nn.Module) -> None:
    first = _compile(interrupted, tmp_path / "engines")
    second = _compile(interrupted, tmp_path / "engines")
    assert len(builds) == 2
    torch.testing.assert_close(second(X), interrupted(X))
    assert _engine_names(first) == _engine_names(second) == builds


def test_torch_compile_uses_the_cache(tmp_path: Path, builds: list[str], mlp: nn.Module) -> None:
    options = {"engine_cache_dir": str(tmp_path / "engines"), "min_block_size": 1}
    for _ in range(2):
        torch._dynamo.reset()
        optimized = torch.compile(mlp, backend="torch_tensorrt", dynamic=False, options=options)
        with torch.no_grad():
            torch.testing.assert_close(optimized(X), mlp(X))
        assert len(builds) == 1


def test_nothing_is_cached_unless_asked(tmp_path: Path, builds: list[str], mlp: nn.Module) -> None:
    for _ in range(2):
        trt_frontends.compile(mlp, arg_inputs=(X,), min_block_size=1)
    assert len(builds) == 2
    assert not (tmp_path / "home").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems keep caches elsewhere")
def test_asking_without_a_directory_uses_the_users_own(tmp_path: Path, builds: list[str], mlp: nn.Module) -> None:
    for _ in range(2):
        _compile(mlp, Path(), engine_cache_dir="", cache_built_engines=True, reuse_cached_engines=True)
    assert len(builds) == 1
    assert (tmp_path / "home" / "trt" / "engines").is_dir()


def test_the_environment_turns_the_cache_on(
    tmp_path: Path, builds: list[str], mlp: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRT_ENGINE_CACHE_DIR", str(tmp_path / "engines"))
    for _ in range(2):
        _compile(mlp, Path(), engine_cache_dir="")
    assert len(builds) == 1


@pytest.mark.parametrize(("stores", "reuses", "count"), [(True, False, 2), (False, True, 2), (True, True, 1)])
def test_storing_and_reusing_are_asked_for_apart(
    tmp_path: Path, builds: list[str], mlp: nn.Module, stores: bool, reuses: bool, count: int
) -> None:
    for _ in range(2):
        _compile(mlp, tmp_path / "engines", cache_built_engines=stores, reuse_cached_engines=reuses)
    assert len(builds) == count


@pytest.mark.parametrize(
    ("change", "count"),
    [
        ({"optimization_level": 1}, 2),
        ({"disable_tf32": True}, 2),
        ({"debug": True}, 2),
        ({"precision": torch.float16}, 2),
        ({"min_block_size": 2}, 1),
        ({"use_fast_partitioner": False}, 1),
    ],
    ids=str,
)
def test_settings_count_when_they_change_the_engine(
    tmp_path: Path, builds: list[str], mlp: nn.Module, change: dict[str, Any], count: int
) -> None:
    _compile(mlp, tmp_path / "engines")
    _compile(mlp, tmp_path / "engines", **change)
    assert len(builds) == count


class Small(nn.Module):
    """A model with a constant, a literal, a choice and an order, each of which may differ."""

    def __init__(self, **given: Any) -> None:
        super().__init__()
        self.given = {"factor": 2.0, "axis": 1, "is_swapped": False, "keeps": True, "bit": 0.0, **given}
        self.register_buffer("table", torch.linspace(0, 1, 4) + torch.tensor([0.0, 0.0, 0.0, self.given["bit"]]))
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given = self.given
        y = self.linear(x) * given["factor"]
        y = self.table - y if given["is_swapped"] else y - self.table
        return y.softmax(given["axis"]) + y.sum(1, keepdim=given["keeps"]).reshape(-1, 1)


def _small(**given: Any) -> nn.Module:
    torch.manual_seed(0)
    return Small(**given).eval()


DIFFERENCES: dict[str, Any] = {
    "a literal": lambda: (_small(factor=3.0), X),
    "a literal's last bit": lambda: (_small(factor=2.0000000000000004), X),
    "an argument": lambda: (_small(axis=0), X),
    "a flag": lambda: (_small(keeps=False), X),
    "the order of arguments": lambda: (_small(is_swapped=True), X),
    "a bit of a weight": lambda: (_small(bit=2**-23), X),
    "a type": lambda: (_small().double().to(torch.float16), X.half()),
    "a size": lambda: (_small(), X[:2]),
    "a range": lambda: (_small(), Input(min_shape=(1, 4), opt_shape=(3, 4), max_shape=(4, 4))),
    "the precision of products": torch.set_float32_matmul_precision,
    "determinism": torch.use_deterministic_algorithms,
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_one_difference_is_another_engine_and_none_is_the_same(tmp_path: Path, builds: list[str], name: str) -> None:
    _compile(_small(), tmp_path / "engines")
    change = DIFFERENCES[name]
    model, given = _small(), X
    try:
        if change is torch.set_float32_matmul_precision:
            change("medium")
        elif change is torch.use_deterministic_algorithms:
            change(True)
        else:
            model, given = change()
        for _ in range(2):
            compiled = _compile(model, tmp_path / "engines", given)
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.use_deterministic_algorithms(False)
    assert len(builds) == 2  # the first model's, the other's, and no third one
    x = given if isinstance(given, torch.Tensor) else X
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-2 if x.dtype is torch.float16 else 1e-5, atol=1e-3)
    _compile(_small(), tmp_path / "engines")
    assert len(builds) == 2


def test_two_ranges_with_another_best_size_are_two_engines(tmp_path: Path, builds: list[str]) -> None:
    for best in (2, 3, 2):
        _compile(_small(), tmp_path / "engines", Input(min_shape=(1, 4), opt_shape=(best, 4), max_shape=(4, 4)))
    assert len(builds) == 2


def test_changed_weights_are_another_engine(tmp_path: Path, builds: list[str], mlp: nn.Module) -> None:
    _compile(mlp, tmp_path / "engines")
    mlp[0].weight.data[1, 2] += 1.0
    compiled = _compile(mlp, tmp_path / "engines")
    assert len(builds) == 2
    torch.testing.assert_close(compiled(X), mlp(X))


def test_ranges_are_part_of_the_engine(tmp_path: Path, builds: list[str], mlp: nn.Module) -> None:
    for high in (8, 8, 16):
        compiled = _compile(mlp, tmp_path / "engines", Input(min_shape=(1, 4), opt_shape=(4, 4), max_shape=(high, 4)))
        torch.testing.assert_close(compiled(X), mlp(X))
    assert len(builds) == 2


def test_a_damaged_entry_is_built_again(tmp_path: Path, builds: list[str], mlp: nn.Module) -> None:
    _compile(mlp, tmp_path / "engines")
    (plan,) = (tmp_path / "engines").glob("*.plan")
    plan.write_bytes(plan.read_bytes()[:-9])
    with pytest.warns(RuntimeWarning, match="damaged"):
        compiled = _compile(mlp, tmp_path / "engines")
    torch.testing.assert_close(compiled(X), mlp(X))
    _compile(mlp, tmp_path / "engines")
    assert len(builds) == 2


def test_what_a_model_returns_is_not_up_to_the_cache(tmp_path: Path, builds: list[str], mlp: nn.Module) -> None:
    _compile(mlp, tmp_path / "engines")
    (path,) = (tmp_path / "engines").glob("*.plan")
    header, plan = plan_from_bytes(path.read_bytes())
    path.write_bytes(plan_to_bytes(dataclasses.replace(header, returns_tuple=True), plan))
    torch.testing.assert_close(_compile(mlp, tmp_path / "engines")(X), mlp(X))
    assert len(builds) == 1


class _Two(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + 1, x * 2


class _Halves(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + 1).half()


@pytest.mark.parametrize(
    "other", [_Two(), _Halves(), nn.Sequential(nn.ReLU(), nn.Flatten(0))], ids=["count", "type", "rank"]
)
def test_an_engine_with_other_results_is_not_taken(
    tmp_path: Path, builds: list[str], mlp: nn.Module, other: nn.Module, caplog: pytest.LogCaptureFixture
) -> None:
    """Not even where everything else in the entry fits."""
    _compile(mlp, tmp_path / "engines")
    _compile(other, tmp_path / "others")
    (path,), (theirs,) = ((tmp_path / name).glob("*.plan") for name in ("engines", "others"))
    record, their_record = (json.loads(one.with_suffix(".key").read_text()) for one in (path, theirs))
    path.write_bytes(theirs.read_bytes())
    path.with_suffix(".key").write_text(json.dumps({**record, "payload_sha256": their_record["payload_sha256"]}))
    for count in (3, 3):  # and is replaced
        torch.testing.assert_close(_compile(mlp, tmp_path / "engines")(X), mlp(X))
        assert len(builds) == count
    assert caplog.text.count("with other inputs or outputs") == 1


def test_a_directory_of_everybody_is_refused(tmp_path: Path, mlp: nn.Module) -> None:
    (tmp_path / "engines").mkdir()
    (tmp_path / "engines").chmod(0o777)
    with pytest.raises(CacheError, match="not private"):
        _compile(mlp, tmp_path / "engines")


SCRIPT = """
import sys, torch
from torch import nn
import trt_frontends
from trt_frontends import engine_source

if sys.argv[2] == "hit":
    def build_block(*_):
        raise SystemExit("built although it is cached")
    engine_source.build_block = build_block
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
x = torch.ones(3, 4)
compiled = trt_frontends.compile(model, arg_inputs=(x,), engine_cache_dir=sys.argv[1], min_block_size=1)
with torch.no_grad():
    torch.testing.assert_close(compiled(x), model(x))
"""


@pytest.mark.slow
def test_another_process_finds_the_engine(tmp_path: Path) -> None:
    for expected in ("miss", "hit"):
        done = run_python(SCRIPT, str(tmp_path / "engines"), expected)
        assert done.returncode == 0, done.stderr
    assert len(EngineCache(tmp_path / "engines").entries()) == 1


PAIRS = """
import sys, torch
from torch import nn
import trt_frontends
from trt_frontends import engine_source

built = []
build_block = engine_source.build_block
def counted(*args, **kwargs):
    built.append(args)
    return build_block(*args, **kwargs)
engine_source.build_block = counted

class Small(nn.Module):
    def __init__(self, factor=2.0, rounds=2, body=torch.tanh, bias=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)
        self.linear.bias.data[0] += bias
        self.factor, self.rounds, self.body = factor, rounds, body
    def forward(self, x, y):
        for _ in range(self.rounds):
            x = self.body(self.linear(x)) * self.factor - y
        return x

x, y = torch.linspace(-1, 1, 12).reshape(3, 4), torch.linspace(2, -1, 12).reshape(3, 4)
settings = {"engine_cache_dir": sys.argv[1], "min_block_size": 1}
for given in ({}, {"factor": 2.5}, {"rounds": 3}, {"body": torch.sin}, {"bias": 1e-3}):
    model = Small(**given).eval()
    torch._dynamo.reset()
    for compiled in (
        trt_frontends.compile(model, arg_inputs=(x, y), **settings),
        torch.compile(model, backend="torch_tensorrt", dynamic=False, options=settings),
    ):
        with torch.no_grad():
            torch.testing.assert_close(compiled(x, y), model(x, y), rtol=1e-5, atol=1e-5)
print(len(built))
"""


def test_programs_that_differ_in_one_thing_find_their_own_engines_in_another_process(tmp_path: Path) -> None:
    counts = []
    for _ in range(2):
        done = run_python(PAIRS, str(tmp_path / "engines"))
        assert done.returncode == 0, done.stderr
        counts.append(int(done.stdout.split()[-1]))
    assert counts[0] >= 5
    assert counts[1] == 0
    assert len(EngineCache(tmp_path / "engines").entries()) == counts[0]


def test_timings_are_kept_where_the_setting_says(tmp_path: Path, mlp: nn.Module) -> None:
    _compile(mlp, Path(), engine_cache_dir="", timing_cache_path=tmp_path / "timings")
    assert (tmp_path / "timings").stat().st_size
    _compile(mlp, tmp_path / "engines")
    assert (tmp_path / "engines" / "timing.cache").stat().st_size


MODEL = """
import torch
from torch import nn

def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval(), (torch.ones(3, 4),)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model for the command line."""
    (tmp_path / "cached_model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "cached_model", raising=False)
    return tmp_path


def _run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["cache", *arguments])
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


def test_the_command_line_says_what_is_there_and_why_not(folder: Path) -> None:
    def compiled() -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
        _compile(model, folder / "engines", torch.ones(3, 4))

    where = ("--dir", str(folder / "engines"))
    ask = ("why-miss", "cached_model:model", "--setting", "min_block_size=1", *where)
    (folder / "engines").mkdir(mode=0o700)
    assert "the cache is empty" in _run(*ask, code=1)
    compiled()
    assert "_run_on_acc_0: cached" in _run(*ask)
    assert "1 engine," in _run("list", *where)
    listed = json.loads(_run("list", "--json", *where))
    assert listed.keys() == {"format", "directory", "bytes", "engines"} and listed["format"] == 1
    (entry,) = listed["engines"]
    assert (entry["name"], entry["layers"] > 0, entry["bytes"]) == ("_run_on_acc_0", True, listed["bytes"])
    assert entry.keys() == {"key", "name", "provider", "layers", "build_seconds", "bytes", "used"}
    assert datetime.datetime.fromisoformat(entry["used"]) <= datetime.datetime.now()
    answer = _run(*ask, "--setting", "disable_tf32=true", code=1)
    assert "settings.disable_tf32: True is wanted, False is there" in answer
    assert "constants" not in answer and "graph" not in answer
    assert "removed 0 engines" in _run("prune", "--to", "1G", *where)
    assert "removed 1 engine from" in _run("prune", "--to", "0", *where)
    compiled()
    assert "removed 1 engine from" in _run("clear", *where)
    assert "0 engines" in _run("list", *where)


_READERS = {
    "list": ("list",),
    "clear": ("clear",),
    "prune": ("prune", "--to", "0"),
    "why-miss": ("why-miss", "cached_model:model", "--setting", "min_block_size=1"),
}


@pytest.mark.parametrize("command", _READERS.values(), ids=_READERS)
@pytest.mark.parametrize("named", ["", "typo"])
def test_a_cache_that_is_not_there_is_bad_usage(folder: Path, command: tuple[str, ...], named: str) -> None:
    before = sorted(folder.iterdir())
    assert f"there is no folder {named!r}" in _run(*command, "--dir", named, code=2)
    assert sorted(path for path in folder.iterdir() if path.name != "__pycache__") == before


@pytest.mark.parametrize("command", _READERS.values(), ids=_READERS)
def test_looking_into_the_users_own_cache_makes_none(
    folder: Path, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRT_ENGINE_CACHE_DIR", str(folder / "none"))
    is_asked = command[0] == "why-miss"
    if command[0] == "list":
        assert json.loads(_run(*command, "--json"))["engines"] == []
    answer = _run(*command, code=1 if is_asked else 0)
    assert ("the cache is empty" if is_asked else "there is no folder") in answer
    assert not (folder / "none").exists()


@pytest.mark.parametrize("size", ["much", "-1", "3X", ""])
def test_a_size_that_is_none_is_bad_usage(folder: Path, size: str) -> None:
    assert "is not a size" in _run("prune", f"--to={size}", "--dir", str(folder), code=2)


def test_a_setting_without_a_value_is_bad_usage(folder: Path) -> None:
    _run("why-miss", "cached_model:model", "--setting", "refit", "--dir", str(folder / "engines"), code=2)
