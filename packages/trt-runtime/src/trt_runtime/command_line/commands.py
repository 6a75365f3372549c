"""The commands `inspect`, `run` and `bench`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from torch import nn

from trt_core.errors import TrtError
from trt_runtime.command_line import inspection, latency
from trt_runtime.command_line.calls import example_call, named_tensors
from trt_runtime.command_line.tensor_files import ENDINGS, read_tensors, require_writable, write_tensors
from trt_runtime.program.fields import UNTOLD

BAD_INPUT = 2

_EXIT_CODES = "Exit codes: 0 success, 2 bad usage or input."


def main(arguments: Sequence[str] | None = None, prog: str = "python -m trt_runtime") -> int:
    """Runs one command.

    Args:
        arguments: What follows the program's name; by default that of this process.
        prog: How the program is called, for the help.

    Returns:
        The exit code.
    """
    parsed = _parser(prog).parse_args(arguments)
    try:
        parsed.command(parsed)
    except (TrtError, OSError) as error:
        _say(f"error: {_told(error)}", sys.stderr)
        return BAD_INPUT
    return 0


def _told(error: TrtError | OSError) -> str:
    """What went wrong, without the number that the system has for it."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog, description="Inspects, runs and times saved programs.", epilog=_EXIT_CODES
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser("inspect", help="say what is in a program or plan; runs nothing")
    command.add_argument("file", type=Path, help="a saved program, or the plan of one engine")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(command=_inspect)

    command = commands.add_parser("run", help="run a program once")
    _add_call(command)
    command.add_argument("--outputs", type=Path, metavar="FILE", help=f"write the outputs there: {ENDINGS}")
    command.set_defaults(command=_run)

    command = commands.add_parser("bench", help="time calls of a program")
    _add_call(command)
    command.add_argument("--calls", type=_positive, default=100, help="calls that are timed (default 100)")
    command.add_argument("--warm-up", type=_positive, default=10, help="calls before that (default 10)")
    command.add_argument("--threads", type=_positive, default=1, help="threads that call at the same time")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(command=_bench)
    return parser


def _add_call(command: argparse.ArgumentParser) -> None:
    command.add_argument("file", type=Path, help="a saved program")
    command.add_argument(
        "--inputs", type=Path, metavar="FILE", help=f"tensors by name of the input: {ENDINGS}; else random ones"
    )
    command.add_argument("--seed", type=int, default=0, help="seed of random inputs (default 0)")
    command.add_argument(
        "--operators", action="append", default=[], metavar="LIBRARY", help="library whose operators it may call"
    )
    command.add_argument(
        "--data-dependent-elements",
        type=_positive,
        default=UNTOLD,
        metavar="N",
        help="elements that an operator may make where how many depends on data (default 2^26)",
    )


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _inspect(parsed: argparse.Namespace) -> None:
    found = inspection.inspect_file(parsed.file)
    _say(json.dumps(found, indent=1) if parsed.json else inspection.to_text(found))


def _load(parsed: argparse.Namespace) -> nn.Module:
    from trt_runtime.program import load

    return load(parsed.file, operators=parsed.operators, data_dependent_elements=parsed.data_dependent_elements)


def _run(parsed: argparse.Namespace) -> None:
    if parsed.outputs is not None:
        require_writable(parsed.outputs)
    program = _load(parsed)
    given = None if parsed.inputs is None else read_tensors(parsed.inputs)
    args, kwargs = example_call(program, given, parsed.seed)
    outputs = named_tensors(program(*args, **kwargs))
    for name, value in outputs.items():
        _say(f"{name}: {inspection.describe_tensor(value)}")
    if parsed.outputs is not None:
        write_tensors(parsed.outputs, outputs)


def _bench(parsed: argparse.Namespace) -> None:
    import time

    begin = time.perf_counter()
    program = _load(parsed)
    load_seconds = time.perf_counter() - begin
    given = None if parsed.inputs is None else read_tensors(parsed.inputs)
    args, kwargs = example_call(program, given, parsed.seed)
    measured = latency.measure(
        program, args, kwargs, calls=parsed.calls, warm_up=parsed.warm_up, threads=parsed.threads
    )
    result = {"load_seconds": load_seconds, **measured.to_json()}
    _say(json.dumps(result, indent=1) if parsed.json else f"loaded in {load_seconds:.3f} s\n{measured}")


def _say(text: str, stream: TextIO | None = None) -> None:
    """Prints text in which names from files may stand: nothing that a terminal obeys, or cannot show."""
    stream = sys.stdout if stream is None else stream
    shown = "".join(one if one.isprintable() or one == "\n" else _escaped(one) for one in text)
    encoding = stream.encoding or "utf-8"
    print(shown.encode(encoding, "backslashreplace").decode(encoding), file=stream)


def _escaped(one: str) -> str:
    return one.encode("unicode_escape").decode()
