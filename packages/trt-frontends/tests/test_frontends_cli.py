"""The command line: what it prints, what it writes, and its exit codes."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import safetensors.torch
import torch
from fresh_process import run_python
from rich.console import Console
from torch import nn
from trtc import app
from trtc.app import _time_of
from trtc.progress import ConsoleProgress
from typer.testing import CliRunner

import trt_frontends
from trt_partition import PartitionReport
from trt_runtime.command_line import main as runtime_main
from trt_runtime.command_line.table import COMMANDS, EXIT_CODES, Command

MODELS = """
import torch
from rich.console import Console
from torch import nn

class Interrupted(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, *, scale=None):
        y = torch.relu(self.second(torch.special.bessel_j0(torch.relu(self.first(x)))))
        return y if scale is None else y * scale

def small():
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(), (torch.ones(2, 4),)

def interrupted():
    return Interrupted().eval(), (torch.ones(2, 4),), {"scale": torch.ones(4)}

def large():
    with torch.device("meta"):
        return nn.Sequential(nn.Linear(1 << 20, 1 << 20), nn.ReLU()).eval(), (torch.ones(1, 1 << 20),)

def program():
    model, inputs = small()
    return torch.export.export(model, inputs)

def nothing():
    return None

def ending():
    raise SystemExit(7)

def reversed_result():
    return (torch.ones(2, 4),), small()[0]

def broken():
    raise RuntimeError("broken on purpose")

def misfit():
    return small()[0], (torch.ones(2, 4), torch.ones(2, 4))
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with models in it, as the current one."""
    import sys

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(tmp_path)])
    (tmp_path / "cli_models.py").write_text(MODELS)
    (tmp_path / "cli_broken.py").write_text("import torch\nraise OSError('no such thing')\n")
    monkeypatch.delitem(sys.modules, "cli_models", raising=False)
    monkeypatch.setenv("COLUMNS", "200")


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, arguments)


def test_explain_prints_the_report() -> None:
    result = run("explain", "cli_models:small")
    assert result.exit_code == 0
    assert "100.00% coverage" in result.stdout
    module, inputs = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(), (torch.ones(2, 4),)
    assert result.stdout == trt_frontends.explain(module, arg_inputs=inputs).to_text()


def test_explain_reads_saved_programs(tmp_path: Path, mlp: nn.Module) -> None:
    torch.export.save(torch.export.export(mlp, (torch.ones(2, 4),)), tmp_path / "model.pt2")
    result = run("explain", "model.pt2")
    assert result.exit_code == 0
    assert "3 Total Operators" in result.stdout


class _Code:
    """Runs code where it is unpickled."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self) -> Any:
        return Path.touch, (self.made,)


def _with_samples(model: nn.Module, path: Path, samples: Any) -> None:
    """Saves a program of PyTorch whose example inputs are something else."""
    content = io.BytesIO()
    torch.export.save(torch.export.export(model, (torch.ones(2, 4),)), content)
    with zipfile.ZipFile(content) as archive, zipfile.ZipFile(path, "w") as hostile:
        for name in archive.namelist():
            data = io.BytesIO(archive.read(name))
            if name.endswith("sample_inputs/model.pt"):
                torch.save(samples, data := io.BytesIO())
            hostile.writestr(name, data.getvalue())


@pytest.mark.parametrize("name", ["model.safetensors", "model.trtp", "model", "model.json"])
@pytest.mark.parametrize("command", [["explain"], ["compile", "-o", "out.trtp"], ["verify"], ["cache", "why-miss"]])
def test_programs_of_pytorch_are_opened_by_their_name_alone(
    tmp_path: Path, mlp: nn.Module, name: str, command: list[str]
) -> None:
    """PyTorch runs what is in them: nobody expects that of a file of weights, or of a plan."""
    _with_samples(mlp, tmp_path / name, {"x": _Code(tmp_path / "made")})
    result = run(*command, name)
    assert result.exit_code == 2 and not (tmp_path / "made").exists()
    assert "program of torch.export under another name" in result.stderr
    assert "rename it to end in .pt2" in result.stderr


