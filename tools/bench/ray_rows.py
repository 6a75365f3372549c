"""Rows a second that a saved program takes in Ray Data, by number of actors, and the memory that all of it needs.

`python -m tools.bench.ray_rows [--rows N] [--actors N ...] [--kill] [--results FILE]`

A perceptron of 16 features runs on rows that are made as they are read, and results are counted and added up as they
come, so that nothing has a reason to hold them all. With `--kill` one actor is killed after a third of the rows. Every
row carries its number, and their sum tells a row that is lost or comes twice. Prints a line of JSON for each number of
actors: rows a second from the first batch on, the memory (resident, MiB) of the driver before and at its most, and the
most of an actor.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
import torch
from rich.console import Console
from torch import nn

import trt_frontends as trt
import trt_runtime
from trt_frontends.integrations.ray import BatchInference

_FEATURES: Final = 16
_BATCH: Final = 1024
_MIB: Final = 1 << 20


class Inference(BatchInference):
    """The same under a name by which its processes are found."""


class Memory(threading.Thread):
    """Watches the resident memory of this process and of the actors.

    Attributes:
        driver, actor: The most of the driver and of one actor, in MiB.
        actors: Process ids of the actors that were seen last.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.driver = self.actor = 0
        self.first_driver = 0
        self.actors: list[int] = []
        self._is_over = threading.Event()

    def run(self) -> None:
        """Looks four times a second."""
        own = psutil.Process()
        self.first_driver = own.memory_info().rss // _MIB
        while not self._is_over.wait(0.25):
            self.driver = max(self.driver, own.memory_info().rss // _MIB)
            found = []
            for process in psutil.process_iter(["cmdline", "memory_info"]):
                line = " ".join(process.info["cmdline"] or ())
                if line.startswith("ray::") and Inference.__name__ in line and process.info["memory_info"]:
                    found.append(process.pid)
                    self.actor = max(self.actor, process.info["memory_info"].rss // _MIB)
            self.actors = found

    def stop(self) -> None:
        """Ends it."""
        self._is_over.set()
        self.join()


def save_program(path: Path) -> None:
    """Compiles and saves a perceptron that takes up to 1024 rows."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(_FEATURES, 64), nn.ReLU(), nn.Linear(64, 4)).eval().requires_grad_(False)
    given = trt.Input(
        min_shape=(1, _FEATURES), opt_shape=(_BATCH, _FEATURES), max_shape=(_BATCH, _FEATURES), name="input"
    )
    trt_runtime.save(trt.compile(model, arg_inputs=(given,), min_block_size=1), path)


def rows_of(batch: dict[str, Any]) -> dict[str, Any]:
    """Makes rows of numbers."""
    number = batch["id"]
    x = np.sin(number[:, None] * 0.001 + np.arange(_FEATURES)).astype(np.float32)
    return {"number": number, "x": x}


def measure(ray: Any, path: Path, rows: int, actors: int, *, kill: bool) -> dict[str, Any]:
    """Runs all rows through a pool of actors.

    Raises:
        RuntimeError: A row is lost or came twice.
    """
    data = ray.data.range(rows, override_num_blocks=max(rows // 20_000, 1)).map_batches(rows_of, batch_size=_BATCH)
    results = data.map_batches(
        Inference,
        fn_constructor_args=[str(path)],
        fn_constructor_kwargs={"columns": {"input": "x"}, "outputs": ["y"]},
        batch_size=_BATCH,
        compute=ray.data.ActorPoolStrategy(size=actors),
    )
    memory = Memory()
    memory.start()
    seen = first = total = killed = 0
    started = begun = time.perf_counter()
    try:
        for batch in results.iter_batches(batch_size=8 * _BATCH):
            if not seen:
                begun, first = time.perf_counter(), len(batch["number"])
            seen += len(batch["number"])
            total += int(batch["number"].sum())
            if kill and not killed and seen > rows // 3 and memory.actors:
                killed = memory.actors[0]
                os.kill(killed, signal.SIGKILL)
    finally:
        memory.stop()
    if (seen, total) != (rows, rows * (rows - 1) // 2):
        raise RuntimeError(f"{seen} rows came back of {rows}, and their numbers add up to {total}")
    ended = time.perf_counter()
    return {
        "actors": actors,
        "rows": rows,
        "seconds": round(ended - started, 1),
        "rows a second": round((rows - first) / max(ended - begun, 1e-9)),
        "driver MiB": [memory.first_driver, memory.driver],
        "actor MiB": memory.actor,
        "killed": bool(killed),
    }


def main() -> None:
    """Measures each number of actors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--actors", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--results", type=Path)
    asked = parser.parse_args()
    import ray  # costly, and an extra

    console = Console(soft_wrap=True)
    ray.init(
        num_cpus=max(asked.actors) + 2, include_dashboard=False, object_store_memory=200 << 20, log_to_driver=False
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.trtp"
        save_program(path)
        for actors in asked.actors:
            told = measure(ray, path, asked.rows, actors, kill=asked.kill)
            console.print(json.dumps(told), highlight=False)
            if asked.results is not None:
                with asked.results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(told) + "\n")
    ray.shutdown()


if __name__ == "__main__":
    main()
