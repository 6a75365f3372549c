"""The process of an isolated program: it confines itself, loads what it is given, and answers calls."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import resource
import socket
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import Any, Final

import torch

from trt_core import set_provider
from trt_core.errors import ExecutionError, TrtError
from trt_core.files import records
from trt_core.files.opening import map_descriptor
from trt_core.limits import CallLimits
from trt_core.log import logger
from trt_core.nesting import with_leaves
from trt_runtime.isolation import confinement
from trt_runtime.isolation.messages import (
    MOST_RECORDS,
    MOST_TEXT,
    Arena,
    Ready,
    decode,
    encode,
    place_tensors,
    read_places,
    receive,
    send,
)
from trt_runtime.program.load_options import LoadOptions
from trt_runtime.program.loaded_program import LoadedProgram, said_by
from trt_runtime.program.loading import program_from_memory
from trt_runtime.program.model_facts import ModelFacts

_MOST_FILES: Final = 256
_ADDRESSES, _DATA = 0, 5
"""Columns of `/proc/self/statm`: pages of addresses, and those that `RLIMIT_DATA` counts."""
_MODEL_ATTRIBUTES: Final = ("dtype", "config", "generation_config", "main_input_name")

_FILES: Final = (
    *("/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime", "/sys/devices/system", "/proc/self"),
    *("/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/sys/vm", "/dev/null", "/dev/urandom", "/dev/random"),
)
_GPU_FILES: Final = ("/proc/driver/nvidia", "/proc/devices", "/sys/module", "/sys/bus/pci")


def main() -> None:
    """Serves the socket whose descriptor is the last argument."""
    channel = socket.socket(fileno=int(sys.argv[-1]))
    first, (file,) = receive(channel, with_descriptors=True)
    worker = _Worker(channel)
    try:
        worker.begin(first, file)
    except BaseException as error:
        worker.tell(error)
        return
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            worker.answer()


class _Records(logging.Handler):
    """Keeps what is logged until the caller can be told."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[list[Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if len(self.kept) < MOST_RECORDS:
            self.kept.append([record.levelno, record.getMessage()[:MOST_TEXT]])

    def take(self) -> list[list[Any]]:
        taken, self.kept = self.kept, []
        return taken


