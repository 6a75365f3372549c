"""Saved programs in model repositories of Triton Inference Server: configurations, what the Python backend runs.

The server itself is used where `TRITON_PYTHON` names a Python, of the version of this one, that has `nvidia-pytriton`:
it ships the server and its client. Elsewhere the backend's own interface is played by a module of the same names.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import types
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import hostile_files
import numpy as np
import pytest
import torch
from torch import nn
from trtc.app import app
from typer.testing import CliRunner

import trt_frontends as trt
import trt_runtime
from trt_core import InputError
from trt_core.files.folder import Folder
from trt_frontends.integrations import triton
from trt_frontends.integrations.triton import export_triton

SERVER_PYTHON = os.environ.get("TRITON_PYTHON", "")


class Scores(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.product = nn.Linear(4, 3)
        self.scale = scale

    def forward(self, x: torch.Tensor, *, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        """x: (N, 4); mask: (N,), bool."""
        scores = self.product(x) * self.scale
        return {"scores": torch.where(mask[:, None], scores, 0.0), "best": scores.argmax(-1)}


class Product(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (N, 4)."""
        return super().forward(x)


def _saved(path: Path, scale: float = 1.0, least: int = 2) -> nn.Module:
    model = Scores(scale).eval().requires_grad_(False)
    rows = torch.export.Dim("rows", min=least, max=8)
    x, mask = torch.randn(4, 4), torch.ones(4, dtype=torch.bool)
    program = torch.export.export(model, (x,), {"mask": mask}, dynamic_shapes={"x": {0: rows}, "mask": {0: rows}})
    trt_runtime.save(trt.compile(program, min_block_size=1), path)
    return model


CONFIG = """name: "scores"
backend: "python"
max_batch_size: 8
input {
  name: "x"
  data_type: TYPE_FP32
  dims: [ 4 ]
}
input {
  name: "mask"
  data_type: TYPE_BOOL
  dims: [ 1 ]
  reshape { shape: [ ] }
}
output {
  name: "scores"
  data_type: TYPE_FP32
  dims: [ 3 ]
}
output {
  name: "best"
  data_type: TYPE_INT64
  dims: [ 1 ]
  reshape { shape: [ ] }
}
instance_group { kind: KIND_CPU count: 2 }
dynamic_batching { max_queue_delay_microseconds: 500 }
"""


def test_a_repository_says_what_a_model_takes_and_returns(tmp_path: Path) -> None:
    _saved(tmp_path / "scores.trtp")
    folder = export_triton(tmp_path / "scores.trtp", tmp_path / "models", instances=2)
    assert (folder / "config.pbtxt").read_text() == CONFIG
    assert sorted(path.name for path in (folder / "1").iterdir()) == ["model.py", "model.trtp"]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_models_and_versions_are_never_overwritten(tmp_path: Path) -> None:
    _saved(tmp_path / "scores.trtp")
    folder = export_triton(tmp_path / "scores.trtp", tmp_path / "models")
    export_triton(tmp_path / "scores.trtp", tmp_path / "models", version=2)
    assert sorted(path.name for path in folder.iterdir()) == ["1", "2", "config.pbtxt"]
    with pytest.raises(InputError, match="version 2 of the model is there"):
        export_triton(tmp_path / "scores.trtp", tmp_path / "models", version=2)
    with pytest.raises(InputError, match=r"(?s)takes, returns or runs something else.*count: 1 .*count: 4 "):
        export_triton(tmp_path / "scores.trtp", tmp_path / "models", version=3, instances=4)
    (folder / "config.pbtxt").write_text(f'name: "{"m" * 100_000}"')
    with pytest.raises(InputError, match="something else") as caught:
        export_triton(tmp_path / "scores.trtp", tmp_path / "models", version=3)
    assert len(str(caught.value)) < 1000, "a line of a file of any length is not said again"


def test_versions_run_as_the_one_before_unless_they_say_otherwise(tmp_path: Path) -> None:
    _saved(tmp_path / "scores.trtp")
    folder = export_triton(tmp_path / "scores.trtp", tmp_path / "models", instances=3, max_batch_size=4)
    config = (folder / "config.pbtxt").read_text()
    assert "count: 3 " in config and "max_batch_size: 4\n" in config
    command = ["export", "triton", str(tmp_path / "scores.trtp"), str(tmp_path / "models"), "--version", "2"]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert (folder / "config.pbtxt").read_text() == config
    with pytest.raises(InputError, match=r"max_batch_size: 4.*max_batch_size: 8"):
        export_triton(tmp_path / "scores.trtp", tmp_path / "models", version=3, max_batch_size=8)