@pytest.mark.parametrize("samples", [{}, {"x": 1}, (), ((),), ({}, ()), 3, "text", torch.ones(2, 4)])
def test_programs_of_pytorch_without_inputs_are_refused(tmp_path: Path, mlp: nn.Module, samples: Any) -> None:
    _with_samples(mlp, tmp_path / "model.pt2", samples)
    for command in (["explain"], ["compile", "-o", "out.trtp"], ["verify"]):
        result = run(*command, "model.pt2")
        assert result.exit_code == 2, result.exception
        assert "is not a saved program" in result.stderr


def test_explain_takes_keyword_inputs_and_programs() -> None:
    assert "7 Total Operators" not in run("explain", "cli_models:small").stdout
    assert "6 Total Operators" in run("explain", "cli_models:interrupted").stdout
    assert run("explain", "cli_models:program").exit_code == 0


def test_explain_needs_no_weights() -> None:
    result = run("explain", "cli_models:large")
    assert result.exit_code == 0
    assert "100.00% coverage" in result.stdout


def test_min_block_size() -> None:
    assert "TRT Engine #2" in run("explain", "cli_models:interrupted", "--min-block-size", "1").stdout
    assert "TRT Engine #1" not in run("explain", "cli_models:interrupted", "--min-block-size", "inf").stdout
    result = run("explain", "cli_models:interrupted", "--min-block-size", "few")
    assert result.exit_code == 2
    assert "neither a whole number nor inf" in result.stderr
    result = run("explain", "cli_models:interrupted", "--min-block-size", "0")
    assert result.exit_code == 2
    assert "min_block_size=0 is out of range" in result.stderr


def test_reports_as_files(tmp_path: Path) -> None:
    result = run("explain", "cli_models:small", "--html", "page.htm", "--json", "report.data")
    assert result.exit_code == 0
    assert result.stdout.count("Dry-Run Results") == 1
    assert "<title>cli_models:small</title>" in (tmp_path / "page.htm").read_text()
    assert PartitionReport.from_json((tmp_path / "report.data").read_text()).coverage == 1.0


@pytest.mark.parametrize(
    ("path", "message"), [("kept.json", "exists already"), ("nowhere/a.json", "no folder"), ("-", "is no file")]
)
def test_files_that_cannot_be_written_are_refused_before_any_work(tmp_path: Path, path: str, message: str) -> None:
    (tmp_path / "kept.json").write_text("kept")
    result = run("explain", "cli_models:broken", "--json", path)
    assert result.exit_code == 2
    assert message in result.stderr
    assert (tmp_path / "kept.json").read_text() == "kept"


@pytest.mark.parametrize(("limit", "code"), [("0.8", 0), ("0.84", 1), ("1.0", 1)])
def test_fail_under(limit: str, code: int) -> None:
    result = run("explain", "cli_models:interrupted", "--fail-under", limit)
    assert result.exit_code == code
    assert ("coverage 83.33% is below" in result.stderr) == bool(code)


