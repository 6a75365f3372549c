"""Saved programs on Ray: batches of a data set, an actor that is killed meanwhile, and a deployment."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import trt_frontends as trt
import trt_runtime
from trt_core import Input, InputError
from trt_frontends.integrations.ray import BatchInference, deployment

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


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Ray on this machine, for the tests of this file."""
    ray = pytest.importorskip("ray")
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=100 << 20, log_to_driver=False)
    yield ray
    ray.shutdown()


class Mortal(BatchInference):
    """Dies in the midst of its work, once."""

    def __init__(self, path: str, mark: str, **options: Any) -> None:
        super().__init__(path, **options)
        self._mark, self._batches = mark, 0

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
        with pytest.raises(urllib.error.HTTPError, match="400"):
            _ask({"x": [1.0]})
        changed = {"user_config": {"path": str(tmp_path / "two.trtp")}}
        serve.run(deployment(tmp_path / "one.trtp", columns={"input": "x"}, deployment_options=changed))
        torch.testing.assert_close(torch.tensor(_ask({"x": x[0].tolist()})["output"]), twice(x[0]))
    finally:
        serve.shutdown()


def _ask(body: Any) -> Any:
    request = urllib.request.Request(
        "http://127.0.0.1:18231/", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())