@pytest.mark.parametrize("other", ["a program", "a pipe", "zeros"])
def test_a_program_that_is_swapped_after_it_was_read_is_not_served(
    tmp_path: Path, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if other != "a program" and not hasattr(os, "mkfifo"):
        pytest.skip("there are no pipes")
    path, second = tmp_path / "scores.trtp", tmp_path / "other"
    _saved(path)
    content = path.read_bytes()
    if other == "a program":
        trt_runtime.save(Product().eval(), second, arg_inputs=(torch.ones(2, 4),))
    elif other == "a pipe":
        os.mkfifo(second)
    else:
        second.symlink_to("/dev/zero")
    inspect = triton.inspect_file

    def swapped(*args: Any) -> Any:
        found = inspect(*args)
        second.replace(path)
        return found

    monkeypatch.setattr(triton, "inspect_file", swapped)
    folder = export_triton(path, tmp_path / "models", instances=2)
    assert (folder / "1" / "model.trtp").read_bytes() == content
    assert (folder / "config.pbtxt").read_text() == CONFIG


def test_what_cannot_be_served_is_refused(tmp_path: Path) -> None:
    _saved(tmp_path / "scores.trtp")
    with pytest.raises(InputError, match="more than the 8 rows"):
        export_triton(tmp_path / "scores.trtp", tmp_path / "models", max_batch_size=9)
    for name in ("../x", "x" * 256):
        with pytest.raises(InputError, match="is no name of a model"):
            export_triton(tmp_path / "scores.trtp", tmp_path / "models", name=name)
    compiled = trt.compile(nn.Linear(4, 3).eval(), arg_inputs=(torch.ones(2, 4),), min_block_size=1)
    (engine,) = [module for module in compiled.modules() if isinstance(module, trt_runtime.TRTModule)]
    trt_runtime.write_plan(tmp_path / "x.plan", engine.header, engine.plan)
    with pytest.raises(InputError, match="export a saved program"):
        export_triton(tmp_path / "x.plan", tmp_path / "models")
    assert not (tmp_path / "models").exists()
    with pytest.raises(InputError, match="a model repository is a folder"):
        export_triton(tmp_path / "scores.trtp", tmp_path / "x.plan")


class Greek(nn.Module):
    def forward(self, β: torch.Tensor, _: torch.Tensor) -> dict[str, torch.Tensor]:
        """β, _: (2, 3)."""
        return {"β": β + _}


def test_tensors_without_a_name_of_ascii_get_one(tmp_path: Path) -> None:
    """They had an empty one, with which the server loads no model."""
    ones = torch.ones(2, 3)
    trt_runtime.save(trt.compile(Greek().eval(), arg_inputs=(ones, ones), min_block_size=1), tmp_path / "x.trtp")
    text = (export_triton(tmp_path / "x.trtp", tmp_path / "models") / "config.pbtxt").read_text()
    assert re.findall(r'  name: "(.*)"', text) == ["input_0", "input_1", "output_0"]


def test_counts_are_those_that_triton_reads(tmp_path: Path) -> None:
    """A configuration with others was written, which the server refused."""
    path = hostile_files.of_rows(1, 2, 1 << 40).write(tmp_path / "many.trtp")
    most = (1 << 31) - 1
    folder = export_triton(path, tmp_path / "models")
    assert f"max_batch_size: {most}\n" in (folder / "config.pbtxt").read_text()
    export_triton(path, tmp_path / "models", version=2)
    wrong: list[tuple[str, Any]] = [("instances", most + 1), ("version", most + 1), ("max_batch_size", True)]
    for name, number in [*wrong, ("instances", 0), ("version", True)]:
        with pytest.raises(InputError, match=f"{name} is a number from . to {most}, not {number}"):
            export_triton(path, tmp_path / "models", name="other", **{name: number})


def test_a_plan_of_tensorrt_has_its_own_backend(tmp_path: Path) -> None:
    import dataclasses

    compiled = trt.compile(nn.Linear(4, 3).eval(), arg_inputs=(torch.ones(2, 4),), min_block_size=1)
    (engine,) = [module for module in compiled.modules() if isinstance(module, trt_runtime.TRTModule)]
    header = dataclasses.replace(engine.header, provider="tensorrt")
    trt_runtime.write_plan(tmp_path / "x.plan", header, engine.plan)
    folder = export_triton(tmp_path / "x.plan", tmp_path / "models")
    text = (folder / "config.pbtxt").read_text()
    assert 'backend: "tensorrt"\nmax_batch_size: 0\n' in text
    assert "dims: [ 2, 4 ]" in text
    assert (folder / "1" / "model.plan").read_bytes() == engine.plan.numpy().tobytes()


def test_the_command_writes_a_repository(tmp_path: Path) -> None:
    _saved(tmp_path / "scores.trtp")
    given = ["export", "triton", str(tmp_path / "scores.trtp"), str(tmp_path / "models"), "--instances", "2"]
    assert CliRunner().invoke(app, given).exit_code == 0
    assert (tmp_path / "models" / "scores" / "config.pbtxt").read_text() == CONFIG
    assert CliRunner().invoke(app, given).exit_code == 2


def test_a_disk_without_room_is_told_and_leaves_no_half_of_a_model(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    _saved(tmp_path / "scores.trtp")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, before[1]))
    try:
        given = ["export", "triton", str(tmp_path / "scores.trtp"), str(tmp_path / "models")]
        done = CliRunner().invoke(app, given)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert done.exit_code == 2
    assert done.stderr.startswith("error: the file cannot be written"), done.stderr
    assert list((tmp_path / "models").iterdir()) == []
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_what_killed_exports_left_goes_and_what_others_make_stays(tmp_path: Path) -> None:
    """Each left a copy of its model beside the repository."""
    path = tmp_path / "scores.trtp"
    _saved(path)
    for name in ("saving-1", "new-2", "saving-3"):
        (tmp_path / f".triton.{name}" / "model" / "1").mkdir(parents=True)
    with Folder.open(str(tmp_path / ".triton.saving-3")).locked(".lock", 1.0):
        export_triton(path, tmp_path / "models", name="model")
        assert {one.name for one in tmp_path.glob(".triton*")} == {".triton.saving-3"}
    export_triton(path, tmp_path / "models", name="model", version=2)
    assert not [*tmp_path.glob(".triton*")]
    assert sorted(os.listdir(tmp_path / "models" / "model")) == ["1", "2", "config.pbtxt"]


