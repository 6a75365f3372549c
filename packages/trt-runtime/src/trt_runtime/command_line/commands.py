"""The commands `inspect`, `run` and `bench`, and times of calls, of one program or of several in turns."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import math
import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NoReturn, TextIO

import torch
from torch import nn

from trt_core.errors import InputError, TrtError
from trt_core.files.replacing import replacing
from trt_core.files.typed import digits
from trt_core.sizes.expressions import evaluate_extent
from trt_core.wording import did_you_mean, printable
from trt_runtime import __version__, signatures
from trt_runtime.command_line import inspection
from trt_runtime.command_line.table import (
    BAD_INPUT,
    COMMANDS,
    EXIT_CODES,
    PEERS,
    READER_LEFT,
    Parameter,
    obstacle_to,
    told,
)
from trt_runtime.command_line.tensor_files import check_ending, read_tensors, write_tensors
from trt_runtime.interruption import INTERRUPTED
from trt_runtime.program.fields import UNTOLD
from trt_runtime.program.graph import FixedInput, Leaf, NumberInput, TensorInput
from trt_runtime.program.interface import walk
from trt_runtime.program.literals import replace_values
from trt_runtime.program.loaded_program import LoadedProgram, captured_from, require_room_for_made_up

_ROUNDS: Final = 5
"""How often programs that are compared take turns, so that a machine that changes its pace changes it for all."""


@dataclass(frozen=True)
class Times:
    """Microseconds of many calls.

    Attributes:
        mean_us: Their mean.
        p50_us, p90_us, p99_us: The times that 50, 90 and 99 of 100 calls do not exceed.
        max_us: The longest.
    """

    mean_us: float
    p50_us: float
    p90_us: float
    p99_us: float
    max_us: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Times:
        """Summarizes seconds in any order, at least one."""
        ordered = sorted(seconds)
        p50, p90, p99 = (percentile(ordered, part) * 1e6 for part in (0.5, 0.9, 0.99))
        return cls(sum(ordered) / len(ordered) * 1e6, p50, p90, p99, ordered[-1] * 1e6)

    def __str__(self) -> str:
        return (
            f"mean {self.mean_us:.1f} us, p50 {self.p50_us:.1f}, p90 {self.p90_us:.1f}, p99 {self.p99_us:.1f}, "
            f"max {self.max_us:.1f}"
        )


@dataclass(frozen=True)
class Timing:
    """What calls of one program took.

    Attributes:
        calls: How many were timed.
        threads: How many threads called at the same time.
        streams: How many calls each thread had in flight, each on a stream of its own.
        first_us: The first call of all, which sets up the engines.
        latency: From the call to results that are ready.
        host: From the call to its return; what is left of the latency is waiting for the GPU.
        device: Between the events around a call on its stream; None without a GPU.
        calls_per_second: All threads together.
    """

    calls: int
    threads: int
    streams: int
    first_us: float
    latency: Times
    host: Times
    device: Times | None
    calls_per_second: float

    def to_json(self) -> dict[str, Any]:
        """Returns the values by name; those of the latency at the top."""
        values = asdict(self)
        return {**values, **values.pop("latency")}

    def __str__(self) -> str:
        threads = f" from {self.threads} threads" if self.threads > 1 else ""
        streams = f" on {self.streams} streams each" if self.streams > 1 else ""
        lines = [
            f"first call {self.first_us:.0f} us; then {self.calls} calls{threads}{streams}, "
            f"{self.calls_per_second:.0f} calls/s",
            f"latency: {self.latency}",
        ]
        if self.device is not None:
            lines += [f"host:    {self.host}", f"device:  {self.device}"]
        return "\n".join(lines)


@dataclass(frozen=True)
class Load:
    """How programs are called while they are timed.

    Attributes:
        calls: Calls that each thread times, at least.
        warm_up: Calls that each thread makes before.
        threads: Threads that call at the same time.
        streams: Calls that each thread has in flight on CUDA, each on a stream of its own.
        seconds: How long each program is called, at least.
    """

    calls: int = 100
    warm_up: int = 10
    threads: int = 1
    streams: int = 1
    seconds: float = 0.0


def measure(program: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], load: Load) -> Timing:
    """Times calls of one program.

    Raises:
        InputError: Several streams are asked for where no input is on a GPU, or more threads than can be started.
    """
    return measure_in_turns({"": program}, args, kwargs, load)[""]


def measure_in_turns(
    programs: Mapping[str, Callable[..., Any]], args: Sequence[Any], kwargs: Mapping[str, Any], load: Load
) -> dict[str, Timing]:
    """Times calls of programs that take the same inputs, one program at a time, in turns where there are several.

    Args:
        programs: What to call, by name.
        args, kwargs: What with.
        load: How.

    Raises:
        InputError: Several streams are asked for where no input is on a GPU, or more threads than can be started.
    """
    on_cuda = any(isinstance(value, torch.Tensor) and value.is_cuda for value in [*args, *kwargs.values()])
    if load.streams > 1 and not on_cuda:
        raise InputError(
            f"{load.streams} streams are asked for, and no input is on a GPU", hint="use --threads on the CPU"
        )
    runs = {name: _Runs(program, args, kwargs, load, on_cuda) for name, program in programs.items()}
    rounds = _ROUNDS if len(runs) > 1 else 1
    for _ in range(rounds):
        for run in runs.values():
            run.take_turn(rounds)
    return {name: run.timing() for name, run in runs.items()}


def percentile(times: Sequence[float], part: float) -> float:
    """Returns the shortest time that at least `part` of the sorted times do not exceed."""
    return times[max(math.ceil(part * len(times)) - 1, 0)]


@dataclass
class _Record:
    """Seconds of calls, in one order."""

    latency: list[float] = field(default_factory=list)
    host: list[float] = field(default_factory=list)
    device: list[float] = field(default_factory=list)


class _Call:
    """A call that has returned, and whose results may not be ready."""

    def __init__(self, program: Callable[[], Any], stream: torch.cuda.Stream | None) -> None:
        if stream is None:
            self._begin = time.perf_counter()
            self._kept = program()
            self._returned = time.perf_counter()
            return
        self._started, self._ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(stream):
            self._begin = time.perf_counter()
            self._started.record()
            self._kept = program()  # results live on until they are ready: their memory is not another call's
            self._ended.record()
            self._returned = time.perf_counter()
        self._stream = stream

    def wait(self, record: _Record, on_cuda: bool) -> torch.cuda.Stream | None:
        """Waits for the results and writes down what they took; returns the stream, which is free now."""
        record.host.append(self._returned - self._begin)
        if not on_cuda:
            record.latency.append(self._returned - self._begin)
            return None
        self._ended.synchronize()
        record.latency.append(time.perf_counter() - self._begin)
        record.device.append(self._started.elapsed_time(self._ended) * 1e-3)
        return self._stream


class _Runs:
    """All timed calls of one program."""

    def __init__(
        self, program: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], load: Load, on_cuda: bool
    ) -> None:
        self._program = lambda: program(*args, **kwargs)
        self._load = load
        self._on_cuda = on_cuda
        self._record = _Record()
        self._elapsed = 0.0
        first = _Record()
        with torch.inference_mode():
            _Call(self._program, torch.cuda.current_stream() if on_cuda else None).wait(first, on_cuda)
        self._first = first.latency[0]

    def take_turn(self, rounds: int) -> None:
        """Calls the program from all threads, a part of what is asked for.

        Raises:
            BaseException: What a call raised.
            InputError: So many threads cannot be started.
        """
        records: list[_Record] = []
        failures: list[BaseException] = []
        barrier = threading.Barrier(self._load.threads + 1)

        def work() -> None:
            try:
                records.append(self._work(rounds, barrier))
            except BaseException as error:
                failures.append(error)
                barrier.abort()

        workers = []
        try:
            for _ in range(self._load.threads):
                worker = threading.Thread(target=work)
                worker.start()
                workers.append(worker)
        except RuntimeError as error:  # the machine has no more of them
            barrier.abort()
            for worker in workers:
                worker.join()
            raise InputError(
                f"{self._load.threads} threads cannot be started, {len(workers)} can",
                why=str(error),
                hint="give fewer --threads",
            ) from error
        with contextlib.suppress(threading.BrokenBarrierError):  # the failure is raised below
            barrier.wait()
        begin = time.perf_counter()
        for worker in workers:
            worker.join()
        self._elapsed += time.perf_counter() - begin
        if failures:
            raise failures[0]
        for record in records:
            self._record.latency += record.latency
            self._record.host += record.host
            self._record.device += record.device

    def _work(self, rounds: int, barrier: threading.Barrier) -> _Record:
        lanes = [torch.cuda.Stream() if self._on_cuda else None for _ in range(self._load.streams)]
        with torch.inference_mode():
            self._keep_calling(lanes, self._load.warm_up, 0.0)
            barrier.wait()
            return self._keep_calling(lanes, math.ceil(self._load.calls / rounds), self._load.seconds / rounds)

    def _keep_calling(self, lanes: Sequence[torch.cuda.Stream | None], calls: int, seconds: float) -> _Record:
        free, flying, record = deque(lanes), deque[_Call](), _Record()
        made, until = 0, time.perf_counter() + seconds
        while made < calls or time.perf_counter() < until:
            if not free:
                free.append(flying.popleft().wait(record, self._on_cuda))
            flying.append(_Call(self._program, free.popleft()))
            made += 1
            if len(lanes) == 1:  # nothing else is to be started while the results are made
                free.append(flying.popleft().wait(record, self._on_cuda))
        for call in flying:
            call.wait(record, self._on_cuda)
        return record

    def timing(self) -> Timing:
        """Summarizes what was timed."""
        record = self._record
        return Timing(
            calls=len(record.latency),
            threads=self._load.threads,
            streams=self._load.streams,
            first_us=self._first * 1e6,
            latency=Times.of(record.latency),
            host=Times.of(record.host),
            device=Times.of(record.device) if record.device else None,
            calls_per_second=len(record.latency) / self._elapsed,
        )


Peers = Callable[[str, Sequence[str], Sequence[Any], Mapping[str, Any]], Mapping[str, Callable[..., Any]]]
"""Makes what `bench` times beside a program, by name: from the name of the model that it was compiled from, those of
`table.PEERS` that are asked for, and what the program is called with."""


def main(arguments: Sequence[str] | None = None, prog: str = "python -m trt_runtime") -> int:
    """Runs one command.

    Args:
        arguments: What follows the program's name; by default that of this process.
        prog: How the program is called, for the help.

    Returns:
        The exit code.
    """
    _open_outputs()
    given = _parser(prog).read(arguments)
    try:
        run_command(given.pop("command"), given)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read has seen enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_LEFT
    except (TrtError, OSError) as error:
        with contextlib.suppress(OSError):  # nowhere to say it
            _say(f"error: {told(error)}", sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        _say("interrupted", sys.stderr)
        return INTERRUPTED
    return 0


def run_command(name: str, given: Mapping[str, Any], peers: Peers | None = None) -> None:
    """Runs one command of `table.COMMANDS`.

    Args:
        name: Of the command.
        given: Values of its parameters, by their names in Python.
        peers: Makes what `bench` times beside a program; None where there is nothing that models come from.

    Raises:
        TrtError, OSError: What is given is wrong, or cannot be read or written.
    """
    _open_outputs()
    _RUN[name](SimpleNamespace(**given, peers=peers))


def _open_outputs() -> None:
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # whoever started this has closed it
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115


class _Parser(argparse.ArgumentParser):
    """Shows itself, and says what is wrong, as the commands of `trtc` do."""

    def __init__(self, **given: Any) -> None:
        super().__init__(
            **given,
            epilog=EXIT_CODES,
            add_help=False,
            allow_abbrev=False,
            formatter_class=functools.partial(argparse.HelpFormatter, max_help_position=30),
        )
        self._positionals.title, self._optionals.title = "Arguments", "Options"

    def read(self, arguments: Sequence[str] | None) -> dict[str, Any]:
        """What is given, by name; who is told of an option that is not there is the command, and not the program."""
        parsed, unknown = self.parse_known_args(arguments)
        given = vars(parsed)
        own: _Parser = given.pop("parser")
        if unknown:
            taken = next(command.parameters for command in COMMANDS if command.name == given["command"])
            near = did_you_mean(unknown[0], [parameter.name for parameter in taken if parameter.is_option])
            what = "No such option" if unknown[0].startswith("-") else "Got unexpected extra argument"
            own.error(f"{what}: {unknown[0]}{near and f'; {near}'}")
        return given

    def format_help(self) -> str:
        """The help, whose first word is written as all titles are."""
        shown = super().format_help()
        return shown[:1].upper() + shown[1:]

    def error(self, message: str) -> NoReturn:
        """Says on standard error what is wrong, and ends the process with 2."""
        message = re.sub(r"^argument ([^:]+): ", lambda found: f"Invalid value for '{found[1]}': ", message)
        message = re.sub(r"^the following arguments are required: (.*)", r"Missing argument '\1'.", message)
        if unknown := re.match(r"Invalid value for 'COMMAND': invalid choice: '(.*?)'", message):
            near = did_you_mean(unknown[1], [command.name for command in COMMANDS])
            message = f"No such command '{unknown[1]}'{near and f'; {near}'}"
        told = f"{self.format_usage()}Try '{self.prog} --help' for help.\n\nError: {message}\n"
        self.exit(BAD_INPUT, printable(told[:1].upper() + told[1:]))


def _parser(prog: str) -> _Parser:
    parser = _Parser(
        prog=prog, usage=f"{prog} [OPTIONS] COMMAND [ARGS]...", description="Inspects, runs and times saved programs."
    )
    parser.add_argument(
        "--version", action="version", version=f"%(prog)s {__version__}", help="Show the version and exit."
    )
    parser.add_argument("--help", "-h", action="help", help=_HELP)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", title="Commands", prog=prog)
    for command in COMMANDS:
        arguments = "".join(
            f" {parameter.name}" if parameter.default is ... else f" [{parameter.name}]"
            for parameter in command.parameters
            if not parameter.is_option
        )
        own = commands.add_parser(
            command.name,
            help=command.summary,
            description=command.summary,
            usage=f"{prog} {command.name} [OPTIONS]{arguments}",
        )
        own.set_defaults(command=command.name, parser=own)
        for parameter in command.parameters:
            if not parameter.names_model:
                _add(own, parameter)
        own.add_argument("--help", "-h", action="help", help=_HELP)
    return parser


_HELP: Final = "Show this message and exit."
_KINDS: Final[dict[Any, str]] = {"file": "<file>", str: "<str>", int: "<int>", float: "<float>"}


def _add(command: argparse.ArgumentParser, parameter: Parameter) -> None:
    """Has a parser take a parameter."""
    if parameter.kind is bool:
        command.add_argument(parameter.name, action="store_true", help=parameter.help)
        return
    is_shown = parameter.default not in (None, ..., "")
    options: dict[str, Any] = {
        "help": f"{parameter.help}{f'  [default: {parameter.default}]' if is_shown else ''}",
        "default": [] if parameter.repeats else parameter.default,
        "type": Path if parameter.kind == "file" else _number(parameter) if parameter.bounds else parameter.kind,
    }
    if parameter.is_option:
        options["metavar"] = _KINDS[parameter.kind]
    if parameter.repeats:
        options["action"] = "append"
    elif not parameter.is_option and parameter.default is not ...:
        options["nargs"] = "?"
    command.add_argument(parameter.name, **options)


def _number(parameter: Parameter) -> Callable[[str], Any]:
    """Reads numbers within bounds; argparse adds the option to what is wrong."""
    assert parameter.bounds is not None
    least, most = parameter.bounds
    of = "a whole number" if parameter.kind is int else "a number"

    def read(text: str) -> Any:
        try:
            value = parameter.kind(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be {of} from {least} to {most}")
        return value

    return read


def _inspect(parsed: SimpleNamespace) -> None:
    found = inspection.inspect_file(parsed.file)
    _say(json.dumps(found, indent=1) if parsed.json else inspection.to_text(found))


def _load(parsed: SimpleNamespace) -> nn.Module:
    from trt_runtime.program import load

    loaded: nn.Module = load(
        parsed.file,
        operators=parsed.operators or (),
        trust=parsed.trust,
        data_dependent_elements=parsed.data_dependent_elements or UNTOLD,
        copy=parsed.copy or None,
        isolated=parsed.isolated,
    )
    return loaded


def _trust(parsed: SimpleNamespace) -> None:
    if parsed.key is None:
        for key, why in signatures.trusted_keys().items():
            _say(f"{key}  {why}")
        return
    key = signatures.key_named(parsed.key)
    if not parsed.remove:
        signatures.list_key(key, parsed.name)
        _say(f"files signed with {key} are trusted now: their compiled code runs")
    elif signatures.unlist_key(key):
        _say(f"files signed with {key} are trusted no longer")
    else:
        raise InputError(f"{key} is not listed", hint="`python -m trt_runtime trust` lists those that are")


def _verify_signature(parsed: SimpleNamespace) -> None:
    key = signatures.verified_signer(parsed.file)
    why = signatures.trusted_keys().get(key)
    _say(f"signed with {key}, {'which is not trusted here' if why is None else f'trusted: {why}'}")


def _run(parsed: SimpleNamespace) -> None:
    if parsed.outputs is not None:
        require_writable(parsed.outputs)
    program = _load(parsed)
    args, kwargs = _call_of(parsed, program)
    said: Any = getattr(program, "outputs", ())
    names = [spec.name for spec in said] if isinstance(said, tuple) else []  # a part of the model may be called so
    outputs = named_tensors(program(*args, **kwargs), names)
    for name, value in outputs.items():
        inspection.require_memory(name, value)
        _say(f"{name}: {inspection.describe_tensor(value)}")
    if parsed.outputs is not None:
        write_tensors(parsed.outputs, outputs)


def _bench(parsed: SimpleNamespace) -> None:
    begin = time.perf_counter()
    program = _load(parsed)
    load_seconds = time.perf_counter() - begin
    args, kwargs = _call_of(parsed, program)
    ways: dict[str, Callable[..., Any]] = {"program": program}
    if parsed.peers is not None and parsed.beside is not None:
        ways |= parsed.peers(parsed.beside, parsed.peer or PEERS[:1], args, kwargs)
    load = Load(parsed.calls, parsed.warm_up, parsed.threads, parsed.streams, parsed.duration)
    with contextlib.redirect_stdout(sys.stderr):  # what a model prints is no part of the report
        errors = {
            name: _error_beside(f"{name} {parsed.beside}", program, way, args, kwargs)
            for name, way in ways.items()
            if name != "program"
        }
        measured = measure_in_turns(ways, args, kwargs, load)
    own = measured.pop("program")
    beside = {
        name: {**other.to_json(), "ratio": other.latency.p50_us / own.latency.p50_us, "largest_error": errors[name]}
        for name, other in measured.items()
    }
    if parsed.json:
        result = {"load_seconds": load_seconds, **own.to_json(), **({"beside": beside} if beside else {})}
        _say(json.dumps(result, indent=1))
        return
    _say(f"loaded in {load_seconds:.3f} s\n{own}")
    for name, other in measured.items():
        _say(
            f"\n{name}: {beside[name]['ratio']:.2f} times the program's p50; outputs differ by "
            f"{errors[name]:.1e} of the largest value\n{other}"
        )


def _error_beside(
    peer: str, program: Callable[..., Any], way: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> float:
    """How far a peer's results are from the program's.

    Raises:
        InputError: The peer does not take what the program takes.
    """

    def told(*args: Any, **kwargs: Any) -> Any:
        try:
            return way(*args, **kwargs)
        except Exception as error:  # a model of anybody's
            raise InputError(
                f"{peer} fails on the inputs of the program",
                where="--beside",
                why=f"{type(error).__name__}: {error}".partition("\n")[0],
                hint="give the model that the program was compiled from",
            ) from error

    return _largest_error(program, told, args, kwargs)


@torch.inference_mode()
def _largest_error(
    program: Callable[..., Any], peer: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> float:
    """The largest difference of results, as a part of the peer's largest value; infinite where shapes differ."""
    found, wanted = (
        [value.double() for value in named_tensors(_plain(way(*args, **kwargs))).values()] for way in (program, peer)
    )
    if [value.shape for value in found] != [value.shape for value in wanted]:
        return math.inf
    return max(
        (
            float((a - b).abs().max() / b.abs().max().clamp(min=1e-30))
            for a, b in zip(found, wanted, strict=True)
            if b.numel()
        ),
        default=0.0,
    )


