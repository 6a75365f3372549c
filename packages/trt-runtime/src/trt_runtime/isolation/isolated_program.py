"""Loaded programs that run in a process of their own: what the caller has of one."""

from __future__ import annotations

import contextlib
import functools
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from types import TracebackType
from typing import Any, Final, TypeVar

import torch
from torch import nn

from trt_core import errors
from trt_core.cached_property import cached_property
from trt_core.errors import ExecutionError, InputError, TrtError
from trt_core.files import records, typed
from trt_core.files.opening import is_read, map_descriptor, opened
from trt_core.files.replacing import Path, file_name
from trt_core.forked_lock import ForkedLock
from trt_core.log import logger
from trt_core.nesting import tensors_in
from trt_core.provider import current_provider
from trt_core.wording import message_of
from trt_runtime.internals import peek_interpreter_stack, tracing_state
from trt_runtime.isolation import confinement
from trt_runtime.isolation.messages import (
    MOST_RECORDS,
    MOST_TEXT,
    Arena,
    Place,
    Ready,
    decode,
    encode,
    place_tensors,
    read_places,
    receive,
    send,
)
from trt_runtime.program.document import program_from_bytes
from trt_runtime.program.graph import Program
from trt_runtime.program.input_memory import require_own_memory, require_own_places
from trt_runtime.program.input_reader import InputReader
from trt_runtime.program.interface import TensorSpec, notebook_html
from trt_runtime.program.load_options import LoadOptions, Trust
from trt_runtime.program.model_call import refuse_changes
from trt_runtime.program.model_facts import as_record
from trt_runtime.program_file import graph_in, read_sections

_C = TypeVar("_C", bound=Callable[..., Any])
_ERRORS: Final = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, TrtError)
}
_PASSED_ON: Final = ("LD_", "CUDA", "NVIDIA", "OMP_", "MKL_", "KMP_", "LANG", "LC_", "ATEN_", "TRT_PROVIDER")
_SCRIPT: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from trt_runtime.isolation.worker import main; main()"
)
_PACKAGES: Final = (
    "torch",
    "numpy",
    "trt_core",
    "trt_runtime",
    "trt_portable",
    "tensorrt",
    "triton",
    "sympy",
    "typing_extensions",
)
_LEAST_MEMORY: Final = 4 << 30
_STANDARD_ERROR: Final = 2
_SIGNALS: Final = {int(one): one.name for one in signal.Signals}  # those in between have no names


@dataclass(frozen=True)
class Isolation:
    """Limits of a process that runs a program.

    Attributes:
        memory_bytes: Memory that it may take beside what Python and PyTorch take; by default 4 GiB, or four times the
            size of the file, where that is more. On a GPU it bounds the memory of the host.
        call_seconds: How long a call may take; None for any time.
        load_seconds: How long starting the process and loading the program may take.
        cpu_seconds: Processor time that a process may take in all, whatever it does; None for any.
    """

    memory_bytes: int | None = None
    call_seconds: float | None = 300.0
    load_seconds: float = 300.0
    cpu_seconds: int | None = None


class _Untraced:
    """A method that Dynamo leaves alone, and that does not import Dynamo where nobody else has.

    Args:
        method: The method.
    """

    def __init__(self, method: Callable[..., Any]) -> None:
        functools.update_wrapper(self, method)  # type: ignore[arg-type]  # it becomes callable by `__get__`
        self._method = method
        self._disabled: Callable[..., Any] | None = None

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        method = self._method
        if "torch._dynamo" in sys.modules:
            if self._disabled is None:
                self._disabled = torch.compiler.disable(method)
            method = self._disabled
        return method if instance is None else method.__get__(instance, owner)


def _untraced(method: _C) -> _C:
    return _Untraced(method)  # type: ignore[return-value]  # it is called alike