def test_a_limit_in_percent_is_refused() -> None:
    result = run("explain", "cli_models:small", "--fail-under", "95")
    assert result.exit_code == 2
    assert "--fail-under" in result.stderr


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("cli_models", "cannot find the model 'cli_models'"),
        ("missing.pt2", "there is no file missing.pt2"),
        ("cli_models", "cli_models:NAME, where NAME is a function"),
        ("cli_missing.py", "cli_missing:NAME, where NAME is a function"),
        ("cli_models.py", "cli_models.py is not a saved program"),
        ("cli_models.py", "why: it is Python code"),
        ("cli_models.py:small", "write cli_models:small, in the folder"),
        ("./cli_models:small", "write cli_models:small, in the folder"),
        ("resnet18", "torchvision:NAME, timm:NAME or hf:FOLDER"),
        ("torchvision:resnet81", "torchvision has no model 'resnet81'"),
        ("hf:missing", "there is no folder missing"),
        (".", "hf:. is the checkpoint of transformers in it"),
        ("hf:.", "has no config.json"),
        ("cli_missing:small", "cannot import cli_missing"),
        ("cli_broken:small", "cli_broken.py:2"),
        ("cli_models:smal", "did you mean 'small'?"),
        ("cli_models:MODELS", "name a function of it that returns"),
        ("cli_models:ending", "SystemExit: 7"),
        ("cli_models:torch", "why: it is a module"),
        ("cli_models:nothing", "returned None"),
        ("cli_models:reversed_result", "returned a tuple of tuple, Sequential"),
        ("cli_models:broken", "RuntimeError: broken on purpose"),
        ("cli_models:misfit", "the inputs do not fit Sequential.forward(input)"),
    ],
)
def test_models_that_cannot_be_found_or_read(source: str, message: str) -> None:
    result = run("explain", source)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert "Traceback" not in result.stderr


FOREIGN: Final[dict[str, tuple[Callable[[nn.Module, Path], object], str]]] = {
    "state.pth": (
        lambda model, path: torch.save(model.state_dict(), path),
        "weights, or a pickled model, as torch.save",
    ),
    "old.ckpt": (
        lambda model, path: torch.save(model.state_dict(), path, _use_new_zipfile_serialization=False),
        "weights, or a pickled model, as torch.save",
    ),
    "whole.pt": (lambda model, path: torch.save(model, path), "weights, or a pickled model, as torch.save"),
    "script.pt": (
        lambda model, path: torch.jit.save(torch.jit.trace(model, torch.ones(1, 4)), path),
        "an archive of TorchScript",
    ),
    "weights.safetensors": (
        lambda model, path: safetensors.torch.save_file(model.state_dict(), path),
        "weights in the safetensors format",
    ),
    "model.engine": (lambda model, path: path.write_bytes(b"ftrt" + bytes(60)), "an engine without what ours"),
    "model.h5": (lambda model, path: path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(60)), "an HDF5 file"),
}
"""Files of other tools by name: how one is written, and what it is."""


@pytest.mark.parametrize("name", FOREIGN)
def test_files_of_other_tools_are_told_apart(name: str, tmp_path: Path, mlp: nn.Module) -> None:
    write, what = FOREIGN[name]
    write(mlp, tmp_path / name)
    for command in (("explain",), ("inspect",), ("run",)):
        result = run(*command, name)
        assert result.exit_code == 2, result.output
        assert f"why: it is {what}" in result.stderr and "what to do: " in result.stderr
        assert "Traceback" not in result.output and "W1" not in result.stderr


def test_programs_and_onnx_models_are_sent_to_compile(tmp_path: Path, mlp: nn.Module) -> None:
    torch.export.save(torch.export.export(mlp, (torch.ones(2, 4),)), tmp_path / "model.pt2")
    (tmp_path / "model.onnx").write_bytes(b"\x08\x0a")
    for command, name in (("inspect", "model.pt2"), ("inspect", "model.onnx"), ("run", "model.onnx")):
        result = run(command, name)
        assert result.exit_code == 2
        assert "trtc compile FILE" in result.stderr


def test_a_module_may_be_named_itself(tmp_path: Path) -> None:
    (tmp_path / "cli_instance.py").write_text("import torch\nmodel = torch.nn.Linear(4, 2)\n")
    assert "returned a Linear" in run("explain", "cli_instance:model").stderr
    result = run("compile", "cli_instance:model", "-o", "instance.trtp", "--shapes", "input=2x4", "-q")
    assert result.exit_code == 0, result.output


def test_models_by_name_are_explained_without_their_weights() -> None:
    result = run("explain", "torchvision:squeezenet1_1", "--fail-under", "1")
    assert result.exit_code == 0, result.output
    assert "Dry-Run Results" in result.stdout