def _plain(result: Any) -> Any:
    """A result whose classes are those of containers: libraries' own count as the mappings that they are."""
    return dict(result) if isinstance(result, Mapping) else result


def _call_of(parsed: SimpleNamespace, program: nn.Module) -> tuple[tuple[Any, ...], dict[str, Any]]:
    given = None if parsed.inputs is None else read_tensors(parsed.inputs)
    return example_call(program, given, parsed.seed, read_shapes(parsed.shapes or ()))


def read_shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Reads `NAME=2x3x224x224`.

    Raises:
        InputError: One is written otherwise.
    """
    return {name: shapes[0] for name, shapes in _read_shapes(texts, (1,), "").items()}


def read_ranges(texts: Sequence[str]) -> dict[str, list[tuple[int, ...]]]:
    """Reads `NAME=1x3`, and `NAME=1x3:4x3:8x3`: the least, the usual and the greatest shape.

    Raises:
        InputError: One is written otherwise.
    """
    return _read_shapes(texts, (1, 3), ", or --shapes x=1x3:4x3:8x3")


def _read_shapes(texts: Sequence[str], counts: Sequence[int], more: str) -> dict[str, list[tuple[int, ...]]]:
    found: dict[str, list[tuple[int, ...]]] = {}
    for text in texts:
        name, separator, value = text.rpartition("=")
        shapes = [[digits(extent) for extent in part.split("x")] if part else [] for part in value.split(":")]
        known = [tuple(extent for extent in shape if extent is not None) for shape in shapes]
        if not separator or not name or list(map(len, known)) != list(map(len, shapes)) or len(known) not in counts:
            raise InputError(f"{text!r:.80} is no shape", hint=f"write --shapes x=2x3x224x224{more}")
        found[name] = known
    return found


def _profile(parsed: SimpleNamespace) -> None:
    from trt_runtime.profiling import profile_layers

    if parsed.trace is not None:
        _require_new(parsed.trace)
    program = _load(parsed)
    args, kwargs = _call_of(parsed, program)
    profile = profile_layers(program, args, kwargs, calls=parsed.calls)
    _say(json.dumps(profile.to_json(), indent=1) if parsed.json else profile.to_text(parsed.most))
    if parsed.trace is not None:
        with replacing(parsed.trace, is_new=True) as file:
            file.write(json.dumps(profile.to_chrome_trace()).encode())


_RUN: Final = {
    "bench": _bench,
    "inspect": _inspect,
    "profile": _profile,
    "run": _run,
    "sign": lambda parsed: _say(f"signed with {signatures.sign(parsed.file)}"),
    "trust": _trust,
    "verify-signature": _verify_signature,
}


def _say(text: str, stream: TextIO | None = None) -> None:
    """Prints text in which names from files may stand: nothing that a terminal obeys, or cannot show."""
    stream = sys.stdout if stream is None else stream
    shown = printable(text)
    encoding = stream.encoding or "utf-8"
    print(shown.encode(encoding, "backslashreplace").decode(encoding), file=stream)


_NUMBERS = {int: 1, float: 1.0, bool: True}


def example_call(
    module: nn.Module,
    given: Mapping[str, torch.Tensor] | None,
    seed: int,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns what to call a program with.

    Args:
        module: A loaded program.
        given: Tensors by input name, `state['a']` where inputs are nested; None makes them up at the shapes that the
            program was tuned for. Inputs that are no tensors have the value that the program was compiled for.
        seed: Seed of what is made up.
        shapes: Shapes of what is made up, by input name. Inputs that share a dimension with them follow; others
            have the shapes that the program was tuned for.

    Raises:
        InputError: Names are missing or unknown, or a shape has another rank than its input.
    """
    if not isinstance(module, LoadedProgram):
        from trt_runtime.isolation import IsolatedProgram  # which few calls need, and no process of theirs can import

        if isinstance(module, IsolatedProgram):
            return module.example_call(given, seed, shapes)
        raise InputError("only programs in our own format say what they take", hint="save the program again")
    program = captured_from(module).program
    signature = program.signature
    places = [
        place for name, tree in zip(signature.names, signature.structure, strict=True) for place, _ in walk(tree, name)
    ]
    tensors = [place for place, leaf in zip(places, signature.leaves, strict=True) if isinstance(leaf, TensorInput)]
    shapes = shapes or {}
    if given is not None:
        given = _by_name(given, tensors)
        if shapes:
            raise InputError("inputs of a file have their own shapes", hint="give --inputs or --shapes")
    if unknown := sorted(shapes.keys() - set(tensors)):
        raise InputError(f"the program takes no {unknown[0]!r}", hint=f"it takes {', '.join(tensors) or 'no tensors'}")
    generator = torch.Generator().manual_seed(seed)
    sizes = {name: usual for name, (_, usual, _) in program.symbols.items()}
    for place, leaf in zip(places, signature.leaves, strict=True):
        if isinstance(leaf, TensorInput) and place in shapes:
            sizes |= _sizes_in(place, leaf, shapes[place])
    try:
        made = {
            place: shapes.get(place) or _shape_of(leaf, sizes)
            for place, leaf in zip(places, signature.leaves, strict=True)
            if isinstance(leaf, TensorInput) and (given is None or place not in given)
        }
        require_room_for_made_up(module, _WIDEST_MADE_UP * sum(map(math.prod, made.values())))
        flat = [
            given[place]
            if given is not None and place in given
            else _made_up(leaf, sizes, generator, made.get(place, ()))
            for place, leaf in zip(places, signature.leaves, strict=True)
        ]
    except (RuntimeError, OverflowError) as error:  # what PyTorch raises where there is no room
        what = f"random inputs of {', '.join(f'{name}={shape}' for name, shape in shapes.items()) or 'the usual sizes'}"
        raise InputError(
            f"{what} cannot be made", why=str(error).partition("\n")[0], hint="give smaller --shapes"
        ) from error
    device = next((value.device for value in module.parameters()), None)
    values = [_on_device(value, leaf, device) for value, leaf in zip(flat, signature.leaves, strict=True)]
    built = [replace_values(tree, values.__getitem__) for tree in signature.structure]
    split = signature.positional
    return tuple(built[:split]), dict(zip(signature.names[split:], built[split:], strict=True))


