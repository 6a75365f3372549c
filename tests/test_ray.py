"""Saved programs on Ray: batches of a data set, an actor that is killed meanwhile, and a deployment."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import re
import subprocess
import threading
import tracemalloc
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import hostile_files
import numpy as np
import pytest
import torch
from torch import nn

import trt_frontends as trt
import trt_runtime
from trt_core import ExecutionError, Input, InputError, PlanError
from trt_frontends.integrations import ray as ray_integration
from trt_frontends.integrations.ray import BatchInference, ProgramServer, deployment

FEATURES = 4


def _saved(path: Path, scale: float = 1.0) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 3)).eval().requires_grad_(False)
    model[0].weight.mul_(scale)
    given = Input(min_shape=(2, FEATURES), opt_shape=(4, FEATURES), max_shape=(8, FEATURES), name="input")
    trt_runtime.save(trt.compile(model, arg_inputs=(given,), min_block_size=1), path)
    return model


@pytest.mark.parametrize("rows", [1, 8, 19])
def test_batches_of_any_size_fit(rows: int, tmp_path: Path) -> None:
    model = _saved(tmp_path / "model.trtp")
    infer = BatchInference(tmp_path / "model.trtp", columns={"input": "x"}, outputs=["y"])
    x = np.random.default_rng(0).standard_normal((rows, FEATURES)).astype(np.float32)
    found = infer({"x": x, "id": np.arange(rows)})
    assert list(found) == ["id", "y"]
    np.testing.assert_allclose(found["y"], model(torch.from_numpy(x)).numpy(), rtol=1e-5, atol=1e-6)


def test_wrong_columns_are_named(tmp_path: Path) -> None:
    _saved(tmp_path / "model.trtp")
    with pytest.raises(InputError, match="no input 'y'"):
        BatchInference(tmp_path / "model.trtp", columns={"y": "x"})
    with pytest.raises(InputError, match="no column 'input'"):
        BatchInference(tmp_path / "model.trtp")({"x": np.zeros((2, FEATURES))})
    with pytest.raises(InputError, match="2 columns are named for 1 result"):
        BatchInference(tmp_path / "model.trtp", outputs=["a", "b"])({"input": np.zeros((2, FEATURES))})


def test_rows_that_a_strangers_program_asks_for_are_bounded(tmp_path: Path) -> None:
    """A batch is filled up to the least rows that the file says: some kilobytes took gigabytes."""
    rows = np.ones((3, 4), np.float32)
    infer = BatchInference(hostile_files.of_rows(1 << 10, 1 << 10, 1 << 10).write(tmp_path / "some.trtp"))
    infer.check()
    assert infer({"x0": rows})["output"].tolist() == rows.tolist()
    path = hostile_files.of_rows(1 << 26, 1 << 26, 1 << 40).write(tmp_path / "many.trtp")
    infer = BatchInference(path)
    for act in (infer.check, lambda: infer({"x0": rows})):
        with pytest.raises(InputError, match=r"takes inputs of 1.074e\+09 bytes or more"):
            act()
    with pytest.raises(InputError, match=r"536870912 bytes are made up at most"):
        infer({"x0": rows})
    with pytest.raises(InputError, match="the program takes no rows"):
        BatchInference(hostile_files.of_rows(0, 0, 0).write(tmp_path / "none.trtp"))


def test_columns_are_numbers_that_the_program_takes_and_may_be_read_only(tmp_path: Path) -> None:
    class Counts(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    given = Input(min_shape=(1, 2), opt_shape=(4, 2), max_shape=(8, 2), dtype=torch.int64, name="x")
    trt_runtime.save(trt.compile(Counts().eval(), arg_inputs=(given,), min_block_size=1), tmp_path / "model.trtp")
    infer = BatchInference(tmp_path / "model.trtp")
    x = np.array([[1.0, 2.0]])  # as a column is where a row lacks one
    x.flags.writeable = False  # as Ray hands out what lies in its store
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(infer({"x": x})["output"], [[2, 4]])
    for wrong, said in (
        (np.array([[1.5, 2.0]]), "'x' holds fractions, and the input 'x' is int64"),
        (np.array([[1.0, np.nan]]), "holds fractions"),
        (np.array([["a", "b"]]), "'x' is an array of str, not numbers"),
    ):
        with pytest.raises(InputError, match=said):
            infer({"x": wrong})


def test_texts_take_no_room_and_numbers_that_an_input_has_not_are_told(tmp_path: Path) -> None:
    """Each text of an array has the room of the longest one; integers wrapped around, imaginary parts went."""
    parts = hostile_files.of_rows(1, 2, 4)
    parts.graph["signature"]["leaves"][0]["tensor"] = "int32"
    parts.graph["steps"][0]["result"]["tensor"] = "int32"
    infer = BatchInference(parts.write(tmp_path / "model.trtp"))
    texts = ["a" * (1 << 12), *["b"] * (1 << 14)]
    tracemalloc.start()
    try:
        for act in (
            lambda: infer.row({"x0": texts}),
            lambda: infer.row({"x0": [1, 2, 3, 4], "other": texts}),
            lambda: infer({"x0": np.array(texts, dtype=object)}),
        ):
            with contextlib.suppress(InputError):
                act()
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
    finally:
        tracemalloc.stop()
    for wrong in ([1, 2, 3, 1 << 40], [1, 2, 3, "4"], [1, 2, 3, 4j], [1, 2, 3, 0.5], [1, 2, 3, None], {"a": 1}):
        with pytest.raises(InputError):
            infer.row({"x0": wrong})
    assert infer.row({"x0": [1, 2.0, True, -4]})["x0"].tolist() == [1, 2, 1, -4]


def test_columns_of_other_forms_are_refused_and_numbers_do_not_wrap_around(tmp_path: Path) -> None:
    parts = hostile_files.of_rows(1, 2, 4)
    for entry in (parts.graph["signature"]["leaves"][0], parts.graph["steps"][0]["result"]):
        entry["tensor"] = "int64"
    infer = BatchInference(parts.write(tmp_path / "model.trtp"))
    ragged = np.array([[1, 2, 3, 4], [1]], dtype=object)
    wrong: list[tuple[Any, str]] = [
        ({"x0": ragged}, "not numbers"),
        ({"x0": np.int64(1)}, "one number, not one for each row"),
        ({"x0": np.full((1, 4), 1 << 63, np.uint64)}, "other numbers, and the input 'x0' is int64"),
        ({7: 1}, r"its columns are 7"),
        ("x0", "a batch has arrays by column, and this is a str"),
    ]
    for batch, said in wrong:
        with pytest.raises(InputError, match=said):
            infer(batch)
    with pytest.raises(InputError, match="not numbers"):
        infer.row({"x0": ragged})
    assert infer({"x0": np.empty(0, dtype=object), "id": np.arange(0)}).keys() == {"id"}


@pytest.mark.parametrize("kind", ["bfloat16", "float8_e4m3fn"])
def test_floats_that_numpy_has_not_are_shown_as_float32(kind: str, tmp_path: Path) -> None:
    parts = hostile_files.of_rows(1, 2, 4)
    for entry in (parts.graph["signature"]["leaves"][0], parts.graph["steps"][0]["result"]):
        entry["tensor"] = kind
    parts.graph["steps"][0]["name"] = "aten::clone"
    infer = BatchInference(parts.write(tmp_path / "model.trtp"))
    row = infer.row({"x0": [1.0, 1.01, -2.0, 0.5]})["x0"]
    found = infer({"x0": row[None]})["output"]
    assert row.dtype == found.dtype == np.float32 and row.tolist() == found[0].tolist() == [1.0, row[1], -2.0, 0.5]


def test_a_request_that_fails_fails_alone(tmp_path: Path) -> None:
    """Places beyond a table failed all requests that came at the same time."""
    rows = hostile_files.tensor_type(torch.float32, "s0_0", 3)
    steps = [hostile_files.operator("embedding", [hostile_files.value(1), hostile_files.value(0)], rows)]
    table = torch.arange(12.0).reshape(4, 3)
    parts = hostile_files.program([(torch.int64, (-8,))], steps, hostile_files.value(2), {"table": table})
    infer = BatchInference(parts.write(tmp_path / "model.trtp"))
    wanted = [1, 3, 4, 0, -1]
    answers = ray_integration._answers([(infer, infer.row({"x0": at})) for at in wanted])
    for at, answer in zip(wanted, answers, strict=True):
        if not 0 <= at < 4:
            assert isinstance(answer, ExecutionError)
        else:
            assert isinstance(answer, dict) and answer["output"].tolist() == table[at].tolist()


def test_a_server_answers_with_numbers_that_are_not_finite_and_complex_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"y": np.array([np.nan, np.inf, 1.5], np.float32), "z": np.array(1 + 2j)}

    async def answered(_: Any) -> dict[str, Any]:
        return found

    class Request:
        async def json(self) -> Any:
            return {"input": [0.0] * FEATURES}

    monkeypatch.setattr(pytest.importorskip("ray.serve"), "batch", lambda **_: lambda _: answered)
    _saved(tmp_path / "model.trtp")
    response = asyncio.run(ProgramServer(str(tmp_path / "model.trtp"))(Request()))
    assert (response.status_code, response.media_type) == (200, "application/json")
    answer = json.loads(response.body)
    assert math.isnan(answer["y"][0]) and answer["y"][1:] == [math.inf, 1.5] and answer["z"] == [1.0, 2.0]


def test_a_server_of_a_program_that_does_not_run_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: BatchInference) -> None:
        raise ExecutionError("the device is gone")

    pytest.importorskip("ray.serve")
    monkeypatch.setattr(BatchInference, "check", broken)
    _saved(tmp_path / "model.trtp")
    with pytest.raises(ExecutionError, match="the device is gone"):
        ProgramServer(str(tmp_path / "model.trtp"))


def test_what_no_replica_could_load_is_refused_before_ray_stops_those_that_run(tmp_path: Path) -> None:
    pytest.importorskip("ray.serve")
    path = tmp_path / "model.trtp"
    _saved(path)
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 255
    (tmp_path / "damaged.trtp").write_bytes(damaged)
    (tmp_path / "other.trtp").write_bytes(b"GGUF" + bytes(60))

    def to(config: dict[str, str]) -> Any:
        return deployment(path, deployment_options={"user_config": config})

    for name, error in (("none", InputError), ("damaged", PlanError), ("other", PlanError)):
        wrong = str(tmp_path / f"{name}.trtp")
        for serve_it in (lambda: deployment(wrong), lambda: to({"path": wrong})):  # noqa: B023
            with pytest.raises(error, match=f"{name}.trtp"):
                serve_it()
    with pytest.raises(InputError, match="did you mean 'path'"):
        to({"paths": str(path)})
    for config in (3, {"path": 3}):
        with pytest.raises(InputError, match="user_config is"):
            to(config)  # type: ignore[arg-type]
    trt_runtime.save_sharded(trt.load(path), tmp_path / "sharded")
    for folder, reason in ((tmp_path, "this is a folder"), (tmp_path / "sharded", "for each of several")):
        with pytest.raises(InputError, match=reason):
            deployment(folder)
    assert to({"path": str(path)}) is not None
    assert deployment("/a folder of other machines/model.trtp") is not None


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"max_batch_size": 0}, "max_batch_size is 0"),
        ({"max_batch_size": "8"}, "max_batch_size"),
        ({"batch_wait_seconds": -1.0}, "batch_wait_seconds is -1.0"),
        ({"batch_wait_seconds": math.nan}, "batch_wait_seconds is nan"),
        ({"columns": "input"}, "columns"),
        ({"columns": {"x": "input"}}, "no input 'x'"),
        ({"outputs": "y"}, "outputs"),
        ({"operators": 3}, "operators"),
        ({"isolated": True}, "a process of its own"),
        ({"replicas": 2}, "unexpected keyword argument 'replicas'"),
    ],
    ids=str,
)
def test_options_that_fail_every_replica_are_refused_at_the_door(
    options: dict[str, Any], told: str, tmp_path: Path
) -> None:
    """Ray stops the replicas that answer once the new ones have failed."""
    pytest.importorskip("ray.serve")
    _saved(tmp_path / "model.trtp")
    for make in (deployment, ProgramServer):
        with pytest.raises((InputError, TypeError), match=told):
            make(str(tmp_path / "model.trtp"), **options)


def test_requests_keep_the_program_that_they_came_to_and_spoil_no_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve = pytest.importorskip("ray.serve")
    monkeypatch.setattr(serve, "batch", lambda **_: lambda together: together)  # Ray's wants a replica around it
    model, twice = _saved(tmp_path / "one.trtp"), _saved(tmp_path / "two.trtp", 2.0)
    x = torch.randn(5, FEATURES)
    server = ProgramServer(str(tmp_path / "one.trtp"), max_batch_size=5)

    async def come_and_change() -> list[Any]:
        waiting = [(server._infer, {"input": row.numpy()}) for row in x[:3]]
        with pytest.raises(InputError, match="did you mean 'path'"):
            await server.reconfigure({"paths": str(tmp_path / "two.trtp")})
        await server.reconfigure({"path": str(tmp_path / "two.trtp")})
        await server.check_health()
        waiting.append((server._infer, {"input": x[3].numpy()}))
        broken = BatchInference(tmp_path / "one.trtp")
        monkeypatch.setattr(broken, "_program", Broken())
        server._infer = broken
        with pytest.raises(ExecutionError, match="the device is gone"):
            await server.check_health()
        found: list[Any] = await server._together([*waiting, (broken, {"input": x[4].numpy()})])  # type: ignore[arg-type]
        return found

    class Broken:
        _bounds = None

        def __call__(self, *_: Any) -> Any:
            raise ExecutionError("the device is gone")

    *found, failed = asyncio.run(come_and_change())
    for answer, row in zip(found, [*model(x[:3]), twice(x[3])], strict=True):
        np.testing.assert_allclose(answer["output"], row.numpy(), rtol=1e-5, atol=1e-6)
    assert isinstance(failed, ExecutionError)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Ray on this machine, for the tests of this file; it hands out a GPU, whether there is one or not."""
    ray = pytest.importorskip("ray")
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    ray.init(num_cpus=4, num_gpus=1, include_dashboard=False, object_store_memory=100 << 20, log_to_driver=False)
    yield ray
    ray.shutdown()


