"""`python -m trt_runtime`: inspect, run, bench."""

from __future__ import annotations

import codecs
import collections
import io
import json
import math
import os
import pickle
import struct
import threading
import time
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hostile_files
import numpy as np
import pytest
import torch
from fresh_process import run_python
from hypothesis import given
from hypothesis import strategies as st
from program_files import ProgramFile
from torch import nn

import trt_runtime
from trt_core import InputError
from trt_runtime import TRTModule, save, write_plan
from trt_runtime.command_line import inspection, main, tensor_files
from trt_runtime.command_line.commands import (
    Load,
    measure,
    measure_in_turns,
    percentile,
    read_ranges,
    read_shapes,
)
from trt_runtime.command_line.tensor_files import read_tensors, write_tensors
from trt_runtime.generation import GenerationLimits, SourceLimits
from trt_runtime.program.fields import DTYPES
from trt_runtime.program.saving import save_with
from trt_runtime.token_choice import TokenChoice

BATCH = {0: torch.export.Dim("batch", min=1, max=8)}


class Model(nn.Module):
    """PyTorch and an engine, nested inputs and outputs."""

    def __init__(self, engine: TRTModule) -> None:
        super().__init__()
        self.engine = engine
        self.register_buffer("shift", torch.arange(3.0))

    def forward(self, x: torch.Tensor, extra: dict[str, torch.Tensor], *, scale: float = 2.0) -> dict[str, Any]:
        return {"sum": self.engine(x) + self.shift, "parts": (torch.tanh(extra["a"]) * scale,)}


@pytest.fixture
def model(dynamic_engine: TRTModule) -> Model:
    return Model(dynamic_engine).eval()


@pytest.fixture
def saved(model: Model, tmp_path: Path) -> Path:
    path = tmp_path / "model.trt"
    save(
        model,
        path,
        arg_inputs=(torch.randn(4, 3), {"a": torch.randn(2)}),
        dynamic_shapes={"x": BATCH, "extra": {"a": None}, "scale": None},
        kwarg_inputs={"scale": 2.0},
    )
    return path


