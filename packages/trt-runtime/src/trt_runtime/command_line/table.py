"""What every command takes, and how it fails: `python -m trt_runtime` reads it with argparse, and `trtc` with typer.

Nothing is imported here but what every process has: `trtc` reads this file without its package, which imports PyTorch,
so that help and completion are there at once.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

ENDINGS: Final = ".npz, .npy (one tensor), .pt or .safetensors"

PEERS: Final = ("eager", "inductor", "reduce-overhead", "max-autotune")
"""Ways to run a model beside its program, the usual one first."""

EXIT_CODES: Final = "Exit codes: 0 success, 1 a check failed, 2 bad usage or input, 130 interrupted."
BAD_INPUT: Final = 2
READER_LEFT: Final = 141  # or a pipe


class Parameter(NamedTuple):
    """An option or an argument of a command.

    Attributes:
        name: An option's with its dashes, `--warm-up`; that of an argument without.
        help: A sentence.
        kind: `bool` for what is there or not; `str`, `int` or `float`, or `"file"` for the path of one.
        default: Its value where it is not given; `...` where it has to be.
        bounds: The least and the greatest number.
        choices: What it may be; none for whatever there is.
        repeats: Whether it may be given several times; its value is a list, then.
        names_model: Whether it is about the model that a program was compiled from, which only `trtc` knows.
    """

    name: str
    help: str
    kind: Any = str
    default: Any = None
    bounds: tuple[float, float] | None = None
    choices: tuple[str, ...] = ()
    repeats: bool = False
    names_model: bool = False

    @property
    def is_option(self) -> bool:
        """Whether it is named where it is given."""
        return self.name.startswith("-")

    @property
    def key(self) -> str:
        """Its name in Python."""
        return self.name.lstrip("-").replace("-", "_")


class Command(NamedTuple):
    """A command.

    Attributes:
        name: What it is called.
        summary: What it does, a sentence.
        parameters: What it takes.
    """

    name: str
    summary: str
    parameters: tuple[Parameter, ...]


def obstacle_to(path: Path) -> tuple[str, str] | None:
    """What keeps a new file from being written, and what to do about it; None where nothing does."""
    if str(path) == "-":
        return "'-' is no file", "give the path of one"
    if path.exists():
        return f"{path} exists already", "remove it, or give another path"
    folder = path.absolute().parent
    if not folder.is_dir():
        return f"there is no folder {path.parent}", "make it, or give another path"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"nothing can be written to the folder {path.parent}", "give another path"
    return None


def told(error: Exception) -> str:
    """What went wrong, without the number that the system has for it."""
    if isinstance(error, OSError) and error.strerror:
        named = error.filename2 or error.filename  # of a file that cannot be moved, where to
        return f"{named}: {error.strerror}" if named else error.strerror
    return str(error)


_MOST_CALLS: Final = 10_000_000  # whose times are kept until the end
_MOST_THREADS: Final = 1024
_MOST_SECONDS: Final = 86_400
_PROGRAM: Final = Parameter("file", "A saved program.", "file", ...)
_JSON: Final = Parameter("--json", "Print JSON.", bool, False)
_CALL: Final = (
    _PROGRAM,
    Parameter("--inputs", f"Tensors by name of the input: {ENDINGS}; else random ones.", "file"),
    Parameter("--shapes", "Shape of a random input, x=1x3x224x224; repeatable.", repeats=True),
    Parameter("--seed", "Seed of random inputs.", int, 0, (-(1 << 63), (1 << 63) - 1)),
    Parameter("--operators", "Library whose operators it may call; repeatable.", repeats=True),
    Parameter("--trust", "Trust whoever wrote it, signed or not.", bool, False),
    Parameter("--isolated", "Run it in a process that can only compute.", bool, False),
    Parameter("--copy", "Read the file rather than map it.", bool, False),
    Parameter(
        "--data-dependent-elements",
        "Elements that an operator may make where how many depends on data; by default 2^26.",
        int,
        None,
        (1, sys.maxsize),
    ),
)

COMMANDS: Final = (
    Command(
        "inspect",
        "Says what is in a saved program or plan; runs nothing.",
        (Parameter("file", "A saved program, or the plan of one engine.", "file", ...), _JSON),
    ),
    Command(
        "run",
        "Runs a saved program once, on given or random inputs.",
        (*_CALL, Parameter("--outputs", f"Write the outputs there: {ENDINGS}.", "file")),
    ),
    Command(
        "bench",
        "Times calls of a saved program, on request beside its model in PyTorch.",
        (
            *_CALL,
            Parameter("--calls", "Calls that are timed, at least.", int, 100, (1, _MOST_CALLS)),
            Parameter("--duration", "How many seconds to call, at least.", float, 0.0, (0, _MOST_SECONDS)),
            Parameter("--warm-up", "Calls before that.", int, 10, (0, _MOST_CALLS)),
            Parameter("--threads", "Threads that call at the same time.", int, 1, (1, _MOST_THREADS)),
            Parameter(
                "--streams",
                "Calls that each thread has in flight on the GPU, a stream each.",
                int,
                1,
                (1, _MOST_THREADS),
            ),
            _JSON,
            Parameter("--beside", "The model that it was compiled from, timed in turns with it.", names_model=True),
            Parameter(
                "--peer",
                "How that runs; repeatable, by default eager.",
                choices=PEERS,
                repeats=True,
                names_model=True,
            ),
        ),
    ),
    Command(
        "profile",
        "Times the layers of a saved program's engines.",
        (
            *_CALL,
            Parameter("--calls", "Calls that are timed.", int, 20, (1, _MOST_CALLS)),
            Parameter("--most", "Layers to show, the slowest.", int, 20, (1, sys.maxsize)),
            Parameter("--trace", "Write a trace for Perfetto and chrome://tracing.", "file"),
            Parameter("--json", "Print JSON, all layers.", bool, False),
        ),
    ),
    Command(
        "trust",
        "Trusts what a key signs, or lists the keys that are trusted.",
        (
            Parameter("key", "A public key, ed25519:..., or a program that is signed with it."),
            Parameter("--name", "What to call whoever has it.", default=""),
            Parameter("--remove", "Trust it no longer.", bool, False),
        ),
    ),
    Command(
        "sign",
        "Signs a saved program with your key.",
        (Parameter("file", "A saved program; a signature that it has is replaced.", "file", ...),),
    ),
    Command("verify-signature", "Says who has signed a saved program.", (_PROGRAM,)),
)
"""In the order of a reader's work."""