def named_tensors(result: Any, names: Sequence[str] = ()) -> dict[str, torch.Tensor]:
    """Returns the tensors of a result by name, where it has as many, else by place: `output`, `output['logits']`."""
    leaves = list(walk(result, "output"))
    if len(set(names)) != len(leaves):
        names = [place for place, _ in leaves]
    return {name: value for name, (_, value) in zip(names, leaves, strict=True) if isinstance(value, torch.Tensor)}


def _by_name(given: Mapping[str, torch.Tensor], wanted: list[str]) -> dict[str, torch.Tensor]:
    if set(given) == {""} and len(wanted) == 1:
        return {wanted[0]: given[""]}
    unknown, missing = sorted(set(given) - set(wanted)), [name for name in wanted if name not in given]
    if unknown or missing:
        parts = [f"missing: {', '.join(missing)}"] * bool(missing) + [f"unknown: {', '.join(unknown)}"] * bool(unknown)
        raise InputError(
            "the tensors given are not those that the program takes",
            why="; ".join(parts),
            hint=f"it takes {', '.join(wanted) or 'none'}",
        )
    return dict(given)


def _sizes_in(place: str, leaf: TensorInput, shape: Sequence[int]) -> dict[str, int]:
    if len(shape) != len(leaf.shape):
        raise InputError(
            f"{place!r} has {len(leaf.shape)} dimensions, the shape given {len(shape)}",
            hint="`python -m trt_runtime inspect` says what the program takes",
        )
    return {
        dimension.extent: size
        for dimension, size in zip(leaf.shape, shape, strict=True)
        if isinstance(dimension.extent, str)
    }