class IsolatedProgram(nn.Module):
    """A saved program in a process of its own, called like the model that was compiled.

    Whatever the program does to its process, it is an `ExecutionError` here, and the next call has a new process. State
    that a program keeps from call to call is then what it was when it was loaded. Results are copies, and calls from
    several threads follow each other. A process that is forked has a process of the program of its own.

    Attributes:
        inputs, outputs, meta, device: See `LoadedProgram`.
        confined: What confines the process: `seccomp`, and `landlock` where the kernel has it.
    """

    def __init__(self, path: Path, isolation: Isolation, options: LoadOptions, copy: bool | None) -> None:
        super().__init__()
        why = confinement.why_not_here()
        if why:
            raise InputError("programs cannot be isolated here", why=why, hint="load it without isolated")
        self._turn = ForkedLock()
        self._isolation = isolation
        self._source = _Source(path, isolation, options, copy)
        self._running: _Running | None = None
        self._closed = False
        with self._turn:
            ready = self._start().ready
        self.confined, self.device, self.meta = ready.confined, ready.device, dict(ready.meta)
        self.inputs, self.outputs = ready.inputs, ready.outputs
        self._attributes, self._shown = ready.facts.attributes, ready.shown
        for text in ready.warnings:
            warnings.warn(message_of(text), stacklevel=3)
        self.eval()

    def __getattr__(self, name: str) -> Any:
        attributes = self.__dict__.get("_attributes", {})
        if name[:1] != "_" and name in attributes:  # others are Python's, and what it says is no method
            return as_record(attributes[name])
        return super().__getattr__(name)

    @_untraced
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program in its process.

        Args:
            args: What the model took by position.
            kwargs: What it took by name.

        Returns:
            What the model returned, as `LoadedProgram` does.

        Raises:
            InputError: An input does not fit, or cannot be sent; the message names it.
            ExecutionError: A step failed, the process ended, or a limit was reached.
        """
        if tracing_state() is not None or peek_interpreter_stack() is not None:
            raise InputError(
                "an isolated program cannot be traced, nor mapped or differentiated by torch.func",
                hint="load its file without isolated",
            )
        tensors: list[torch.Tensor] = []
        given = {"do": "call", "args": encode(args, tensors), "kwargs": encode(kwargs, tensors)}
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors_in((args, kwargs))):
            raise InputError("isolated programs compute no gradients", hint="call it under torch.no_grad()")
        return self._ask(given, tensors)

    def example_call(
        self,
        given: Mapping[str, torch.Tensor] | None,
        seed: int,
        shapes: Mapping[str, Sequence[int]] | None = None,
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Inputs for a call, made up at the sizes that the program was tuned for, but for those that are given.

        Args:
            given: Tensors by name of the input; None makes all of them up.
            seed: Of what is made up.
            shapes: Shapes of what is made up, by name of the input.

        Raises:
            InputError: Names are missing or unknown, or a shape has another rank than its input.
        """
        tensors: list[torch.Tensor] = []
        value = encode(None if given is None else dict(given), tensors)
        sizes = encode({name: list(shape) for name, shape in (shapes or {}).items()}, [])
        found = self._ask({"do": "example", "given": value, "seed": seed, "shapes": sizes}, tensors)
        match found:
            case (tuple() as args, dict() as kwargs) if all(isinstance(name, str) for name in kwargs):
                return args, kwargs
        raise ExecutionError("the process of the isolated program makes up no inputs", where=self._source.name)

    def close(self) -> None:
        """Ends the process. Calls are errors from then on."""
        with self._turn:
            self._closed = True
            if self._running is not None:
                self._running.end()
                self._running = None

    def __enter__(self) -> IsolatedProgram:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise InputError("an isolated program cannot be copied or pickled", hint="load its file again")

    def extra_repr(self) -> str:
        """Describes the inputs, and what confines the process."""
        return message_of(f"{self._shown}, confined by {' and '.join(self.confined)}")

    def _repr_html_(self) -> str:
        return notebook_html(f"IsolatedProgram{self.extra_repr()}", self.inputs, self.outputs)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> IsolatedProgram:
        """Refuses to move or cast, as a loaded program does; it moves to no other GPU either."""
        ends = [*self.inputs, *self.outputs]
        kinds = {(end.dtype, torch.device(end.device).type) for end in ends if isinstance(end, TensorSpec)}
        held = {(dtype, self.device if kind == self.device.type else torch.device(kind)) for dtype, kind in kinds}
        refuse_changes(held, fn, "an isolated program")
        return self

    def _start(self) -> _Running:
        """The process, started where there is none."""
        if self._closed:
            raise ExecutionError("the isolated program is closed", hint="load it again")
        running = self._running
        if running is None or running.owner != os.getpid():  # a fork must not talk to the process of its parent
            running = self._running = _Running(self._source, self._isolation)
        return running

    def _ask(self, message: dict[str, Any], tensors: Sequence[torch.Tensor]) -> Any:
        with self._turn:
            running = self._start()
            try:
                return running.call(message, tensors, self.device)
            except BaseException as error:
                if not isinstance(error, _Answered):
                    running.end()  # it is dead, late, or in the middle of something
                    self._running = None
                    raise
                raise error.error from None