class _Worker:
    """Answers one caller.

    Args:
        channel: To the caller.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._records = _Records()
        self._arenas: dict[str, Arena] = {}
        self._program: LoadedProgram | None = None

    def begin(self, options: Mapping[str, Any], file: int) -> None:
        """Gives up what it can do without, and loads the program."""
        tempfile.tempdir = os.sep  # modules ask for a folder when they are imported, and none would be found
        kept = _confine(options)
        logger.addHandler(self._records)
        logger.propagate = False
        logger.setLevel(options["log_level"])
        torch.set_num_threads(options["threads"])
        torch.set_grad_enabled(False)
        limits = decode(options["limits"], ())
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            content = map_descriptor(file, options["name"], "a saved program", "trt_runtime.save", copy=False)
            given = LoadOptions(
                operators=options["operators"],
                trust=options["trust"],
                allow_host_code=options["allow_host_code"],
                data_dependent_elements=options["data_dependent_elements"],
                device=options["device"],
                limits=None if limits is None else CallLimits(**limits),
            )
            self._program = program_from_memory(content, given)
        os.close(file)
        gc.collect()
        gc.freeze()
        program = self._program
        attributes = {name: value for name in _MODEL_ATTRIBUTES if (value := said_by(program, name)) is not None}
        ready = Ready(
            confined=tuple(kept),
            device=said_by(program, "device"),
            inputs=said_by(program, "inputs"),
            outputs=said_by(program, "outputs"),
            meta=program.meta,
            facts=ModelFacts(attributes=with_leaves(attributes, lambda leaf: leaf)),
            shown=program.extra_repr(),
            warnings=tuple(str(one.message) for one in caught),
        )
        send(self._channel, {"ready": records.write(ready), "logs": self._records.take()})

    def answer(self) -> None:
        """Answers one request."""
        message, descriptors = receive(self._channel, with_descriptors=True)
        if message["do"] == "memory":
            before = self._arenas.pop(message["for"], None)
            if before is not None:
                before.close()
            is_private = message["for"] == "inputs"  # of which the caller lets nobody change anything
            self._arenas[message["for"]] = Arena(descriptors[0], message["size"], is_private=is_private)
            return
        try:
            self._call(message) if message["do"] == "call" else self._example(message)
        except (EOFError, BrokenPipeError):
            raise
        except BaseException as error:
            if _gpu_is_usable():
                self.tell(error)
                return
            self.tell(error, ends=True)
            raise SystemExit("the use of the GPU has ended") from error

    def _call(self, message: Mapping[str, Any]) -> None:
        assert self._program is not None
        tensors = self._inputs(message)
        args, kwargs = decode(message["args"], tensors), decode(message["kwargs"], tensors)
        before = [tensor._version for tensor in tensors]
        result = self._program(*args, **kwargs)
        after = [tensor._version for tensor in tensors]
        written = [number for number, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]]
        self._reply(result, tensors, written)
        if written:
            self._arenas["inputs"].forget()

    def _example(self, message: Mapping[str, Any]) -> None:
        from trt_runtime.command_line.commands import example_call

        assert self._program is not None
        given = decode(message["given"], self._inputs(message))
        args, kwargs = example_call(self._program, given, message["seed"], decode(message["shapes"], ()))
        self._reply((args, kwargs), [], [])

    def _inputs(self, message: Mapping[str, Any]) -> list[torch.Tensor]:
        assert self._program is not None
        tensors = []
        for place in read_places(message["tensors"]):
            tensor = self._arenas["inputs"].at(place)
            tensors.append(tensor if place.device == "cpu" else tensor.to(said_by(self._program, "device")))
        return tensors

    def _reply(self, result: Any, inputs: list[torch.Tensor], written: list[int]) -> None:
        tensors: list[torch.Tensor] = []
        value = encode(result, tensors)
        count = len(tensors)
        tensors += [inputs[number] for number in written]
        places, size = place_tensors(tensors)
        if size and ("results" not in self._arenas or self._arenas["results"].size < size):
            send(self._channel, {"room": size})
            self.answer()
        for tensor, place in zip(tensors, places, strict=True):
            if tensor.numel():
                self._arenas["results"].at(place).copy_(tensor)
        tensors_at = [records.write(place) for place in places]
        reply = {"result": value, "tensors": tensors_at, "count": count, "written": written}
        send(self._channel, {**reply, "logs": self._records.take()})

    def tell(self, error: BaseException, *, ends: bool = False) -> None:
        """Tells the caller what went wrong, and whether this process ends by it."""
        if isinstance(error, TrtError):
            told = {"class": type(error).__name__, "what": error.what, "where": error.where, "why": error.why}
            told["hint"] = error.hint
        else:
            told = {"class": ExecutionError.__name__, "what": "the isolated program failed", "where": "", "hint": ""}
            told["why"] = f"{type(error).__name__}: {error}"
            if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
                told["hint"] = "give it more memory: isolated=Isolation(memory_bytes=...)"
        if ends:
            told["hint"] = "the GPU can no longer be used by the process; the next call begins with a new one"
        shown = {name: text[:MOST_TEXT] for name, text in told.items()}
        with contextlib.suppress(OSError):
            send(self._channel, {"error": shown, "ends": ends, "logs": self._records.take()})


def _gpu_is_usable() -> bool:
    """Whether this process has no GPU, or one that still computes: an assertion on it fails all that comes later."""
    try:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def _limit(kind: int, most: int) -> None:
    """Bounds this process, within what whoever started the caller has bounded it to already."""
    _, bound = resource.getrlimit(kind)
    most = most if bound == resource.RLIM_INFINITY else min(most, bound)
    resource.setrlimit(kind, (most, most))


def _confine(options: Mapping[str, Any]) -> list[str]:
    """Gives up everything that computing does not need; returns by what means."""
    confinement.die_with(options["parent"])
    os.umask(0o077)
    for limit, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 1 << 16),
        (resource.RLIMIT_NOFILE, _MOST_FILES),
    ):
        _limit(limit, most)
    confinement.give_up_privileges()
    uses_gpu = options["uses_gpu"]
    set_provider(options["provider"])
    devices = [f"/dev/{name}" for name in os.listdir("/dev") if name.startswith("nvidia")] if uses_gpu else []
    alone = len(os.listdir("/proc/self/task")) == 1  # a thread that is there already keeps its rights to files
    readable = [*_FILES, *(_GPU_FILES if uses_gpu else ()), *options["readable"]]
    has_landlock = confinement.restrict_files(readable, devices) and alone
    if uses_gpu:
        torch.cuda.init()
        torch.zeros(8, 8, device=options["device"] or "cuda").matmul(
            torch.zeros(8, 8, device=options["device"] or "cuda")
        )
    # drivers of GPUs reserve addresses that are no memory
    limit, column = (resource.RLIMIT_DATA, _DATA) if uses_gpu else (resource.RLIMIT_AS, _ADDRESSES)
    used = int(FilePath("/proc/self/statm").read_text(encoding="ascii").split()[column]) * resource.getpagesize()
    most = options["memory_bytes"] + used
    _limit(limit, most)
    if options["cpu_seconds"] is not None:
        _limit(resource.RLIMIT_CPU, options["cpu_seconds"])
    confinement.restrict_calls(opens_devices=uses_gpu and has_landlock)
    return ["seccomp", *["landlock"] * has_landlock]