def _shape_of(leaf: TensorInput, sizes: Mapping[str, int]) -> Sequence[int]:
    return [
        dimension.low if dimension.extent is None else int(evaluate_extent(dimension.extent, sizes))
        for dimension in leaf.shape
    ]


def _made_up(leaf: Leaf, sizes: Mapping[str, int], generator: torch.Generator, shape: Sequence[int]) -> Any:
    if isinstance(leaf, FixedInput):
        return leaf.value
    if isinstance(leaf, NumberInput):
        return sizes.get(leaf.symbol or "", _NUMBERS[leaf.kind])
    if leaf.dtype.is_floating_point:
        return torch.randn(shape, generator=generator, device="cpu").to(leaf.dtype)
    bits = torch.randint(0, 2, shape, generator=generator, device="cpu")  # valid as an index almost everywhere
    return bits.to(leaf.dtype)


def _on_device(value: Any, leaf: Leaf, device: torch.device | None) -> Any:
    if not isinstance(leaf, TensorInput) or leaf.device == "cpu":
        return value
    return value.to(device if device is not None and device.type == leaf.device else leaf.device)


_WIDEST_MADE_UP: Final = 8
"""Bytes of an element while it is made up."""


def require_writable(path: Path) -> None:
    """Finds before anything runs that results could not be written.

    Raises:
        InputError: The ending is unknown, the file exists, or there is no such folder.
    """
    check_ending(path)
    _require_new(path)


def _require_new(path: Path) -> None:
    if obstacle := obstacle_to(path):
        what, hint = obstacle
        raise InputError(what, hint=hint)