def test_inspect_tells_what_is_in_a_program(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(saved)]) == 0
    text = capsys.readouterr().out
    for part in ("program, ", "float32[", "block: portable", "takes x: float32[s0, 3]", "aten::tanh", "1, 4, 8"):
        assert part in text
    assert main(["inspect", str(saved), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kind"] == "program"
    assert [engine["name"] for engine in found["engines"]] == ["block"]


def test_inspect_tells_what_is_in_a_plan(
    static_engine: TRTModule, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_plan(tmp_path / "block.plan", static_engine.header, static_engine.plan)
    assert main(["inspect", str(tmp_path / "block.plan")]) == 0
    assert "returns y: float32[2, 3]" in capsys.readouterr().out


def test_inspect_tells_what_generates_text(
    static_engine: TRTModule, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = SourceLimits(("input_ids", "attention_mask"), 9, 2)
    limits = GenerationLimits(2, 64, 8, (3, 5), assisted_tokens=4, source=source, choice=TokenChoice(top_k=50))
    path = tmp_path / "text.trtp"
    save_with(static_engine, [static_engine], path, {"generation": limits.to_text()})
    assert main(["inspect", str(path)]) == 0
    text = capsys.readouterr().out
    for part in (
        "2 rows of 64 tokens, prompts in pieces of 8",
        "rows end with 3, 5, and are filled up with 0",
        "chosen with top_k=50",
        "guesses of 3 tokens",
        "follows from input_ids, attention_mask of up to 9 tokens",
        "the encoder (",
    ):
        assert part in text
    assert main(["inspect", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["generation"]["max_length"] == 64
    assert [len(each["engines"]) for each in (found, *found["inside"])] == [1, 1]
    save_with(static_engine, [], path, {"generation": "the second"})  # said by somebody of another program
    assert main(["inspect", str(path)]) == 0
    assert "generates" not in capsys.readouterr().out


def test_names_in_a_file_command_no_terminal(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = ProgramFile.read(saved.read_bytes())
    name = "\x1b[2J\u202e\ud800"
    parts.graph["writer_version"] = parts.graph["engines"][0]["header"]["name"] = name
    parts.write(saved)
    assert main(["inspect", str(saved)]) == 0
    text = capsys.readouterr().out
    assert text.count(r"\x1b[2J\u202e\ud800") == 2
    assert main(["run", str(saved.with_name("\x1b[2J"))]) == 2
    assert r"\x1b" in capsys.readouterr().err


def test_inspect_runs_nothing(saved: Path) -> None:
    script = (
        "import sys\nfrom trt_runtime.command_line import main\n"
        "code = main(['inspect', sys.argv[1]])\n"
        "assert 'trt_portable' not in sys.modules and 'tensorrt' not in sys.modules\n"
        "assert 'torch._dynamo' not in sys.modules and 'sympy' not in sys.modules\n"
        "sys.exit(code)"
    )
    result = run_python(script, str(saved), bare=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("ending", [".npz", ".pt"])
def test_run_with_given_inputs(
    model: Model, saved: Path, tmp_path: Path, ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    x, a = torch.randn(5, 3), torch.randn(2)
    inputs, outputs = tmp_path / f"in{ending}", tmp_path / f"out{ending}"
    write_tensors(inputs, {"x": x, "extra['a']": a})
    assert main(["run", str(saved), "--inputs", str(inputs), "--outputs", str(outputs)]) == 0
    assert "output['sum']: float32 (5, 3)" in capsys.readouterr().out
    found, wanted = read_tensors(outputs), model(x, {"a": a})
    torch.testing.assert_close(found["output['sum']"], wanted["sum"])
    torch.testing.assert_close(found["output['parts'][0]"], wanted["parts"][0])


def test_run_refuses_results_that_are_larger_than_their_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program may expand an element to what nobody has room for; it left an error of PyTorch."""
    for size, said in ((1 << 6, "mean"), (1 << 15, "when it is written out than in memory"), (1 << 30, "too many")):
        kind = hostile_files.tensor_type(torch.float32, size, size)
        expand = hostile_files.operator("expand", [hostile_files.value(0), [size, size]], kind)
        parts = hostile_files.program([(torch.float32, (1,))], [expand], hostile_files.value(1))
        path = parts.write(tmp_path / f"{size}.trtp")
        assert main(["run", str(path), "--outputs", str(tmp_path / f"{size}.npz")]) == (0 if said == "mean" else 2)
        assert said in "".join(capsys.readouterr())


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, torch.bool])
def test_tensors_are_described_in_pieces(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.arange(-60, 60).reshape(2, 1, 12, 5).to(dtype)
    whole = inspection.describe_tensor(values)
    for piece in (1, 7, 60, 119):
        monkeypatch.setattr(inspection, "_PART", piece)
        assert inspection.describe_tensor(values) == whole
    if dtype is torch.float32:
        assert whole == "float32 (2, 1, 12, 5), -60 to 59, mean -0.5"
        values[1, 0, 3, 4] = math.nan
        assert inspection.describe_tensor(values).endswith("nan to nan, mean nan")


def test_inputs_that_a_strangers_program_asks_for_are_bounded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without inputs, they are made up as large as the file says: some kilobytes took all memory."""
    path = str(hostile_files.of_rows(1, 1 << 25, 1 << 40).write(tmp_path / "many.trtp"))
    for command in ("run", "profile"):
        assert main([command, path]) == 2
        assert "takes inputs of 1.074e+09 bytes or more" in capsys.readouterr().err
    assert main(["run", path, "--shapes", "x0=3x4"]) == 0
    write_tensors(tmp_path / "given.npz", {"x0": torch.ones(5, 4)})
    assert main(["run", path, "--inputs", str(tmp_path / "given.npz")]) == 0


def test_run_with_random_inputs(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for seed in ("1", "1", "2"):
        assert main(["run", str(saved), "--seed", seed]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]
    assert "float32 (4, 3)" in texts[0]  # the size that the engine was tuned for


def test_bench(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(saved), "--calls", "5", "--warm-up", "1", "--threads", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["calls"] == 10
    assert 0 < found["p50_us"] <= found["p90_us"] <= found["p99_us"] <= found["max_us"]
    assert found["host"]["p50_us"] == found["p50_us"] and found["device"] is None  # on the CPU calls wait for results
    assert main(["bench", str(saved), "--calls", "2", "--warm-up", "1"]) == 0
    assert "loaded in" in capsys.readouterr().out


def test_bench_goes_on_for_a_while(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    begin = time.perf_counter()
    assert main(["bench", str(saved), "--calls", "1", "--duration", "0.2", "--json"]) == 0
    assert time.perf_counter() - begin > 0.2
    assert json.loads(capsys.readouterr().out)["calls"] > 1


def test_shapes_are_those_given_and_others_follow(
    saved: Path, dynamic_engine: TRTModule, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(saved), "--shapes", "x=7x3"]) == 0
    assert "output['sum']: float32 (7, 3)" in capsys.readouterr().out

    class Sum(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a + b.sum()

    path = tmp_path / "sum.trtp"
    length = torch.export.Dim("length", min=2, max=64)
    tensors = torch.randn(4, 3), torch.randn(4)
    save(Sum(), path, arg_inputs=tensors, dynamic_shapes={"a": {0: length}, "b": {0: length}})
    assert main(["run", str(path), "--shapes", "b=9"]) == 0
    assert "float32 (9, 3)" in capsys.readouterr().out


def test_programs_are_timed_in_turns() -> None:
    order: list[str] = []

    def way(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
        def call(x: torch.Tensor) -> torch.Tensor:
            order.append(name)
            return x

        return call

    found = measure_in_turns({"a": way("a"), "b": way("b")}, (torch.ones(1),), {}, Load(calls=10, warm_up=1))
    assert {name: timing.calls for name, timing in found.items()} == {"a": 10, "b": 10}
    turns = [name for name, before in zip(order, [None, *order], strict=False) if name != before]
    assert len(turns) >= 10 and turns[:4] == ["a", "b", "a", "b"]


def test_streams_need_a_gpu() -> None:
    with pytest.raises(InputError, match="no input is on a GPU"):
        measure(lambda x: x, (torch.ones(1),), {}, Load(streams=2))


@pytest.mark.gpu
def test_streams_and_device_times_on_a_gpu() -> None:
    x = torch.randn(1024, 1024, device="cuda")
    found = measure(lambda x: x @ x, (x,), {}, Load(calls=20, streams=3))
    assert found.calls == 20 and found.device is not None
    assert 0 < found.device.p50_us <= found.latency.max_us
    assert found.host.p50_us <= found.latency.p50_us


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inspect", "absent"], "error: absent: No such file or directory"),
        (["inspect", "text"], "neither a saved program nor a plan"),
        (["run", "text"], ""),
        (["run", "model.trt", "--inputs", "one.npz"], "missing: extra['a']"),
        (["run", "model.trt", "--inputs", "text"], "unknown ending"),
        (["run", "model.trt", "--inputs", "objects.npy"], "cannot be read"),
        (["run", "model.trt", "--outputs", "one.npz"], "exists already"),
        (["run", "model.trt", "--outputs", "absent/out.npz"], "there is no folder"),
        (["profile", "model.trt", "--trace", "-"], "'-' is no file"),
        (["run", "model.trt", "--outputs", "out.txt"], "unknown ending"),
        (["run", "model.trt", "--shapes", "x=2xb"], "'x=2xb' is no shape"),
        (["run", "model.trt", "--shapes", "y=2x3"], "the program takes no 'y'"),
        (["run", "model.trt", "--shapes", "x=2x3x4"], "'x' has 2 dimensions, the shape given 3"),
        (["run", "model.trt", "--shapes", "x=2x3", "--inputs", "one.npz"], "missing: extra['a']"),
        (["run", "model.trt", "--shapes", "x=900x3"], "900"),
        (["run", "model.trt", "--shapes", "x=999999999999999x3"], "cannot be made"),
        (["bench", "model.trt", "--streams", "2"], "2 streams are asked for"),
    ],
)
def test_bad_input_is_told_in_one_message(
    saved: Path,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(saved.parent)
    Path("text").write_text("not a program, and longer than a header would be: " + "." * 100)
    write_tensors(Path("one.npz"), {"x": torch.ones(2, 3)})
    np.save("objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["fly"],
        ["run"],
    ],
)
def test_bad_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2


@pytest.mark.parametrize(
    ("command", "option", "values", "range_"),
    [
        ("bench", "--calls", ("0", "-1", "few", "1.5", "10000001", "9" * 30), "1 to 10000000"),
        ("bench", "--warm-up", ("-1", "", "10000001"), "0 to 10000000"),
        ("bench", "--threads", ("0", "1025"), "1 to 1024"),
        ("bench", "--streams", ("0", "1025"), "1 to 1024"),
        ("bench", "--duration", ("nan", "inf", "-1", "soon", "1e300"), "0 to 86400"),
        ("bench", "--seed", ("x", str(1 << 63)), "9223372036854775807"),
        ("profile", "--calls", ("0", "10000001"), "1 to 10000000"),
        ("profile", "--most", ("0", "all"), "from 1 to"),
    ],
)
def test_numbers_out_of_range_are_told_before_the_file_is_read(
    command: str, option: str, values: tuple[str, ...], range_: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for value in values:
        with pytest.raises(SystemExit) as caught:
            main([command, "x", f"{option}={value}"])
        assert caught.value.code == 2
        error = " ".join(capsys.readouterr().err.split())
        assert f"Invalid value for '{option}': must be a " in error and range_ in error


def test_threads_that_cannot_be_started_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start
    started: list[threading.Thread] = []

    def start_some(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_some)
    with pytest.raises(InputError, match="5 threads cannot be started, 2 can"):
        measure(lambda x: x, (torch.ones(1),), {}, Load(calls=1, warm_up=0, threads=5))
    assert not any(thread.is_alive() for thread in started)


def test_no_warm_up_is_none() -> None:
    calls: list[int] = []
    measure(lambda x: calls.append(1), (torch.ones(1),), {}, Load(calls=3, warm_up=0))
    assert len(calls) == 1 + 3  # the first is not timed with the others


_PROGRAM = "import runpy; runpy.run_module('trt_runtime', run_name='__main__', alter_sys=True)"


def test_the_module_is_a_program(saved: Path) -> None:
    result = run_python(_PROGRAM, "inspect", str(saved), bare=True)
    assert result.returncode == 0, result.stderr
    assert "block" in result.stdout


def test_failures_of_a_thread_are_raised() -> None:
    calls = []

    def program(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if len(calls) > 3:
            raise InputError("no")
        return x

    with pytest.raises(InputError, match="no"):
        measure(program, (torch.ones(1),), {}, Load(calls=10, warm_up=1, threads=2))


@given(st.lists(st.integers(0, 1000), min_size=1), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_percentiles(values: list[int], part: float) -> None:
    times = sorted(map(float, values))
    found = percentile(times, part)
    assert sum(time <= found for time in times) >= part * len(times)
    assert sum(time < found for time in times) < part * len(times)


@pytest.mark.parametrize("ending", [".npz", ".pt", ".safetensors"])
def test_tensors_survive_files(tmp_path: Path, ending: str) -> None:
    if ending == ".safetensors":
        pytest.importorskip("safetensors")
    tensors = {"a": torch.randn(2, 3), "b['c']": torch.arange(4), "d": torch.tensor(True)}
    path = tmp_path / f"tensors{ending}"
    write_tensors(path, tensors)
    found = read_tensors(path)
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], value) for name, value in tensors.items())


def test_one_tensor_without_a_name(tmp_path: Path) -> None:
    write_tensors(tmp_path / "x.npy", {"x": torch.ones(3)})
    assert torch.equal(read_tensors(tmp_path / "x.npy")[""], torch.ones(3))
    with pytest.raises(InputError, match="holds one tensor"):
        write_tensors(tmp_path / "y.npy", {"x": torch.ones(3), "y": torch.ones(3)})
    with pytest.raises(InputError, match="NumPy has no type"):
        write_tensors(tmp_path / "z.npy", {"x": torch.ones(3, dtype=torch.bfloat16)})


def test_tensors_that_are_none_are_an_error_and_no_traceback(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("safetensors")
    for content in (b"", b"x" * 100, b"\xff" * 8 + b"{}", (2).to_bytes(8, "little") + b"[]"):
        (tmp_path / "bad.safetensors").write_bytes(content)
        assert main(["run", str(saved), "--inputs", str(tmp_path / "bad.safetensors")]) == 2
        assert "cannot be read" in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
def test_a_pipe_of_tensors_is_refused_at_once(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe.npz")
    assert main(["run", str(saved), "--inputs", str(tmp_path / "pipe.npz")]) == 2
    assert "not a regular file" in capsys.readouterr().err


@pytest.mark.skipif(os.name != "posix", reason="there are no pipes and devices")
@pytest.mark.parametrize("ending", [".npz", ".npy", ".pt", ".safetensors"])
def test_what_is_no_file_of_tensors_is_refused_at_once(
    saved: Path, tmp_path: Path, ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / f"pipe{ending}")
    (tmp_path / f"device{ending}").symlink_to("/dev/zero")
    (tmp_path / f"folder{ending}").mkdir()
    for name in ("pipe", "device", "folder"):
        assert main(["run", str(saved), "--inputs", str(tmp_path / f"{name}{ending}")]) == 2
        assert "not a regular file" in capsys.readouterr().err


def test_archives_that_grow_beyond_bounds_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tensors.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for number in range(3):
            with archive.open(f"{number}.npy", "w", force_zip64=True) as entry:
                for _ in range(400):
                    entry.write(bytes(1 << 20))
    for ending in (".npz", ".pt"):
        path = path.rename(path.with_suffix(ending))
        with pytest.raises(InputError, match=r"has \d+ bytes and holds 1258291200"):
            read_tensors(path)


def test_names_that_become_one_without_their_ending_are_refused(tmp_path: Path) -> None:
    """The second one was taken."""
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        for name in ("x", "x.npy"):
            archive.writestr(name, b"")
    with pytest.raises(InputError, match="two tensors under one name"):
        read_tensors(tmp_path / "x.npz")


def test_the_order_of_bytes_is_a_word(tmp_path: Path) -> None:
    """A megabyte took two gigabytes, and nine seconds."""
    with zipfile.ZipFile(tmp_path / "x.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}.")
        archive.writestr("archive/byteorder", bytes(8 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="another order"):
            read_tensors(tmp_path / "x.pt")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_tensors_have_as_many_axes_as_operators_take(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    table = json.dumps({"x": {"dtype": "F32", "shape": [1] * 65, "data_offsets": [0, 4]}}).encode()
    (tmp_path / "x.safetensors").write_bytes(len(table).to_bytes(8, "little") + table + bytes(4))
    with pytest.raises(InputError, match="a tensor of 65 axes under 'x', more than 64"):
        read_tensors(tmp_path / "x.safetensors")


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1152921504606846976,)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}",
        "{'descr': '|O', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '>f8', 'fortran_order': False, 'shape': (1,)}",
        "__import__('os').abort()",
    ],
)
def test_arrays_that_are_not_what_they_say(tmp_path: Path, header: str) -> None:
    text = header.encode()
    content = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(8)
    (tmp_path / "x.npy").write_bytes(content)
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", content)
    for ending in (".npy", ".npz"):
        with pytest.raises(InputError, match="cannot be read"):
            read_tensors(tmp_path / f"x{ending}")


class _Call:
    """What a pickle says to call."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.called = function, args

    def __reduce__(self) -> Any:
        return self.called


def _write_pickle(path: Path, content: bytes) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", content)
        archive.writestr("archive/data/0", bytes(8))


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (_Call(bytearray, 1 << 36), "bytearray, which is no part of a tensor"),
        (_Call(codecs.encode, "\u0100" * 100_000, "punycode"), "encode, which is no part of a tensor"),
        (_Call(torch.storage.UntypedStorage, 1 << 36), "it calls what makes no tensor"),
        (_Call(torch.Size, (1, 2)), "Size, which is no part of a tensor"),
        (_Call(os.mkdir, "harm"), "mkdir, which is no part of a tensor"),
        (_Call(collections.OrderedDict, (("a", 1),)), "positional argument"),
        ({(1, 2): 3}, "it is no dict by name"),
        ([1, 2], "EMPTY_LIST is no part of tensors by name"),
    ],
)
def test_pickles_of_tensors_hold_nothing_else(
    value: Any, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch's own reader took 64 GiB for 60 bytes, or for ever, and then said that this is no tensor."""
    monkeypatch.chdir(tmp_path)
    _write_pickle(tmp_path / "x.pt", pickle.dumps({"x": value}, 2))
    with pytest.raises(InputError, match=why):
        read_tensors(tmp_path / "x.pt")
    assert os.listdir(tmp_path) == ["x.pt"]


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (b"r\xff\xff\xff\x7f", None),  # a place for a value, the last of 2^31
        (b"\x96\0\0\0\0\x10\0\0\0", "BYTEARRAY8|expected"),
        (b"\x8e\0\0\0\0\x10\0\0\0", "BINBYTES8|expected"),
        (b"r\xff\xff\xff\x7fj\xff\xff\xff\x7f0", "POP"),
    ],
)
def test_steps_of_a_pickle_take_no_memory_for_a_number(step: bytes, why: str | None, tmp_path: Path) -> None:
    _write_pickle(tmp_path / "x.pt", b"\x80\x02}" + step + b".")
    if why is not None:
        with pytest.raises(InputError, match=why):
            read_tensors(tmp_path / "x.pt")
    else:
        assert read_tensors(tmp_path / "x.pt") == {}


_DOUBLED = b")q\0" + b"h\0h\0\x86q\0" * 64
"""A tuple of two tuples of two tuples, and so on, which has as many elements as there are numbers of 64 bits."""


def _stored(kind: bytes, dtype: bytes, key: bytes, location: bytes, count: bytes) -> bytes:
    return b"}(" + _DOUBLED + b"tb" + b"X\1\0\0\0x(" + kind + dtype + key + location + count + b"tQs"


@pytest.mark.parametrize("at", range(5))
def test_where_a_tensor_lies_is_no_tuple_of_tuples(at: int, tmp_path: Path) -> None:
    """Half a kilobyte was written out for ever, as the name of an entry."""
    fields = [b"X\7\0\0\0storage", b"ctorch\nFloatStorage\n", b"X\1\0\0\0000", b"X\3\0\0\0cpu", b"K\2"]
    _write_pickle(tmp_path / "x.pt", b"\x80\x02" + _stored(*fields) + b".")
    with pytest.raises(InputError, match="_Stored under 'x'"):
        read_tensors(tmp_path / "x.pt")
    fields[at] = b"h\0"
    _write_pickle(tmp_path / "x.pt", b"\x80\x02" + _stored(*fields) + b".")
    with pytest.raises(InputError, match="a tensor lies in no memory"):
        read_tensors(tmp_path / "x.pt")


_PLACE = b"(X\7\0\0\0storagectorch\nFloatStorage\nX%b%bX\3\0\0\0cpuK\2t"
_MADE = b"ctorch._utils\n_rebuild_tensor_v2\nq\1(%bQK\0(%bt(%bt\x89}tq\2R"


@pytest.mark.parametrize(
    ("axes", "again", "name", "why"),
    [
        (64, 10, b"0", None),
        (65, 0, b"0", "a tensor has 65 axes, more than 64"),
        (3, 99, b"0", "it says more than 100 tensors"),
        (1, 0, b"0" * 65, "the number of an entry has 65 characters"),
    ],
)
def test_what_a_pickle_makes_again_and_again_is_bounded(
    axes: int, again: int, name: bytes, why: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes bytes to say and took any time to make: 741 bytes 14 seconds and a gigabyte, 124 kB half a minute."""
    monkeypatch.setattr(tensor_files, "_MOST_RESULTS", 100)
    place = _PLACE % (len(name).to_bytes(4, "little"), name)
    one = _MADE % (place, b"K\1" * axes, b"K\1" * axes)
    more = b"".join(b"X\4\0\0\0%04dh\1h\2R" % number for number in range(again))
    _write_pickle(tmp_path / "x.pt", b"\x80\x02}(X\1\0\0\0x" + one + more + b"u.")
    if why is None:
        found = read_tensors(tmp_path / "x.pt")
        assert len(found) == again + 1 and found["x"].dim() == axes
    else:
        with pytest.raises(InputError, match=why):
            read_tensors(tmp_path / "x.pt")


def test_what_an_archive_says_of_its_tensors_is_not_long(tmp_path: Path) -> None:
    """Half a megabyte, inflated, took hours and all memory."""
    with zipfile.ZipFile(tmp_path / "x.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}" + b"N" * (5 << 20))
    with pytest.raises(InputError, match="bytes of its tensors, more than"):
        read_tensors(tmp_path / "x.pt")


@pytest.mark.parametrize(
    ("offset", "size", "stride", "why"),
    [
        (0, (3,), (1,), "does not lie in its memory"),
        (2, (1,), (1,), "does not lie in its memory"),
        (0, (2, 2), (1, 1), "does not lie in its memory"),
        (0, (-1,), (1,), "is none"),
        (0, (True,), (1,), "is none"),
        (0, (1, 1), (1,), "has no shape"),
        (0, "2", (1,), "has no shape"),
        (1 << 70, (0,), (1,), None),
        (0, (1 << 40,), (0,), None),
    ],
)
def test_tensors_of_pickles_lie_in_their_memory(
    offset: Any, size: Any, stride: Any, why: str | None, tmp_path: Path
) -> None:
    class Place:
        pass

    class Pickler(pickle.Pickler):
        def persistent_id(self, value: Any) -> Any:
            return ("storage", torch.FloatStorage, "0", "cpu", 2) if isinstance(value, Place) else None

    content = io.BytesIO()
    made = _Call(torch._utils._rebuild_tensor_v2, Place(), offset, size, stride, False, {})
    Pickler(content, 2).dump({"x": made})
    _write_pickle(tmp_path / "x.pt", content.getvalue())
    if why is None:
        assert tuple(read_tensors(tmp_path / "x.pt")["x"].shape) == size
    else:
        with pytest.raises(InputError, match=why):
            read_tensors(tmp_path / "x.pt")


def test_every_tensor_that_a_program_takes_survives_torch_save(tmp_path: Path) -> None:
    base = torch.arange(6.0)
    named = {name: torch.ones(16, dtype=torch.uint8).view(dtype) for name, dtype in DTYPES.items()}
    tensors = collections.OrderedDict(
        named,
        view=base[2:],
        across=base.view(2, 3).t(),
        repeated=base[:1].expand(5),
        empty=base[:0],
        parameter=nn.Parameter(base),
        conjugate=torch.tensor([1 + 2j]).conj(),
    )
    tensors._metadata = {"": 1}  # type: ignore[attr-defined]  # as a state dict has
    base.told = "an attribute"  # type: ignore[attr-defined]
    torch.save(tensors, tmp_path / "x.pt")
    found = read_tensors(tmp_path / "x.pt")
    assert list(found) == list(tensors)
    for name, wanted in tensors.items():
        assert (found[name].dtype, found[name].stride()) == (wanted.dtype, wanted.stride()), name
        bytes_of = [value.detach().resolve_conj().contiguous().view(torch.uint8) for value in (found[name], wanted)]
        assert torch.equal(*bytes_of), name


def test_tensors_as_old_releases_wrote_them_are_told_apart(tmp_path: Path) -> None:
    torch.save({"x": torch.ones(2)}, tmp_path / "x.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(InputError, match=r"since PyTorch 1\.6"):
        read_tensors(tmp_path / "x.pt")


@pytest.mark.parametrize("ending", [".npy", ".npz"])
def test_what_an_array_says_of_itself_has_a_bound(ending: str, tmp_path: Path) -> None:
    """NumPy read it whole, piece by piece, in a time that grows with its square: 900 kB took an hour."""
    content = b"\x93NUMPY\x02\x00" + (1 << 20).to_bytes(4, "little") + bytes(1 << 20)
    if ending == ".npy":
        (tmp_path / "x.npy").write_bytes(content)
    else:
        with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("x.npy", content)
    with pytest.raises(InputError, match="its header has 1048576 bytes"):
        read_tensors(tmp_path / f"x{ending}")


def test_entries_that_lie_before_the_file_are_refused(tmp_path: Path) -> None:
    """The place that nobody can go to was told as an error of the system, without a name."""
    np.savez(tmp_path / "x.npz", x=np.zeros(2))
    content = (tmp_path / "x.npz").read_bytes()
    end = content.rindex(b"PK\x05\x06")
    (start,) = struct.unpack_from("<I", content, end + 16)
    (tmp_path / "x.npz").write_bytes(content[: end + 16] + struct.pack("<I", start + 5) + content[end + 20 :])
    with pytest.raises(InputError, match=r"x\.npz cannot be read"):
        read_tensors(tmp_path / "x.npz")
    with pytest.raises(OSError, match="No such file"):
        read_tensors(tmp_path / "missing.npz")


def test_two_tensors_have_two_names(tmp_path: Path) -> None:
    whole = io.BytesIO()
    np.save(whole, np.zeros(2))
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        archive.writestr("x.npy", whole.getvalue())
        archive.writestr("x.npy", whole.getvalue())
    with pytest.raises(InputError, match="two tensors under one name"):
        read_tensors(tmp_path / "x.npz")


def test_names_in_messages_are_short(tmp_path: Path) -> None:
    _write_pickle(tmp_path / "x.pt", pickle.dumps({"k" * 1_000_000: 1}, 2))
    with pytest.raises(InputError) as refused:
        read_tensors(tmp_path / "x.pt")
    assert len(str(refused.value)) < 1000


def test_the_command_line_says_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"python -m trt_runtime {trt_runtime.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["inspect", "model.trt", "--jsn"], "No such option: --jsn; did you mean '--json'?"),
        (["bench", "model.trt", "--call", "3", "--quite-another"], "No such option: --call; did you mean '--calls'?"),
    ],
)
def test_options_that_there_are_not(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"Usage: python -m trt_runtime {arguments[0]} ")
    assert error.splitlines()[-1].endswith(told)


def test_output_may_be_closed(saved: Path) -> None:
    closed = "import os, sys; os.close(1); sys.stdout = sys.__stdout__ = None\n"  # as Python begins where it is closed
    result = run_python(closed + _PROGRAM, "inspect", str(saved), bare=True)
    assert (result.returncode, result.stderr) == (0, "")


def test_an_interrupt_of_an_import_that_swallows_it_ends_the_process(tmp_path: Path) -> None:
    (tmp_path / "swallowing.py").write_text(
        "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\nexcept BaseException:\n    print(1)\n"
    )
    script = (
        f"import signal, sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # processes in the background ignore it\n"
        "from trt_runtime.interruption import end_imports_at_interrupts\n"
        "end_imports_at_interrupts()\n"
        "try:\n    import os, signal; os.kill(os.getpid(), signal.SIGINT)\n"
        "except KeyboardInterrupt:\n    print('no import')\n"
        "import swallowing"
    )
    result = run_python("import sys; sys.stdout.reconfigure(write_through=True)\n" + script, bare=True)
    assert (result.returncode, result.stdout, result.stderr) == (130, "no import\n", "interrupted\n")


def test_shapes_and_ranges_of_shapes_are_read_alike() -> None:
    assert read_shapes(["x=2x3", "a=b=", "x=4"]) == {"x": (4,), "a=b": ()}
    assert read_ranges(["x=2x3", "y=1:4:8"]) == {"x": [(2, 3)], "y": [(1,), (4,), (8,)]}


@pytest.mark.parametrize(
    "text", ["x", "=2x3", "x=-1x3", "x=1_0", "x=+2", "x=2x", "x=\N{ARABIC-INDIC DIGIT THREE}", "x=1:2"]
)
@pytest.mark.parametrize("read", [read_shapes, read_ranges])
def test_what_is_no_shape_is_told(read: Any, text: str) -> None:
    with pytest.raises(InputError, match="is no shape"):
        read([text])
