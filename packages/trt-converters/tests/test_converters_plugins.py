"""Converters of other distributions: found by entry point, loaded once, skipped when broken."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from fresh_process import run_python

from trt_converters import DYNAMO_CONVERTERS, ConverterSupport, load_converters
from trt_converters.aten import BLOCK_LIST, GROUP, PluginStatus, load_plugins
from trt_converters.testing import check_conversion, record_call
from trt_core import CompilationSettings
from trt_core.entry_points import RUNTIME_PLUGINS

aten = torch.ops.aten

CONVERTER = '''
import torch
from trt_converters import DYNAMO_CONVERTERS, converter
from trt_converters.layers import unary

def register():
    @converter(torch.ops.aten.{operator}.default)
    def aten_{operator}(ctx, self):
        """{operator}(Tensor self) -> Tensor"""
        return unary(ctx, "ABS", self)
'''

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a distribution of one module and its entry point."""
    load_converters()
    before, modules = DYNAMO_CONVERTERS.copy(), set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(module: str, source: str, target: str = "", running: str = "") -> None:
        (tmp_path / f"{module}.py").write_text(source, encoding="utf-8")
        metadata = tmp_path / f"{module}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n", encoding="utf-8")
        entry = f"[{GROUP}]\n{module} = {target or module}\n"
        entry += f"[{RUNTIME_PLUGINS}]\n{module} = {running}\n" if running else ""
        (metadata / "entry_points.txt").write_text(entry, encoding="utf-8")

    yield make
    DYNAMO_CONVERTERS.restore(before)
    for name in set(sys.modules) - modules:
        if str(tmp_path) in str(
            getattr(sys.modules[name], "__file__", "")
        ):  # a plugin, not what it made PyTorch import
            del sys.modules[name]


def _load() -> dict[str, PluginStatus]:
    return {status.name: status for status in load_plugins(DYNAMO_CONVERTERS)}