class _Answered(Exception):
    """The process has answered with an error, and goes on."""

    def __init__(self, error: TrtError) -> None:
        super().__init__(str(error))
        self.error = error


def _require_apart(tensors: Sequence[torch.Tensor], written: Sequence[int]) -> None:
    """Sees whether the tensors that a program writes to lie apart from others, and each of their elements.

    Raises:
        InputError: They do not.
    """
    if not written:
        return
    require_own_memory([str(number) for number in range(len(tensors))], tensors, written)
    for number in written:
        require_own_places(str(number), tensors[number])


class _Source:
    """A program's file, and how it is loaded, as often as a process is started."""

    def __init__(self, path: Path, isolation: Isolation, options: LoadOptions, copy: bool | None) -> None:
        self.name = file_name(path)
        with opened(path) as file:
            status = os.fstat(file.fileno())
            content = map_descriptor(file.fileno(), self.name, "a saved program", "trt_runtime.save", copy=copy)
            # what is sealed stays what was verified, and is there as often as the process is started
            memory = _sealed(content) if is_read(status, copy) else os.dup(file.fileno())
        self.descriptor: int = memory
        weakref.finalize(self, os.close, memory)
        data = memoryview(content)
        sections = read_sections(data)
        device, limits = options.device, options.limits
        graph = graph_in(data, sections)
        self.memory_bytes = isolation.memory_bytes or max(_LEAST_MEMORY, 4 * len(content))
        self.options = {
            "name": self.name,
            "operators": list(options.operators),
            "trust": Trust(data, sections, options).is_given,  # the process has no keys
            "allow_host_code": options.allow_host_code,
            "data_dependent_elements": options.data_dependent_elements,
            "device": None if device is None else str(device),
            "uses_gpu": b'"cuda"' in graph,
            "memory_bytes": self.memory_bytes,
            "cpu_seconds": isolation.cpu_seconds,
            "limits": encode(None if limits is None else vars(limits), []),
            "threads": torch.get_num_threads(),
            "provider": current_provider().value,
            "readable": _code_folders(options.operators),
        }

    @cached_property
    def _program(self) -> Program:
        """What the file says, for which the process that runs it is not asked."""
        content = map_descriptor(self.descriptor, self.name, "a saved program", "trt_runtime.save", copy=False)
        data = memoryview(content)
        return program_from_bytes(graph_in(data, read_sections(data)))

    def written(self, message: Mapping[str, Any], count: int) -> frozenset[int]:
        """Numbers of the tensors of a message that the program writes to.

        Args:
            message: What is asked.
            count: How many tensors it comes with.

        Raises:
            PlanError: The file is no program.
            InputError: It takes no such inputs.
        """
        if message["do"] != "call":
            return frozenset()
        program, numbers = self._program, range(count)
        reader = InputReader(program.signature)
        flat = reader.flatten(decode(message["args"], numbers), decode(message["kwargs"], numbers))
        return frozenset(flat[index] for index in program.written if index < program.first_tensor)