class Mortal(BatchInference):
    """Dies in the midst of its work, once."""

    def __init__(self, path: str, mark: str, **options: Any) -> None:
        super().__init__(path, **options)
        self._mark, self._batches = mark, 0
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "0", "not the GPU that Ray hands out"

    def __call__(self, batch: Any) -> dict[str, Any]:
        self._batches += 1
        if self._batches == 3:
            try:
                os.close(os.open(self._mark, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass  # the other actor has died
            else:
                os._exit(1)
        return super().__call__(batch)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_rows_of_an_actor_that_dies_are_neither_lost_nor_doubled(cluster: Any, tmp_path: Path) -> None:
    model = _saved(tmp_path / "model.trtp")
    parts = np.split(np.arange(2000 * FEATURES, dtype=np.float32).reshape(-1, FEATURES) / 1000, 20)
    found = cluster.data.from_numpy(parts).map_batches(
        Mortal,
        fn_constructor_args=[str(tmp_path / "model.trtp"), str(tmp_path / "died")],
        fn_constructor_kwargs={"columns": {"input": "data"}, "outputs": ["y"]},
        batch_size=50,
        compute=cluster.data.ActorPoolStrategy(size=2),
        num_gpus=0.5,
    )
    rows = np.stack([row["y"] for row in found.take_all()])
    assert (tmp_path / "died").exists()
    x = torch.arange(2000 * FEATURES, dtype=torch.float32).reshape(-1, FEATURES) / 1000
    order = np.argsort(rows[:, 0])
    wanted = model(x).numpy()
    np.testing.assert_allclose(rows[order], wanted[np.argsort(wanted[:, 0])], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_deployment_batches_answers_and_takes_a_new_program(cluster: Any, tmp_path: Path) -> None:
    from ray import serve

    model = _saved(tmp_path / "one.trtp")
    twice = _saved(tmp_path / "two.trtp", 2.0)
    serve.start(http_options={"port": 18231})
    try:
        serve.run(deployment(tmp_path / "one.trtp", columns={"input": "x"}))
        x = torch.randn(12, FEATURES)
        with ThreadPoolExecutor(12) as pool:
            answers = list(pool.map(_ask, [{"x": row} for row in x.tolist()]))
        torch.testing.assert_close(torch.tensor([answer["output"] for answer in answers]), model(x))
        for wrong in ({"x": [1.0]}, "{", {"x": ["a"] * FEATURES}):
            with pytest.raises(urllib.error.HTTPError, match="400"):
                _ask(wrong)
        changed = {"user_config": {"path": str(tmp_path / "two.trtp")}}
        is_changed = threading.Event()

        def ask_on(row: torch.Tensor) -> None:
            """Asks without a pause while the program changes: no request fails, each is answered by one of both."""
            old, new = model(row), twice(row)
            while not is_changed.is_set():
                found = torch.tensor(_ask({"x": row.tolist()})["output"])
                assert torch.allclose(found, old, atol=1e-5) or torch.allclose(found, new, atol=1e-5)

        with ThreadPoolExecutor(3) as pool:
            asking = [pool.submit(ask_on, row) for row in x[:3]]
            try:
                serve.run(deployment(tmp_path / "one.trtp", columns={"input": "x"}, deployment_options=changed))
            finally:
                is_changed.set()
            assert [each.result() for each in asking] == [None] * 3
        torch.testing.assert_close(torch.tensor(_ask({"x": x[0].tolist()})["output"]), twice(x[0]))
    finally:
        serve.shutdown()


PAGE = (Path(__file__).parent.parent / "docs/howto/ray.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.skipif("TRT_STRESS" not in os.environ, reason="takes many seconds; nox -s stress runs it")
def test_what_the_page_shows_runs(cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ray import serve

    rows, service = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    (command,) = re.findall(r"```sh\n(curl.*?)```", PAGE, re.S)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(rows.replace("/tmp/", f"{tmp_path}/"), "infer.py", "exec"), names)
    assert capsys.readouterr().out.strip().endswith("4000")
    serve.start(http_options={"port": 18232})
    try:
        exec(compile(service.replace("/tmp/", f"{tmp_path}/").replace(": 2", ": 1"), "service.py", "exec"), {})
        run = command.replace("localhost:8000", "127.0.0.1:18232")
        answer = subprocess.run(run, shell=True, capture_output=True, text=True, check=True, timeout=60).stdout
        wanted = names["model"](torch.tensor([0.1, 0.2, 0.3, 0.4]))
        torch.testing.assert_close(torch.tensor(json.loads(answer)["output"]), wanted)
    finally:
        serve.shutdown()


def _ask(body: Any) -> Any:
    request = urllib.request.Request(
        "http://127.0.0.1:18231/",
        (body if isinstance(body, str) else json.dumps(body)).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())