def test_a_peer_of_another_model_is_told(tmp_path: Path, mlp: nn.Module) -> None:
    trt_frontends.save(trt_frontends.compile(mlp, arg_inputs=(torch.ones(2, 4),)), tmp_path / "model.trtp")
    (tmp_path / "cli_other.py").write_text("import torch\nmodel = torch.nn.Linear(5, 2)\n")
    result = run("bench", "model.trtp", "--calls", "1", "--beside", "cli_other:model")
    assert result.exit_code == 2, result.output
    assert "eager cli_other:model fails on the inputs of the program" in result.stderr


@pytest.mark.parametrize("command", ["verify", "bisect", "precision"])
def test_models_without_weights_cannot_be_compared(command: str, tmp_path: Path) -> None:
    (tmp_path / "cli_meta.py").write_text(
        "import torch\n"
        "def model():\n"
        "    with torch.device('meta'):\n"
        "        return torch.nn.Linear(4, 2), (torch.ones(2, 4),)\n"
    )
    result = run(command, "cli_meta:model")
    assert result.exit_code == 2
    assert "the model has no weights" in result.stderr


@pytest.mark.parametrize("command", ["verify", "bisect", "precision"])
def test_onnx_models_are_sent_to_the_commands_that_take_them(command: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x08\x0a")
    result = run(command, str(path))
    assert result.exit_code == 2
    assert "model.onnx is an ONNX model, and this command takes programs of PyTorch" in result.stderr
    assert "trtc explain, compile and export onnx" in result.stderr


def test_compiled_models_are_refused(tmp_path: Path, mlp: nn.Module) -> None:
    x = torch.ones(2, 4)
    trt_frontends.save(trt_frontends.compile(mlp, arg_inputs=(x,)), tmp_path / "compiled.pt2", arg_inputs=(x,))
    result = run("explain", "compiled.pt2")
    assert result.exit_code == 2
    assert "is a compiled model" in result.stderr


def test_diff_of_equal_and_different_reports(tmp_path: Path) -> None:
    run("explain", "cli_models:interrupted", "--json", "a.json")
    run("explain", "cli_models:interrupted", "--json", "b.json", "--min-block-size", "1")
    same = run("diff", "a.json", "a.json")
    assert (same.exit_code, same.stdout) == (0, "No differences.\n")
    changed = run("diff", "a.json", "b.json")
    assert changed.exit_code == 1
    assert "min_block_size: 5 -> 1" in changed.stdout
    assert "engines: 0 -> 2" in changed.stdout


@pytest.mark.parametrize("text", ["", "{}", "not json", json.dumps({"nodes": []})])
def test_diff_of_what_is_no_report(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    result = run("diff", "a.json", "a.json")
    assert result.exit_code == 2
    assert "a.json is not a report" in result.stderr


def test_diff_of_missing_files() -> None:
    result = run("diff", "a.json", "b.json")
    assert result.exit_code == 2
    assert "does not exist" in result.stderr


def test_info_names_versions_and_provider() -> None:
    result = run("info")
    assert result.exit_code == 0
    assert f"PyTorch {torch.__version__}" in result.stdout
    assert "provider" in result.stdout


@pytest.mark.parametrize("command", [(), ("explain",), ("diff",), ("info",), ("quickstart",)])
def test_help_tells_the_exit_codes(command: tuple[str, ...]) -> None:
    result = run(*command, "--help")
    assert result.exit_code == 0
    assert "0 success, 1 a check failed, 2 bad usage or input" in result.stdout


def test_unknown_commands_are_bad_usage() -> None:
    result = run("explian", "cli_models:small")
    assert result.exit_code == 2
    assert "No such command" in result.stderr


@pytest.mark.parametrize("command", ["inspect", "run", "bench"])
def test_saved_programs_have_the_commands_of_the_runtime(tmp_path: Path, mlp: nn.Module, command: str) -> None:
    path = tmp_path / "model.trt"
    x = torch.randn(2, 4)
    trt_frontends.save(trt_frontends.compile(mlp, arg_inputs=(x,)), path, arg_inputs=(x,))
    result = run(command, str(path))
    assert result.exit_code == 0, result.output
    assert {"inspect": "engines:", "run": "float32 (2, ", "bench": "calls/s"}[command] in result.stdout
    assert f"trtc {command}" in run(command, "--help").stdout
    refused = run(command, str(tmp_path / "absent.trt"))
    assert refused.exit_code == 2


def test_programs_are_timed_beside_their_models(tmp_path: Path) -> None:
    Path("trained.py").write_text(
        "import torch\nfrom torch import nn\n"
        "print('an import')\n"
        "class Loud(nn.ReLU):\n"
        "    def forward(self, x):\n"
        "        print('a call')\n"
        "        return super().forward(x)\n"
        "def model():\n"
        "    print('a model')\n"
        "    torch.manual_seed(0)\n"
        "    return nn.Sequential(nn.Linear(4, 4), Loud()).eval(), (torch.ones(2, 4),)\n"
        "def alone():\n"
        "    return model()[0]\n"
    )
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(), torch.ones(2, 4)
    path = tmp_path / "model.trtp"
    trt_frontends.save(trt_frontends.compile(model, arg_inputs=(x,), min_block_size=1), path, arg_inputs=(x,))
    for source in ("trained:model", "trained:alone"):
        result = run("bench", str(path), "--calls", "5", "--beside", source, "--json")
        assert result.exit_code == 0, result.output
        found = json.loads(result.stdout)["beside"]["eager"]
        assert found["ratio"] > 0 and found["calls"] == 5
        assert found["largest_error"] < 1e-5
    text = run("bench", str(path), "--calls", "5", "--beside", "cli_models:interrupted").stdout
    assert "outputs differ by" in text and "eager: " in text
    assert run("bench", str(path), "--beside", "cli_models:absent").exit_code == 2
    assert run("bench", str(path), "--beside", "trained:model", "--peer", "jit").exit_code == 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
@pytest.mark.parametrize("words", ["--help", "compile --help"])
def test_where_nothing_can_be_printed_the_exit_code_says_it(words: str) -> None:
    command = [sys.executable, "-m", "trtc", *words.split()]
    with open("/dev/full", "w") as full:
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (result.returncode, result.stderr) == (2, "error: No space left on device\n")


@pytest.mark.parametrize("words", ["--help", "--version", "compile --help", "cache list --help", "bench --help"])
def test_the_help_and_the_version_import_nothing_costly(words: str) -> None:
    code = f"""
import sys
import zipfile
from trtc import main
sys.argv = ["trtc", *{words.split()}]
try:
    main()
except SystemExit as ended:
    assert not ended.code
assert not {{"torch", "numpy", "rich", "pydantic"}} & sys.modules.keys()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "trtc" in done.stdout


def test_the_list_of_commands_has_whole_sentences() -> None:
    for words in ([], ["cache"], ["export"]):
        listed = run(*words, "--help").stdout.partition("Commands:")[2]
        assert "..." not in listed and listed.count(".\n") > 2


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("trtc expl", "explain"),
        ("trtc explain --ht", "--html"),
        ("trtc cache list --d", "--dir"),
        ("trtc bench --th", "--threads"),
    ],
)
def test_shells_complete_commands_and_options(words: str, found: str) -> None:
    asked = {"_TRTC_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    code = """
import sys
import zipfile
from trtc import main
sys.argv = ["trtc"]
try:
    main()
except SystemExit as ended:
    assert not ended.code
assert not {"torch", "numpy", "rich", "pydantic"} & sys.modules.keys()
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **asked})
    assert done.stdout.split() == [found]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_both_command_lines_have_the_commands_of_trt_runtime(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = run(command.name, "--help")
    with pytest.raises(SystemExit) as ended:
        runtime_main([command.name, "--help"], prog="trtc")
    theirs = capsys.readouterr().out
    assert (ours.exit_code, ended.value.code) == (0, 0)
    for shown in (ours.stdout, theirs):
        assert shown.startswith(f"Usage: {'root' if shown is ours.stdout else 'trtc'} {command.name} [OPTIONS]")
        words = " ".join(shown.split())
        assert command.summary in words and EXIT_CODES in words
        for parameter in command.parameters:
            if shown is ours.stdout or not parameter.names_model:
                assert parameter.name in words and parameter.help in words, parameter


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["bench"], "Error: Missing argument 'file'."),
        (["inspect", "model.trtp", "--jsn"], "Error: No such option: --jsn"),
        (["inspect", "a.trtp", "b.trtp"], "Error: Got unexpected extra argument"),
        (["bench", "model.trtp", "--calls", "0"], "Error: Invalid value for '--calls': "),
        (["bench", "model.trtp", "--calls", "many"], "Error: Invalid value for '--calls': "),
        (["bench", "model.trtp", "--duration", "nan"], "Error: Invalid value for '--duration': "),
        (["inspekt", "model.trtp"], "Error: No such command 'inspekt'"),
        (["inspect", "absent.trtp"], "error: absent.trtp: No such file or directory"),
        (["run", "absent.trtp", "--outputs", "x.txt"], "error: x.txt has an unknown ending"),
    ],
)
def test_both_command_lines_say_what_is_wrong_alike(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = run(*arguments)
    try:
        code: Any = runtime_main(arguments, prog="trtc")
    except SystemExit as ended:
        code = ended.code
    theirs = capsys.readouterr().err
    assert (ours.exit_code, code) == (2, 2)
    for shown in (ours.stderr, theirs):
        assert told in shown
        if told.startswith("Error"):
            assert shown.startswith("Usage: ") and "--help' for help.\n\nError: " in shown


def test_help_is_asked_for_in_short(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("inspect", "-h").output == run("inspect", "--help").output
    for arguments in (["-h"], ["inspect", "-h"]):
        with pytest.raises(SystemExit) as ended:
            runtime_main(arguments, prog="trtc")
        assert not ended.value.code
        assert capsys.readouterr().out.startswith("Usage: trtc")


_WITHOUT_READER = """
import os, runpy, sys
reading, writing = os.pipe()
os.close(reading)
os.dup2(writing, 1)
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("program", ["trtc", "trt_runtime"])
def test_a_reader_that_leaves_is_no_error(program: str, tmp_path: Path) -> None:
    compiled = trt_frontends.compile(nn.ReLU(), arg_inputs=(torch.ones(2),), min_block_size=1)
    trt_frontends.save(compiled, tmp_path / "model.trtp")
    done = run_python(_WITHOUT_READER, program, "inspect", str(tmp_path / "model.trtp"), bare=True)
    assert (done.returncode, done.stderr) == (141, "")


def test_each_step_of_the_progress_has_its_own_time_and_leaves_nothing_behind() -> None:
    stream = io.StringIO()
    with ConsoleProgress(Console(file=stream, force_terminal=True, width=80)) as progress:
        progress("looking for culprit 1", 3, 4)
        (task,) = progress._bar.tasks
        before = task.start_time
        progress("proving the setting", 0, 1)
        assert (task.description, task.completed, task.total) == ("proving the setting", 0, 1)
        assert before is not None and task.start_time is not None and task.start_time > before
    assert stream.getvalue().endswith("\x1b[1A\x1b[2K")


@pytest.mark.parametrize("arguments", [["info"], ["--help"], ["explain", "--help"], ["cache", "--help"]])
def test_a_reader_that_leaves_is_no_failed_check(arguments: list[str]) -> None:
    done = run_python(_WITHOUT_READER, "trtc", *arguments, bare=True)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("seconds", [2.0**40, -(2.0**40), 2.0**62, 253402300800.0])
def test_times_beyond_a_calendar_are_told_as_numbers(seconds: float) -> None:
    """Files may be of any time; the list of cached engines ended in a traceback."""
    assert _time_of(seconds) == f"{seconds:.0f} seconds after 1970"
    assert _time_of(1e9).startswith("2001-09-0")