class _Running:
    """A process that runs a program.

    Args:
        source: The program.
        limits: What the process may take.

    Attributes:
        owner: The process that has started it.
        ready: What it says of the program.
    """

    def __init__(self, source: _Source, limits: Isolation) -> None:
        self.owner = os.getpid()
        self._source, self._name, self._limits = source, source.name, limits
        self._most: int = source.memory_bytes
        self._channel, theirs = socket.socketpair()
        if theirs.fileno() <= _STANDARD_ERROR:  # this process has closed its own, and the other has its own there
            theirs = _moved(theirs)
        self._said = os.memfd_create("stderr", os.MFD_CLOEXEC)
        self._arenas: dict[str, Arena] = {}
        path = json.dumps([entry for entry in sys.path if entry])
        command = [sys.executable, "-I", "-B", "-c", _SCRIPT, path, str(theirs.fileno())]
        try:
            self._process = _begin(command, theirs.fileno(), self._said)
        except BaseException:
            self._channel.close()
            os.close(self._said)
            raise
        finally:
            theirs.close()
        self.end = weakref.finalize(self, _end, self._process, self._channel, self._said, self._arenas, self.owner)
        try:
            options = {**source.options, "parent": self.owner, "log_level": logger.getEffectiveLevel()}
            self._until(limits.load_seconds)
            self._send(options, [source.descriptor])
            self.ready = self._introduced()
        except _Answered as error:
            self.end()
            raise error.error from None
        except BaseException:
            self.end()
            raise

    def _introduced(self) -> Ready:
        """What the process says of the program once it is loaded."""
        with self._parsing():
            return records.read(Ready, self._receive().get("ready"), "ready")

    def call(self, message: Mapping[str, Any], tensors: Sequence[torch.Tensor], device: torch.device) -> Any:
        """Has the process compute, and returns what it answers.

        Raises:
            _Answered: It answers with an error, or writes to inputs that share memory, and goes on.
            TrtError: It answers with an error by which it ends.
            ExecutionError: It does not answer, or what is no answer.
        """
        self._until(self._limits.call_seconds)
        places, size = place_tensors(tensors)
        if size:
            self._provide("inputs", size)
        for tensor, place in zip(tensors, places, strict=True):
            if tensor.numel():
                self._arenas["inputs"].at(place).copy_(tensor)
        self._send({**message, "tensors": [records.write(place) for place in places]})
        with self._parsing():
            result, written = self._answer(len(tensors), device)
            may_write = self._source.written(message, len(tensors)) if written else ()
            for number, value in written:
                if number not in may_write:
                    raise ValueError(f"the program does not write to input {number}")
                there = tensors[number]
                if value.shape != there.shape or value.dtype is not there.dtype:
                    raise ValueError(f"input {number} cannot hold what was written to it")
            try:
                _require_apart(tensors, [number for number, _ in written])
            except InputError as error:  # of the caller's: the process goes on
                raise _Answered(error) from error
            for number, value in written:
                tensors[number].copy_(value)
        return result

    @contextlib.contextmanager
    def _parsing(self) -> Iterator[None]:
        """Takes whatever is wrong with an answer for the end of the process.

        Raises:
            ExecutionError: Something is.
        """
        try:
            yield
        except (TrtError, _Answered):
            raise
        except Exception as error:
            raise self._failed("the process of the isolated program answers nonsense", str(error)) from error

    def _answer(self, count: int, device: torch.device) -> tuple[Any, list[tuple[int, torch.Tensor]]]:
        """What the process has computed, and what it has written to inputs, by number."""
        reply = self._receive()
        if "room" in reply:
            self._provide("results", typed.integer(reply["room"], "room", 1, self._most))
            reply = self._receive()
        places = read_places(reply["tensors"])
        found = self._results(places)
        results = typed.integer(reply["count"], "count", 0, len(found))
        written = typed.integers(reply["written"], "written", 0, count - 1)
        for number, place in enumerate(places[:results]):
            if place.device == "cuda":
                found[number] = found[number].to(device)
        return decode(reply["result"], found[:results]), list(zip(written, found[results:], strict=True))

    def _results(self, places: Sequence[Place]) -> list[torch.Tensor]:
        """Copies of the tensors that the process has made; they take no more than the memory that it was given."""
        arena = self._arenas.get("results") or self._provide("results", 1)
        there = [arena.at(place) for place in places]
        if sum(tensor.nbytes for tensor in there) > arena.size:
            raise ValueError("tensors lie one upon the other")
        return [torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device="cpu").copy_(one) for one in there]

    def _provide(self, what: str, size: int) -> Arena:
        """Memory for tensors of the next call, of at least so many bytes."""
        arena = self._arenas.get(what)
        if arena is None or arena.size < size:
            if arena is not None:
                self._arenas.pop(what).close()
            rounded = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
            arena = self._arenas[what] = Arena.make(rounded, is_read=what == "inputs")
            self._send({"do": "memory", "for": what, "size": arena.size}, [arena.descriptor])
        return arena

    def _until(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._deadline = None if seconds is None else time.monotonic() + seconds

    def _send(self, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        self._channel.settimeout(self._left())
        try:
            send(self._channel, message, descriptors)
        except TimeoutError as error:
            raise self._late() from error
        except OSError as error:
            raise self._dead() from error

    def _receive(self) -> dict[str, Any]:
        try:
            reply, _ = receive(self._channel, deadline=self._deadline)
        except TimeoutError as error:
            raise self._late() from error
        except (EOFError, OSError) as error:
            raise self._dead() from error
        except ValueError as error:
            raise self._failed("the process of the isolated program answers nonsense", str(error)) from error
        for record in typed.items(reply.get("logs", []), "logs")[:MOST_RECORDS]:
            level, text = typed.items(record, "a record", 2)
            logger.log(typed.integer(level, "a level", 0, 100), "%s", typed.text(text, "a record", MOST_TEXT))
        if "error" in reply:
            parts = typed.mapping(reply["error"], "an error")
            told = {name: typed.text(value, name, MOST_TEXT) for name, value in parts.items()}
            kind = _ERRORS.get(told.pop("class", ""), ExecutionError)
            answered = kind(**{name: told.get(name, "") for name in ("what", "where", "why", "hint")})
            raise answered if reply.get("ends") is True else _Answered(answered)
        return reply

    def _left(self) -> float | None:
        return None if self._deadline is None else max(self._deadline - time.monotonic(), 1e-3)

    def _late(self) -> ExecutionError:
        return self._failed(f"the isolated program took longer than {self._seconds:g} seconds", "it was ended")

    def _dead(self) -> ExecutionError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        code = self._process.poll()
        why = "it has closed its channel" if code is None else f"it ended with code {code}"
        if code is not None and code < 0:
            why = f"it was ended by {_SIGNALS.get(-code, f'signal {-code}')}"
            if -code == signal.SIGKILL:
                why += ", as the system does where memory or processor time has run out"
        said = os.pread(self._said, 1 << 16, 0).decode(errors="replace").strip().splitlines()
        return self._failed("the process of the isolated program has ended", "; ".join([why, *said[-1:]]))

    def _failed(self, what: str, why: str) -> ExecutionError:
        return ExecutionError(what, where=self._name, why=why, hint="the next call begins with a new process")


def _end(
    process: subprocess.Popen[bytes], channel: socket.socket, said: int, arenas: Mapping[str, Arena], owner: int
) -> None:
    if os.getpid() == owner:
        process.kill()
        process.wait()
    channel.close()
    os.close(said)
    for arena in arenas.values():
        arena.close()


_spawner: ThreadPoolExecutor | None = None
_spawner_lock = ForkedLock()


def _renew_after_fork() -> None:
    """Forgets the thread that starts processes, which is not in the child."""
    global _spawner
    _spawner = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_after_fork)


def _moved(channel: socket.socket) -> socket.socket:
    """The same channel behind the descriptors that are standard input, output and error of every process."""
    import fcntl  # on systems that can isolate

    with channel:
        return socket.socket(fileno=fcntl.fcntl(channel, fcntl.F_DUPFD_CLOEXEC, _STANDARD_ERROR + 1))


def _begin(command: Sequence[str], channel: int, said: int) -> subprocess.Popen[bytes]:
    """Starts a process from a thread that lasts: the process dies with the thread that has started it."""
    global _spawner
    environment = {name: value for name, value in os.environ.items() if name.startswith(_PASSED_ON)}
    environment |= {"HOME": "/nonexistent", "TRT_KEY_DIR": "/nonexistent", "CUDA_CACHE_DISABLE": "1"}
    environment |= {"OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2", "PYTHONHASHSEED": "0"}

    def begin() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
            pass_fds=(channel,),
            env=environment,
            cwd="/",
            start_new_session=True,
        )

    with _spawner_lock:
        if _spawner is None:
            _spawner = ThreadPoolExecutor(1, "trt-isolation")
        return _spawner.submit(begin).result()


def _sealed(content: mmap.mmap) -> int:
    """A descriptor of memory with this content, which nobody can change any more."""
    arena = Arena.make(len(content), is_read=True)
    arena.bytes.copy_(torch.frombuffer(memoryview(content), dtype=torch.uint8))
    descriptor = os.dup(arena.descriptor)
    arena.close()
    return descriptor


def _code_folders(operators: Collection[str]) -> list[str]:
    """Where code lies that the process imports."""
    found = {sys.prefix, sys.base_prefix, sys.exec_prefix, *os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)}
    for name in (*_PACKAGES, *operators):
        spec = find_spec(name) if name.isidentifier() else None
        places = (
            [] if spec is None else [*(spec.submodule_search_locations or ()), *([spec.origin] if spec.origin else [])]
        )
        found |= {os.path.dirname(os.path.realpath(place)) for place in places}
    return sorted(found - {"", "/"})
