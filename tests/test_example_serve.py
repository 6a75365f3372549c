"""The example service answers many clients at once, on the loopback address, and refuses what does not fit."""

from __future__ import annotations

import argparse
import ast
import json
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from script_module import module_at
from torch import nn

import trt_frontends
from trt_frontends import Input

pytest.importorskip("starlette")
uvicorn = pytest.importorskip("uvicorn")
httpx = pytest.importorskip("httpx")
pytest.importorskip("prometheus_client")
tensors = pytest.importorskip("safetensors.torch")

EXAMPLE = Path(__file__).parents[1] / "examples" / "serve" / "serve.py"
REQUESTS, CLIENTS = 200, 8


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def url(model: nn.Module, tmp_path_factory: Any) -> Iterator[str]:
    path = tmp_path_factory.mktemp("serve") / "model.trt"
    rows = Input(min_shape=(1, 16), opt_shape=(4, 16), max_shape=(32, 16))
    compiled = trt_frontends.compile(model, arg_inputs=(rows,), min_block_size=1)
    trt_frontends.save(compiled, path, arg_inputs=(rows,))
    service = module_at(EXAMPLE).Service(path, threads=4, waiting=CLIENTS)
    config = uvicorn.Config(service.app(), host="127.0.0.1", port=0, log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        deadline = time.monotonic() + 60
        while not server.started and time.monotonic() < deadline and thread.is_alive():
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(60)


def test_many_clients_at_once(url: str, model: nn.Module) -> None:
    def client(seed: int) -> int:
        generator = torch.Generator().manual_seed(seed)
        with httpx.Client(base_url=url, timeout=60) as session:
            for _ in range(REQUESTS // CLIENTS):
                x = torch.randn(int(torch.randint(1, 33, (), generator=generator)), 16, generator=generator)
                answer = session.post("/predict", content=tensors.save({"input": x}))
                assert answer.status_code == 200, answer.text
                torch.testing.assert_close(tensors.load(answer.content)["output"], model(x))
        return REQUESTS // CLIENTS

    with ThreadPoolExecutor(CLIENTS) as pool:
        assert sum(pool.map(client, range(CLIENTS))) == REQUESTS


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (tensors.save({"input": torch.ones(33, 16)}), 422, "is 33"),
        (tensors.save({"input": torch.ones(2, 16, dtype=torch.int32)}), 422, "int32"),
        (tensors.save({"other": torch.ones(2, 16)}), 422, "other"),
        (b"not tensors", 422, ""),
    ],
)
def test_requests_that_do_not_fit(url: str, body: bytes, status: int, message: str) -> None:
    answer = httpx.post(f"{url}/predict", content=body)
    assert answer.status_code == status
    assert message in answer.json()["error"]
    assert httpx.get(f"{url}/health").json() == {"status": "ready"}


def test_metrics_and_the_program_are_told(url: str) -> None:
    assert httpx.post(f"{url}/predict", content=tensors.save({"input": torch.ones(2, 16)})).status_code == 200
    assert httpx.post(f"{url}/predict", content=b"").status_code == 422
    told = httpx.get(f"{url}/metrics")
    assert told.headers["content-type"].startswith("text/plain")
    values = dict(line.rsplit(" ", 1) for line in told.text.splitlines() if not line.startswith("#"))
    assert float(values['predict_requests_total{status="200"}']) >= 1
    assert float(values['predict_requests_total{status="422"}']) >= 1
    assert float(values["predict_seconds_count"]) >= 2 and float(values["predict_running"]) == 0
    program = httpx.get(f"{url}/program").json()
    assert program["inputs"][0]["shape"] == [{"name": "input.shape[0]", "min": 1, "opt": 4, "max": 32}, 16]
    assert program["outputs"][0]["name"] == "output"


def test_the_dockerfile_has_what_the_service_needs() -> None:
    """As far as that can be told without docker: its instructions, what it copies, and what it installs."""
    folder = EXAMPLE.parent
    text = (folder / "Dockerfile").read_text().replace("\\\n", " ")
    steps = [line.split(maxsplit=1) for line in text.splitlines() if line.strip() and not line.startswith("#")]
    known = {"FROM", "WORKDIR", "COPY", "RUN", "USER", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT"}
    assert steps[0][0] == "FROM" and {name for name, _ in steps} <= known
    assert "root" not in [what for name, what in steps if name == "USER"]
    copied = [source for name, what in steps if name == "COPY" for source in what.split()[:-1]]
    assert {"serve.py", "requirements.txt"} <= set(copied) and all((folder / source).is_file() for source in copied)
    (entry,) = (json.loads(what) for name, what in steps if name == "ENTRYPOINT")
    assert entry[:2] == ["python", "serve.py"]
    parsed = _parse_arguments([*entry[2:], "/model.trtp"])
    assert (parsed.host, str(parsed.program)) == ("0.0.0.0", "/model.trtp")
    required = {re.split("[>=<]", line)[0] for line in (folder / "requirements.txt").read_text().split()}
    tree = ast.parse(EXAMPLE.read_text())
    imported = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    needed = imported - set(sys.stdlib_module_names) - {"torch", "trt_core"}  # which trt-runtime brings
    assert needed == {name.replace("-", "_") for name in required}


def _parse_arguments(arguments: list[str]) -> Any:
    found: list[Any] = []
    module = module_at(EXAMPLE)

    class Stop(Exception):
        pass

    def service(path: Path, **options: Any) -> None:
        raise Stop

    parse = argparse.ArgumentParser.parse_args

    def parse_args(self: argparse.ArgumentParser, args: Any = None, namespace: Any = None) -> Any:
        found.append(parse(self, args, namespace))
        return found[-1]

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stop):
        patch.setattr(module, "Service", service)
        patch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
        patch.setattr(torch, "set_num_threads", lambda count: None)
        module.main(arguments)
    return found[0]


def test_too_large_requests_are_refused_before_they_are_read(url: str) -> None:
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(f"POST /predict HTTP/1.1\r\nHost: {host}\r\nContent-Length: {1 << 40}\r\n\r\n".encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")