def _run(script: str, folder: Path, **environment: str) -> str:
    """Runs a script in a process that has the folder's distributions installed, and returns what it prints."""
    done = run_python(script, env={"PYTHONPATH": str(folder), **environment}, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_function_is_called(install: Install) -> None:
    install("of_a_function", CONVERTER.format(operator="abs"), "of_a_function:register")
    assert _load()["of_a_function"].error == ""
    assert DYNAMO_CONVERTERS[aten.abs.default].origin == "of_a_function"
    check_conversion(aten.abs.default, (torch.tensor([-1.0, 2.0]),))


RUNNING = """
calls = []
def run_with():
    calls.append("registered")
def fail():
    raise ValueError("no kernel")
"""


def test_plugins_that_engines_of_a_library_run_are_registered_where_they_are_built(install: Install) -> None:
    install(
        "of_two_kinds", CONVERTER.format(operator="abs") + RUNNING, "of_two_kinds:register", "of_two_kinds:run_with"
    )
    assert _load()["of_two_kinds"].error == ""
    assert sys.modules["of_two_kinds"].calls == ["registered"]


def test_a_library_whose_engines_could_not_run_is_skipped(install: Install) -> None:
    before = DYNAMO_CONVERTERS[aten.abs.default].origin
    install("of_half", CONVERTER.format(operator="abs") + RUNNING, "of_half:register", "of_half:fail")
    with pytest.warns(UserWarning, match="'of_half' .* was skipped: ValueError: no kernel"):
        assert _load()["of_half"].error == "ValueError: no kernel"
    assert DYNAMO_CONVERTERS[aten.abs.default].origin == before


def test_a_module_is_imported(install: Install) -> None:
    install("of_a_module", CONVERTER.format(operator="abs") + "\nregister()\n")
    assert _load()["of_a_module"].error == ""
    assert DYNAMO_CONVERTERS[aten.abs.default].origin == "of_a_module"


ASKING = """
from trt_converters import DYNAMO_CONVERTERS, ConverterSupport, load_converters
import torch
before = DYNAMO_CONVERTERS.copy()  # a plugin may ask, copy, disable and load while it is loaded itself
assert torch.ops.aten.relu.default in DYNAMO_CONVERTERS and len(before) > 300
load_converters()
"""

COMPILE = """
from concurrent.futures import ThreadPoolExecutor
import torch
from trt_converters import DYNAMO_CONVERTERS, plugin_status
from trt_converters.testing import check_conversion

def count(_):
    return len(DYNAMO_CONVERTERS)

with ThreadPoolExecutor(8) as pool:  # no thread may see a registry that is half full
    assert len(set(pool.map(count, range(8)))) == 1
check_conversion(torch.ops.aten.abs.default, (torch.tensor([-1.0, 2.0]),))
print(DYNAMO_CONVERTERS[torch.ops.aten.abs.default].origin, [status.error for status in plugin_status()])
"""


@pytest.mark.slow
def test_a_compile_in_a_fresh_process_finds_the_plugin(install: Install, tmp_path: Path) -> None:
    install("asking", ASKING + CONVERTER.format(operator="abs"), "asking:register")
    assert _run(COMPILE, tmp_path) == "asking ['']"


@pytest.mark.parametrize("blocked", ["asking", "*", "other, asking"])
def test_blocked_plugins_are_not_loaded(install: Install, tmp_path: Path, blocked: str) -> None:
    install("asking", "raise SystemExit('imported')", "asking:register")
    assert _run(COMPILE, tmp_path, **{BLOCK_LIST: blocked}) == f"trt_converters ['blocked by {BLOCK_LIST}']"


def test_the_support_check_names_the_override(install: Install) -> None:
    install("named", CONVERTER.format(operator="abs"), "named:register")
    _load()
    support = ConverterSupport(CompilationSettings())
    assert support.origin(record_call(aten.abs.default, (torch.ones(2),)).node) == "named"
    assert support.origin(record_call(aten.neg.default, (torch.ones(2),)).node) == ""


@pytest.mark.parametrize(
    ("source", "target", "complaint"),
    [
        ("raise RuntimeError('out of order')", "", "RuntimeError: out of order"),
        ("import a_module_that_nobody_has", "", "ModuleNotFoundError"),
        ("def register(): return 1 / 0", "{}:register", "ZeroDivisionError"),
        ("value = 3", "{}:value", "TypeError"),
        ("", "{}:missing", "AttributeError"),
        ("def register(:", "", "SyntaxError"),
        ("raise SystemExit(3)", "", "SystemExit: 3"),
    ],
)
def test_a_broken_plugin_is_reported_and_skipped(source: str, target: str, complaint: str, install: Install) -> None:
    install("broken_plugin", source, target.format("broken_plugin"))
    install("sound_plugin", CONVERTER.format(operator="abs"), "sound_plugin:register")
    with pytest.warns(UserWarning, match=rf"converter plugin 'broken_plugin' \(.*\) was skipped: {complaint}"):
        found = _load()
    assert complaint in found["broken_plugin"].error
    assert found["sound_plugin"].error == ""
    assert DYNAMO_CONVERTERS[aten.abs.default].origin == "sound_plugin"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_converters()  # plugins are loaded once


def test_an_interrupted_plugin_is_loaded_again(install: Install, tmp_path: Path) -> None:
    """Interrupts are the user's; what the plugin had registered until then is registered once all the same."""
    marker = tmp_path / "interrupted"
    stop = f"""
register()
from pathlib import Path
if not Path({str(marker)!r}).exists():
    Path({str(marker)!r}).touch()
    raise KeyboardInterrupt
"""
    install("patient", CONVERTER.format(operator="abs") + stop)
    count = len(DYNAMO_CONVERTERS.candidates(aten.abs.default))
    with pytest.raises(KeyboardInterrupt):
        _load()
    assert len(DYNAMO_CONVERTERS.candidates(aten.abs.default)) == count
    assert _load()["patient"].error == ""
    assert DYNAMO_CONVERTERS[aten.abs.default].origin == "patient"
    assert len(DYNAMO_CONVERTERS.candidates(aten.abs.default)) == count + 1


def test_what_a_broken_plugin_had_registered_is_undone(install: Install) -> None:
    install(
        "half",
        CONVERTER.format(operator="abs")
        + "\nregister()\nDYNAMO_CONVERTERS.disable(torch.ops.aten.relu.default)\nraise ValueError('too late')\n",
    )
    before = DYNAMO_CONVERTERS.candidates(aten.abs.default)
    with pytest.warns(UserWarning, match="too late"):
        _load()
    assert aten.relu.default in DYNAMO_CONVERTERS
    assert DYNAMO_CONVERTERS.candidates(aten.abs.default) == before
