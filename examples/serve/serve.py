"""Serves one saved program over HTTP, from threads. `requirements.txt` beside it says what that needs.

    python serve.py model.trtp --threads 4 --port 8000

`POST /predict` takes and returns tensors by name in the safetensors format, which holds nothing but numbers.
`GET /health` answers once the program is loaded and warm, `GET /metrics` tells Prometheus what was served.
`GET /program` says what the program takes and returns.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import trt_runtime
from trt_core import InputError, TrtError
from trt_runtime.command_line.commands import example_call, named_tensors

LARGEST_REQUEST = 64 << 20
"""Bytes of a request's body."""


class Service:
    """Answers requests with one program.

    Engines may be called from any number of threads: each call gets an execution context of its own. So a pool of
    threads serves requests at the same time, and what it cannot take on is refused at once instead of waiting for ever.

    Args:
        path: The saved program.
        threads: Calls that run at the same time.
        waiting: Most requests that wait for a thread.
        device: Where inputs go.
    """

    def __init__(self, path: Path, *, threads: int = 2, waiting: int = 32, device: str = "cpu") -> None:
        self._program = trt_runtime.load(path)
        self._device = device
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="predict")
        self._free = threads + waiting
        args, kwargs = example_call(self._program, None, seed=0)
        self._program(*args, **kwargs)  # sets up the engines, so that the first request is as quick as the others
        self._metrics = CollectorRegistry()
        self._requests = Counter("predict_requests", "Requests by status", ["status"], registry=self._metrics)
        self._seconds = Histogram("predict_seconds", "From request to response", registry=self._metrics)
        self._running = Gauge("predict_running", "Requests that run or wait", registry=self._metrics)

    def app(self) -> Starlette:
        """The application that a server runs."""
        return Starlette(
            routes=[
                Route("/predict", self._answer, methods=["POST"]),
                Route("/health", self._health),
                Route("/metrics", self._tell_metrics),
                Route("/program", self._tell_program),
            ],
        )

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ready"})

    async def _tell_metrics(self, request: Request) -> Response:
        return Response(generate_latest(self._metrics), media_type=CONTENT_TYPE_LATEST)

    async def _tell_program(self, request: Request) -> Response:
        sides = {"inputs": self._program.inputs, "outputs": self._program.outputs}
        return JSONResponse({side: [spec.to_json() for spec in specs] for side, specs in sides.items()})

    async def _answer(self, request: Request) -> Response:
        with self._running.track_inprogress(), self._seconds.time():
            response = await self._predict(request)
        self._requests.labels(response.status_code).inc()
        return response

    async def _predict(self, request: Request) -> Response:
        if int(request.headers.get("content-length") or LARGEST_REQUEST + 1) > LARGEST_REQUEST:
            return _refuse(413, f"a request has at most {LARGEST_REQUEST} bytes, and says how many")
        if not self._free:
            return _refuse(503, "too many requests are waiting")
        self._free -= 1  # the event loop is one thread
        try:
            body = await request.body()
            result = await asyncio.get_running_loop().run_in_executor(self._threads, self._run, body)
        except (InputError, safetensors.SafetensorError) as error:
            return _refuse(422, str(error))
        except TrtError as error:
            return _refuse(500, error.what)
        finally:
            self._free += 1
        return Response(result, media_type="application/octet-stream")

    def _run(self, body: bytes) -> bytes:
        """Runs in a thread of the pool."""
        given: Mapping[str, torch.Tensor] = safetensors.torch.load(body)
        with torch.inference_mode():
            inputs = {name: value.to(self._device) for name, value in given.items()}
            outputs = named_tensors(self._program(**inputs))
            return safetensors.torch.save({name: value.cpu().contiguous() for name, value in outputs.items()})


def _refuse(status: int, message: str) -> Response:
    return JSONResponse({"error": message}, status_code=status)


def main(arguments: Any = None) -> None:
    """Runs the service until it is interrupted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path, help="a file that trt_runtime.save wrote")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--threads", type=int, default=2, help="calls that run at the same time")
    parser.add_argument("--device", default="cpu", help="where the program runs: cpu or cuda")
    parsed = parser.parse_args(arguments)
    torch.set_num_threads(1)  # the pool of threads keeps the processors busy
    service = Service(parsed.program, threads=parsed.threads, device=parsed.device)
    uvicorn.run(service.app(), host=parsed.host, port=parsed.port, log_level="warning")


if __name__ == "__main__":
    main()
