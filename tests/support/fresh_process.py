"""Runs Python scripts in processes of their own, without paying for the import of PyTorch each time.

A server process imports the libraries once; every script runs in a fork of it. None of this workspace's packages is
imported there, so that a script finds them as any program would. Tests of what an import loads ask another server, that
has imported PyTorch alone; those of what happens before that start an interpreter themselves.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

PRELOADED = ("torch", "torch._dynamo", "torch.export", "torch._functorch.aot_autograd", "torch._functorch.compilers")
"""What most scripts that compile import: 1.5 of their 2 seconds."""


def run_python(
    script: str | Path,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float = 300.0,
    bare: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Runs a script as a program, and returns what it printed and how it ended.

    Args:
        script: Python source, or the path of a file of it.
        arguments: What `sys.argv` holds after the script.
        env: Environment variables beside those of this process; entries of its `PYTHONPATH` come first.
        cwd: Folder it runs in.
        timeout: Seconds after which it is killed.
        bare: Whether nothing is to be imported in its process but PyTorch.

    Raises:
        subprocess.TimeoutExpired: It took longer.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = script if isinstance(script, Path) else Path(folder, "script.py")
        if isinstance(script, str):
            path.write_text(script, encoding="utf-8")
        outputs = [Path(folder, name) for name in ("stdout", "stderr")]
        if hasattr(os, "fork"):
            request = {
                "arguments": [str(path), *arguments],
                "environment": {**os.environ, **(env or {})},
                "folder": str(cwd or Path.cwd()),
                "outputs": [str(output) for output in outputs],
            }
            status = _server("torch" if bare else ",".join(PRELOADED)).run(request, timeout)
            out, err = (output.read_text(encoding="utf-8", errors="replace") for output in outputs)
            return subprocess.CompletedProcess(request["arguments"], status, out, err)
        return subprocess.run(
            [sys.executable, str(path), *arguments],
            env={**os.environ, **(env or {})},
            cwd=cwd,
            timeout=timeout,
            capture_output=True,
            text=True,
            check=False,
        )


class _Server:
    """The process that scripts are forked from, one at a time."""

    def __init__(self, preloaded: str) -> None:
        self._turn = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, __file__, preloaded],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def run(self, request: Mapping[str, Any], timeout: float) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._turn:
            watch = threading.Timer(timeout, os.killpg, (self._process.pid, signal.SIGKILL))
            watch.start()
            try:
                self._process.stdin.write(json.dumps(request) + "\n")
                self._process.stdin.flush()
                answer = self._process.stdout.readline()
            finally:
                watch.cancel()
        if not answer:
            raise subprocess.TimeoutExpired(request["arguments"], timeout)
        return int(answer)


_running: dict[str, _Server] = {}


def _server(preloaded: str) -> _Server:
    if preloaded not in _running or not _running[preloaded].alive:
        _running[preloaded] = _Server(preloaded)
    return _running[preloaded]


def _serve() -> dict[str, Any] | None:
    """Answers requests until there are no more; in the fork of a request, returns that request."""
    for name in sys.argv[1].split(","):
        with contextlib.suppress(ImportError):  # a script that needs it says so itself
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        child = os.fork()
        if not child:
            request: dict[str, Any] = json.loads(line)
            return request
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        sys.stdout.write(f"{status}\n")
        sys.stdout.flush()
    return None


def _entries(path: str) -> Iterator[str]:
    return (entry for entry in path.split(os.pathsep) if entry)


def _become(request: Mapping[str, Any]) -> None:
    """Makes this process the program that was asked for, and runs it."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    for number, output in enumerate(request["outputs"], 1):
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, number)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.argv[:] = request["arguments"]
    first = [str(Path(sys.argv[0]).parent), *_entries(os.environ.get("PYTHONPATH", ""))]
    sys.path[:] = [*dict.fromkeys([*first, *sys.path[1:]])]
    importlib.invalidate_caches()
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__" and (_request := _serve()) is not None:
    _become(_request)