@pytest.mark.parametrize("is_new", [False, True])
def test_who_exports_a_model_that_somebody_else_exports_is_told(
    is_new: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It left as the system's error about a folder that is not empty."""
    path, repository = tmp_path / "scores.trtp", tmp_path / "models"
    _saved(path)
    if not is_new:
        export_triton(path, repository)
    locked = triton.locked_folder

    def late(*given: Any) -> Path:
        monkeypatch.setattr(triton, "locked_folder", locked)
        export_triton(path, repository, version=2)
        return locked(*given)

    monkeypatch.setattr(triton, "locked_folder", late)
    if is_new:  # the other one has made the folder, and this one adds to it
        export_triton(path, repository)
    else:
        with pytest.raises(InputError, match="somebody else has exported the model meanwhile"):
            export_triton(path, repository, version=2)
    assert sorted(os.listdir(repository / "scores"))[-1] == "config.pbtxt"
    assert not [*tmp_path.glob(".triton*")]


def test_a_repository_that_is_a_file_system_of_its_own_takes_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _saved(tmp_path / "scores.trtp")
    (tmp_path / "models").mkdir()
    stat, rename = Path.stat, Path.rename

    def other_device(path: Path, **options: Any) -> Any:
        found = list(stat(path, **options))
        found[2] += "models" in path.parts
        return os.stat_result(found)

    def refuse(path: Path, target: Path) -> Any:
        assert "models" in path.parts, "a renaming from one file system to another"
        return rename(path, target)

    monkeypatch.setattr(Path, "stat", other_device)
    monkeypatch.setattr(Path, "rename", refuse)
    folder = export_triton(tmp_path / "scores.trtp", tmp_path / "models", instances=2)
    export_triton(tmp_path / "scores.trtp", tmp_path / "models", version=2, instances=2)
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["scores"]
    assert sorted(path.name for path in folder.iterdir()) == ["1", "2", "config.pbtxt"]


# The Python backend, played ------------------------------------------------------------------------------------------


class _Tensor:
    def __init__(self, name: str, array: np.ndarray[Any, Any]) -> None:
        self.label, self._array = name, array

    def is_cpu(self) -> bool:
        return True

    def as_numpy(self) -> np.ndarray[Any, Any]:
        return self._array

    def to_dlpack(self) -> Any:
        return self._array.__dlpack__()

    @classmethod
    def from_dlpack(cls, name: str, capsule: Any) -> _Tensor:
        return cls(name, torch.utils.dlpack.from_dlpack(capsule).numpy())


class _Response:
    def __init__(self, output_tensors: list[_Tensor], error: Any = None) -> None:
        self.tensors = {tensor.label: tensor.as_numpy() for tensor in output_tensors}
        self.error = error


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the server puts in front of its models, by the same names."""
    module: Any = types.ModuleType("triton_python_backend_utils")
    module.Tensor, module.InferenceResponse, module.TritonError = _Tensor, _Response, str
    module.get_input_tensor_by_name = lambda request, name: _Tensor(name, request[name]) if name in request else None
    module.TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", module)


def _served(
    folder: Path, version: int = 1, inputs: Sequence[str] = ("x", "mask"), outputs: Sequence[str] = ("scores", "best")
) -> Any:
    namespace: dict[str, Any] = {}
    exec((folder / str(version) / "model.py").read_text(), namespace)
    served = namespace["TritonPythonModel"]()
    names = {"input": inputs, "output": outputs}
    config = {kind: [{"name": name} for name in names[kind]] for kind in names}
    served.initialize(
        {
            "model_config": json.dumps({**config, "max_batch_size": 8}),
            "model_repository": str(folder),
            "model_version": str(version),
            "model_instance_kind": "CPU",
            "model_instance_device_id": "0",
        }
    )
    return served


@pytest.mark.usefixtures("backend")
def test_requests_that_come_together_are_rows_of_few_calls(tmp_path: Path) -> None:
    model = _saved(tmp_path / "scores.trtp")
    served = _served(export_triton(tmp_path / "scores.trtp", tmp_path / "models"))
    rng = np.random.default_rng(0)
    requests = [
        {"x": rng.standard_normal((rows, 4), dtype=np.float32), "mask": rng.random(rows) < 0.5}
        for rows in (1, 3, 2, 8, 1)
    ]
    calls: list[int] = []
    served._program.register_forward_pre_hook(lambda _, args: calls.append(len(args[0])))
    answers = served.execute(requests)
    assert calls == [6, 8, 2]  # the last row comes with one that nobody asked for
    for request, answer in zip(requests, answers, strict=True):
        wanted = model(torch.from_numpy(request["x"]), mask=torch.from_numpy(request["mask"]))
        np.testing.assert_allclose(answer.tensors["scores"], wanted["scores"].numpy(), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(answer.tensors["best"], wanted["best"].numpy())


@pytest.mark.usefixtures("backend")
def test_a_wrong_request_spoils_no_other_one(tmp_path: Path) -> None:
    _saved(tmp_path / "scores.trtp")
    served = _served(export_triton(tmp_path / "scores.trtp", tmp_path / "models"))
    right = {"x": np.zeros((2, 4), np.float32), "mask": np.ones(2, bool)}
    texts = {"x": np.array([[b"a"] * 4] * 2, object), "mask": right["mask"]}
    wrong = [{**right, "mask": np.ones(3, bool)}, {"x": right["x"]}, texts]
    first, *failed, last = served.execute([right, *wrong, right])
    assert all(answer.error for answer in failed) and not first.error and not last.error
    assert "the request has no mask" in failed[1].error
    assert "x holds text, not numbers" in failed[2].error
    assert first.tensors["scores"].shape == last.tensors["scores"].shape == (2, 3)


@pytest.mark.usefixtures("backend")
def test_wrong_requests_that_make_up_for_each_other_are_both_refused(tmp_path: Path) -> None:
    """One with a row too many and one with a row too few had the request between them compute with rows of theirs."""
    _saved(tmp_path / "scores.trtp")
    served = _served(export_triton(tmp_path / "scores.trtp", tmp_path / "models"))
    right = {"x": np.ones((2, 4), np.float32), "mask": np.array([True, False])}
    more, fewer = ({"x": np.zeros((2, 4), np.float32), "mask": np.ones(rows, bool)} for rows in (3, 1))
    (alone,) = served.execute([right])
    first, second, third = served.execute([more, right, fewer])
    assert first.error and third.error and not second.error
    np.testing.assert_array_equal(second.tensors["best"], alone.tensors["best"])


@pytest.mark.usefixtures("backend")
def test_rows_that_a_strangers_program_asks_for_are_bounded(tmp_path: Path) -> None:
    """Requests are filled up to the least rows that the file says: some kilobytes took gigabytes."""
    path = hostile_files.of_rows(1 << 26, 1 << 26, 1 << 30).write(tmp_path / "many.trtp")
    served = _served(export_triton(path, tmp_path / "models"), inputs=["x0"], outputs=["output"])
    (answer,) = served.execute([{"x0": np.ones((3, 4), np.float32)}])
    assert "takes inputs of 1.074e+09 bytes or more" in answer.error


@pytest.mark.usefixtures("backend")
def test_inputs_go_to_the_device_that_the_instance_was_given(tmp_path: Path) -> None:
    _saved(tmp_path / "scores.trtp")
    served = _served(export_triton(tmp_path / "scores.trtp", tmp_path / "models"))
    leaves = tuple(replace(leaf, device="cuda") for leaf in served._signature.leaves)  # as a program for a GPU has them
    served._signature = replace(served._signature, leaves=leaves)
    given: list[torch.Tensor] = []

    class Elsewhere:
        device = torch.device("meta")

        def __call__(self, *values: torch.Tensor, **named: torch.Tensor) -> torch.Tensor:
            given.extend([*values, *named.values()])
            return values[0]

    served._program = Elsewhere()
    served._run([torch.ones(2, 4), torch.ones(2, dtype=torch.bool)])
    assert [value.device.type for value in given] == ["meta", "meta"]


class _Streamed(dict[str, Any]):
    """A request that is its own response sender: of a client that is gone after some responses."""

    def __init__(self, most: int = 1000, **given: Any) -> None:
        super().__init__({name: np.asarray(value) for name, value in given.items()})
        self.answers: list[Any] = []
        self.ends, self._most = 0, most

    def get_response_sender(self) -> _Streamed:
        return self

    def is_cancelled(self) -> bool:
        return len(self.answers) >= self._most

    def send(self, response: Any = None, flags: int = 0) -> None:
        assert not self.ends
        self.answers += [] if response is None else [response]
        self.ends += flags

    def tokens(self) -> Any:
        return np.stack([answer.tensors["tokens"] for answer in self.answers], axis=1).tolist()


def _generator(seed: int = 0) -> trt_runtime.TextGenerator:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed)
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    config = transformers.LlamaConfig(num_attention_heads=4, num_key_value_heads=2, eos_token_id=None, **sizes)
    model = transformers.LlamaForCausalLM(config).eval().requires_grad_(False)
    return trt.compile_generation(model, max_length=24, max_batch=2, min_block_size=1)


@pytest.mark.usefixtures("backend")
def test_a_generator_sends_tokens_as_they_come(tmp_path: Path) -> None:
    generator = _generator()
    generator.save(tmp_path / "text.trtp")
    folder = export_triton(tmp_path / "text.trtp", tmp_path / "models")
    config = (folder / "config.pbtxt").read_text()
    assert 'input {\n  name: "input_ids"\n  data_type: TYPE_INT64\n  dims: [ -1, -1 ]\n}\n' in config
    assert 'name: "top_k"\n  data_type: TYPE_INT32\n  dims: [ 1 ]\n  optional: true\n}' in config
    assert "model_transaction_policy { decoupled: true }" in config
    served = _served(folder)
    prompts = [[1, 5, 9], [7, 3, 2]]
    drawn: dict[str, Any] = {"do_sample": [True], "seed": [3], "top_k": np.array([8], np.int32)}
    plain, sampled, again, gone, wrong = requests = [
        _Streamed(input_ids=prompts, max_new_tokens=[6]),
        *(_Streamed(input_ids=prompts, max_new_tokens=[6], **drawn) for _ in range(2)),
        _Streamed(input_ids=prompts, most=2),
        _Streamed(input_ids=[[1] * 99]),
    ]
    many, texts = _Streamed(input_ids=prompts, top_k=np.array([8, 9], np.int32)), _Streamed(input_ids=[[b"a"]])
    assert served.execute([many, texts, *requests]) is None
    assert "top_k has 2 values\n  why: it is one number" in many.answers[0].error
    assert plain.tokens() == generator.generate(torch.tensor(prompts), max_new_tokens=6)[:, 3:].tolist()
    assert sampled.tokens() == again.tokens() != plain.tokens()
    assert 2 <= len(gone.answers) < 21 - 6  # for who is gone no more is computed, but for steps that have begun
    assert wrong.answers[0].error and texts.answers[0].error
    assert all(request.ends == 1 for request in (*requests, many, texts))
    with pytest.raises(InputError, match="not put together"):
        export_triton(tmp_path / "text.trtp", tmp_path / "models", version=2, max_batch_size=4)


# The server ----------------------------------------------------------------------------------------------------------

CLIENT = """
import json, sys
import numpy as np
import tritonclient.http as http

(port,) = sys.argv[1:]
client = http.InferenceServerClient(f"127.0.0.1:{port}", concurrency=8)

def begin(x, mask):
    inputs = [http.InferInput("x", x.shape, "FP32"), http.InferInput("mask", mask.shape, "BOOL")]
    inputs[0].set_data_from_numpy(x)
    inputs[1].set_data_from_numpy(mask)
    outputs = [http.InferRequestedOutput(name, binary_data=False) for name in ("scores", "best")]
    return client.async_infer("scores", inputs, outputs=outputs)

def ask(x, mask):
    found = begin(x, mask).get_result()
    return found.as_numpy("scores"), found.as_numpy("best")

rng = np.random.default_rng(0)
given = [(rng.standard_normal((1, 4), dtype=np.float32), np.array([[True]])) for _ in range(32)]
found = [started.get_result() for started in [begin(*each) for each in given]]
answers = [(each.as_numpy("scores"), each.as_numpy("best")) for each in found]
together = ask(np.concatenate([x for x, _ in given[:8]]), np.ones((8, 1), bool))
try:
    ask(np.zeros((1, 5), np.float32), np.array([[True]]))
    wrong = ""
except Exception as error:
    wrong = str(error)
told = client.get_inference_statistics("scores")["model_stats"][0]
print(json.dumps({
    "x": np.concatenate([x for x, _ in given]).tolist(),
    "scores": np.concatenate([scores for scores, _ in answers]).tolist(),
    "best": np.concatenate([best for _, best in answers]).reshape(-1).tolist(),
    "together": together[0].tolist(),
    "wrong": wrong,
    "inferences": told["inference_count"],
    "executions": told["execution_count"],
}))
"""


def _show_packages(folder: Path) -> None:
    """Lets the Python of the server, which reads no PYTHONPATH, find what this one has: beside its backend."""
    for home in (*reversed(sys.path), *_homes()):
        if Path(home).is_dir() and ("site-packages" in home or home in _homes()):
            for entry in Path(home).iterdir():
                with contextlib.suppress(FileExistsError):
                    (folder / entry.name).symlink_to(entry)


def _homes() -> list[str]:
    ours = [module.__file__ for name, module in sys.modules.items() if name.startswith("trt_") and "." not in name]
    return [str(Path(file).parent.parent) for file in ours if file is not None]


@contextlib.contextmanager
def _server(repository: Path, work: Path, model: str) -> Iterator[tuple[int, int]]:
    """Starts Triton on a model of a repository, with the backend for this Python; yields its ports of HTTP and gRPC."""
    probe = "import pytriton, pathlib; print(pathlib.Path(pytriton.__file__).parent)"
    found = subprocess.run([SERVER_PYTHON, "-c", probe], capture_output=True, text=True, check=True)
    shipped = Path(found.stdout.strip()) / "tritonserver"
    shutil.copytree(shipped / "backends", work / "backends")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    shutil.copy(shipped / "python_backend_stubs" / version / "triton_python_backend_stub", work / "backends/python")
    _show_packages(work / "backends/python")
    with socket.socket() as free, socket.socket() as other:
        free.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        port, grpc = free.getsockname()[1], other.getsockname()[1]
    run = [
        shipped / "bin" / "tritonserver",
        f"--model-repository={repository}",
        f"--backend-directory={work / 'backends'}",
        f"--http-port={port}",
        "--http-address=127.0.0.1",
        f"--grpc-port={grpc}",
        "--grpc-address=127.0.0.1",
        "--allow-metrics=false",
        "--model-control-mode=explicit",
        f"--load-model={model}",
    ]
    with (work / "log").open("w") as log:
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": str(shipped.parent.parent / "nvidia_pytriton.libs"),
            "LD_PRELOAD": "libstdc++.so.6",  # the stub brings an older one, with which PyTorch does not load
            "OMP_NUM_THREADS": "1",
        }
        process = subprocess.Popen([str(part) for part in run], stdout=log, stderr=log, env=environment)
        try:
            for _ in range(300):
                assert process.poll() is None, (work / "log").read_text()[-3000:]
                with contextlib.suppress(OSError):
                    if urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=5).status == 200:
                        break
                time.sleep(0.2)
            else:
                raise AssertionError((work / "log").read_text()[-3000:])
            yield port, grpc
        finally:
            process.terminate()
            process.wait(60)


def _reload(port: int, model: str) -> None:
    path = f"http://127.0.0.1:{port}/v2/repository/models/{model}/load"
    urllib.request.urlopen(urllib.request.Request(path, b"{}", method="POST"), timeout=60)


def _asked(client: str, port: int) -> Any:
    run = [SERVER_PYTHON, "-c", client, str(port)]
    found = subprocess.run(run, capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode == 0, found.stderr[-3000:]
    return json.loads(found.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.skipif(not SERVER_PYTHON, reason="TRITON_PYTHON names no Python with nvidia-pytriton")
def test_a_server_answers_batches_and_takes_a_new_version(tmp_path: Path) -> None:
    one, two = _saved(tmp_path / "one.trtp", least=1), _saved(tmp_path / "two.trtp", 2.0, least=1)
    repository = tmp_path / "models"
    export_triton(tmp_path / "one.trtp", repository, name="scores", instances=2)
    with _server(repository, tmp_path, "scores") as (port, _):
        told = _asked(CLIENT, port)
        x = torch.tensor(told["x"])
        mask = torch.ones(len(x), dtype=torch.bool)
        wanted = one(x, mask=mask)
        torch.testing.assert_close(torch.tensor(told["scores"]), wanted["scores"])
        assert told["best"] == wanted["best"].tolist()
        torch.testing.assert_close(torch.tensor(told["together"]), wanted["scores"][:8])
        assert "unexpected shape" in told["wrong"]
        assert told["inferences"] == 40
        assert told["executions"] < 33  # requests came together
        export_triton(tmp_path / "two.trtp", repository, name="scores", instances=2, version=2)
        _reload(port, "scores")
        again = _asked(CLIENT, port)
        torch.testing.assert_close(torch.tensor(again["scores"]), two(x, mask=mask)["scores"])


PAGE = (Path(__file__).parent.parent / "docs/howto/triton.md").read_text(encoding="utf-8")
SAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.S)


@pytest.mark.slow
@pytest.mark.skipif(not SERVER_PYTHON, reason="TRITON_PYTHON names no Python with nvidia-pytriton")
def test_what_the_page_shows_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = trt.Input(min_shape=(1, 4), opt_shape=(4, 4), max_shape=(8, 4), name="x")
    model = Product().eval().requires_grad_(False)
    trt_runtime.save(trt.compile(model, arg_inputs=(rows,), min_block_size=1), tmp_path / "model.trtp")
    monkeypatch.chdir(tmp_path)
    (command,) = re.findall(r"```sh\ntrtc (export .*?)\n```", PAGE)
    assert CliRunner().invoke(app, shlex.split(command)).exit_code == 0
    (written,) = re.findall(r"```text\n(.*?)```", PAGE, re.S)
    assert sorted(written.split()) == sorted(str(path) for path in Path("models").rglob("*") if path.is_file())
    with _server(tmp_path / "models", tmp_path, "model") as (port, _):
        run = [SERVER_PYTHON, "-c", SAMPLES[0].replace(":8000", f":{port}")]
        told = subprocess.run(run, capture_output=True, text=True, timeout=60, check=True).stdout
    printed = torch.tensor([float(number) for number in told.strip(" []\n").split()])
    torch.testing.assert_close(printed, model(torch.ones(1, 4))[0], rtol=1e-4, atol=1e-6)


TEXT_CLIENT = """
import json, queue, sys
import numpy as np
import tritonclient.grpc as grpc

(port,) = sys.argv[1:]
client = grpc.InferenceServerClient(f"127.0.0.1:{port}")
TYPES = {"input_ids": np.int64, "attention_mask": np.int64, "max_new_tokens": np.int32, "do_sample": np.bool_}
TYPES |= {"temperature": np.float32, "top_k": np.int32, "top_p": np.float32, "seed": np.int64}

def tensor(name, value, dtype):
    array = np.asarray(value, dtype)
    made = grpc.InferInput(name, array.shape, {"int64": "INT64", "int32": "INT32", "bool": "BOOL"}.get(dtype, "FP32"))
    made.set_data_from_numpy(array)
    return made

def begin(types=None, **given):
    inputs = [tensor(name, value, np.dtype({**TYPES, **(types or {})}[name]).name) for name, value in given.items()]
    client.async_stream_infer("text", inputs, enable_empty_final_response=True)

def ask(**given):
    begin(**given)
    tokens = []
    while True:
        result, error = answers.get(timeout=60)
        if error is not None:
            return str(error)
        if (found := result.as_numpy("tokens")) is not None:
            tokens.append(found.tolist())
        if result.get_response().parameters["triton_final_response"].bool_param:
            return tokens

def open_stream():
    global answers
    answers = found = queue.Queue()
    client.start_stream(lambda result, error: found.put((result, error)))

prompts = [[1, 5, 9], [7, 3, 2]]
drawn = {"do_sample": [True], "temperature": [0.7], "top_k": [8], "top_p": [0.9], "seed": [3]}
open_stream()
told = {
    "plain": ask(input_ids=prompts, max_new_tokens=[6]),
    "one": ask(input_ids=prompts[:1], max_new_tokens=[4]),
    "masked": ask(input_ids=prompts, attention_mask=[[1, 1, 1], [0, 1, 1]], max_new_tokens=[6]),
    "sampled": [ask(input_ids=prompts, max_new_tokens=[6], **drawn) for _ in range(2)],
    "too long": ask(input_ids=[[1] * 99]),
    "too many": ask(input_ids=prompts * 2),
    "negative": ask(input_ids=prompts, max_new_tokens=[-1]),
    "other type": ask(types={"input_ids": np.float32}, input_ids=prompts),
}
begin(input_ids=prompts)
answers.get(timeout=60)
client.stop_stream(cancel_requests=True)
open_stream()
told["after one is gone"] = ask(input_ids=prompts, max_new_tokens=[6])
client.stop_stream()
print(json.dumps(told))
"""


@pytest.mark.slow
@pytest.mark.skipif(not SERVER_PYTHON, reason="TRITON_PYTHON names no Python with nvidia-pytriton")
def test_a_server_streams_tokens_and_takes_a_new_generator(tmp_path: Path) -> None:
    one, two = _generator(), _generator(1)
    one.save(tmp_path / "text.trtp")
    two.save(tmp_path / "two.trtp")
    repository = tmp_path / "models"
    export = ["export", "triton", str(tmp_path / "text.trtp"), str(repository)]
    assert CliRunner().invoke(app, export).exit_code == 0
    prompts = torch.tensor([[1, 5, 9], [7, 3, 2]])
    plain = one.generate(prompts, max_new_tokens=6)[:, 3:].T.tolist()
    drawn: dict[str, Any] = {"do_sample": True, "temperature": 0.7, "top_k": 8, "top_p": 0.9}
    sampled = one.generate(prompts, max_new_tokens=6, generator=torch.Generator().manual_seed(3), **drawn)
    masked = one.generate(prompts, attention_mask=torch.tensor([[1, 1, 1], [0, 1, 1]]), max_new_tokens=6)
    with _server(repository, tmp_path, "text") as (port, grpc):
        told = _asked(TEXT_CLIENT, grpc)
        assert told["plain"] == told["after one is gone"] == plain
        assert told["one"] == one.generate(prompts[:1], max_new_tokens=4)[:, 3:].T.tolist()
        assert told["masked"] == masked[:, 3:].T.tolist()
        assert told["sampled"] == [sampled[:, 3:].T.tolist()] * 2
        assert "99" in told["too long"]
        assert "4" in told["too many"]
        assert "-1" in told["negative"]
        assert "data-type" in told["other type"]
        run = [SERVER_PYTHON, "-c", "import numpy as np\n" + SAMPLES[1].replace(":8001", f":{grpc}")]
        shown = subprocess.run(run, capture_output=True, text=True, timeout=60, check=True).stdout
        assert [int(line.strip("[]")) for line in shown.splitlines()] == [token for token, _ in plain]
        export_triton(tmp_path / "two.trtp", repository, name="text", version=2)
        _reload(port, "text")
        again = _asked(TEXT_CLIENT, grpc)["plain"]
        assert again == two.generate(prompts, max_new_tokens=6)[:, 3:].T.tolist() != plain
