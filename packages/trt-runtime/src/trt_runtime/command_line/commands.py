"""The commands `inspect`, `run` and `bench`."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, Final, TextIO

import numpy as np
import torch
from torch import nn

from trt_core.errors import FileError, InputError, TrtError
from trt_core.files.opening import opened
from trt_core.sizes.expressions import evaluate_extent
from trt_core.wording import kind_of, printable
from trt_runtime import signatures
from trt_runtime.command_line import inspection
from trt_runtime.program.fields import UNTOLD
from trt_runtime.program.graph import FixedInput, Leaf, NumberInput, Program, TensorInput, Value
from trt_runtime.program.interface import walk
from trt_runtime.program.module import LoadedProgram, captured_from

BAD_INPUT = 2
_READER_LEFT = 141  # what shells say of a process that a pipe has ended

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
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read has seen enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _READER_LEFT
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

    command = commands.add_parser("trust", help="trust what a key signs; without a key, list those that are trusted")
    command.add_argument("key", nargs="?", help="a public key, ed25519:..., or a program that is signed with it")
    command.add_argument("--name", default="", help="what to call whoever has it")
    command.add_argument("--remove", action="store_true", help="trust it no longer")
    command.set_defaults(command=_trust)

    command = commands.add_parser("sign", help="sign a program with this user's key, which says that you trust it")
    command.add_argument("file", type=Path, help="a saved program; a signature that it has is replaced")
    command.set_defaults(command=_sign)

    command = commands.add_parser("verify-signature", help="say who has signed a program; exit code 2 if nobody has")
    command.add_argument("file", type=Path, help="a saved program")
    command.set_defaults(command=_verify_signature)

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
    command.add_argument("--trust", action="store_true", help="trust whoever wrote it, signed or not")
    command.add_argument("--isolated", action="store_true", help="run it in a process that can only compute")
    command.add_argument("--copy", action="store_true", help="read the file rather than map it")
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

    return load(
        parsed.file,
        operators=parsed.operators,
        trust=parsed.trust,
        data_dependent_elements=parsed.data_dependent_elements,
        copy=parsed.copy or None,
        isolated=parsed.isolated,
    )


def _trust(parsed: argparse.Namespace) -> None:
    if parsed.key is None:
        for key, why in signatures.trusted_keys().items():
            _say(f"{key}  {why}")
        return
    is_key = parsed.key.startswith("ed25519:")
    key = signatures.PublicKey.parse(parsed.key) if is_key else signatures.signer(parsed.key)
    if not parsed.remove:
        signatures.list_key(key, parsed.name)
        _say(f"files signed with {key} are trusted now: their compiled code runs")
    elif signatures.unlist_key(key):
        _say(f"files signed with {key} are trusted no longer")
    else:
        raise InputError(f"{key} is not listed", hint="`trtc trust` lists those that are")


def _sign(parsed: argparse.Namespace) -> None:
    _say(f"signed with {signatures.sign(parsed.file)}")


def _verify_signature(parsed: argparse.Namespace) -> None:
    key = signatures.verified_signer(parsed.file)
    why = signatures.trusted_keys().get(key)
    _say(f"signed with {key}, {'which is not trusted here' if why is None else f'trusted: {why}'}")


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
    measured = measure(program, args, kwargs, calls=parsed.calls, warm_up=parsed.warm_up, threads=parsed.threads)
    result = {"load_seconds": load_seconds, **measured.to_json()}
    _say(json.dumps(result, indent=1) if parsed.json else f"loaded in {load_seconds:.3f} s\n{measured}")


def _say(text: str, stream: TextIO | None = None) -> None:
    """Prints text in which names from files may stand: nothing that a terminal obeys, or cannot show."""
    stream = sys.stdout if stream is None else stream
    shown = printable(text)
    encoding = stream.encoding or "utf-8"
    print(shown.encode(encoding, "backslashreplace").decode(encoding), file=stream)


_NUMBERS = {int: 1, float: 1.0, bool: True}


def example_call(
    module: nn.Module, given: Mapping[str, torch.Tensor] | None, seed: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns what to call a program with.

    Args:
        module: A loaded program.
        given: Tensors by input name, `state['a']` where inputs are nested; None makes them up at the shapes that the
            program was tuned for. Inputs that are no tensors have the value that the program was compiled for.
        seed: Seed of what is made up.

    Raises:
        InputError: Names are missing or unknown.
    """
    from trt_runtime.isolation import IsolatedProgram  # which few calls need

    if isinstance(module, IsolatedProgram):
        return module.example_call(given, seed)
    if not isinstance(module, LoadedProgram):
        raise InputError("only programs in our own format say what they take", hint="save the program again")
    program = captured_from(module).program
    signature = program.signature
    places = [
        place for name, tree in zip(signature.names, signature.structure, strict=True) for place, _ in walk(tree, name)
    ]
    tensors = [place for place, leaf in zip(places, signature.leaves, strict=True) if isinstance(leaf, TensorInput)]
    if given is not None:
        given = _by_name(given, tensors)
    generator = torch.Generator().manual_seed(seed)
    flat = [
        given[place] if given is not None and place in given else _made_up(leaf, program, generator)
        for place, leaf in zip(places, signature.leaves, strict=True)
    ]
    device = next((value.device for value in module.parameters()), None)
    values = [_on_device(value, leaf, device) for value, leaf in zip(flat, signature.leaves, strict=True)]
    built = [_build(tree, values) for tree in signature.structure]
    split = signature.positional
    return tuple(built[:split]), dict(zip(signature.names[split:], built[split:], strict=True))


def named_tensors(result: Any) -> dict[str, torch.Tensor]:
    """Returns the tensors of a result by place: `output`, `output[0]`, `output['logits']`."""
    return {place: value for place, value in walk(result, "output") if isinstance(value, torch.Tensor)}


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


def _made_up(leaf: Leaf, program: Program, generator: torch.Generator) -> Any:
    if isinstance(leaf, FixedInput):
        return leaf.value
    if isinstance(leaf, NumberInput):
        tuned = program.symbols.get(leaf.symbol or "")
        return tuned[1] if tuned is not None else _NUMBERS[leaf.kind]
    tuned_symbols = {name: best for name, (_, best, _) in program.symbols.items()}
    shape = [
        dimension.low if dimension.extent is None else int(evaluate_extent(dimension.extent, tuned_symbols))
        for dimension in leaf.shape
    ]
    if leaf.dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(leaf.dtype)
    return torch.randint(0, 2, shape, generator=generator).to(leaf.dtype)  # valid as an index almost everywhere


def _on_device(value: Any, leaf: Leaf, device: torch.device | None) -> Any:
    if not isinstance(leaf, TensorInput) or leaf.device == "cpu":
        return value
    return value.to(device if device is not None and device.type == leaf.device else leaf.device)


def _build(tree: Any, values: list[Any]) -> Any:
    if type(tree) is Value:
        return values[tree.index]
    if isinstance(tree, Mapping):
        return {name: _build(child, values) for name, child in tree.items()}
    return type(tree)(_build(child, values) for child in tree)


@dataclass(frozen=True)
class Latency:
    """Times of calls, in microseconds, from the call to results that are ready.

    Attributes:
        calls: How many were timed.
        threads: How many threads called at the same time.
        first_us: The first call of all, which sets up the engines.
        mean_us, p50_us, p90_us, p99_us, max_us: Of the timed calls.
        calls_per_second: All threads together.
    """

    calls: int
    threads: int
    first_us: float
    mean_us: float
    p50_us: float
    p90_us: float
    p99_us: float
    max_us: float
    calls_per_second: float

    def to_json(self) -> dict[str, Any]:
        """Returns the values by name."""
        return asdict(self)

    def __str__(self) -> str:
        threads = f" from {self.threads} threads" if self.threads > 1 else ""
        return (
            f"first call {self.first_us:.0f} us; then {self.calls} calls{threads}: mean {self.mean_us:.1f} us, "
            f"p50 {self.p50_us:.1f}, p90 {self.p90_us:.1f}, p99 {self.p99_us:.1f}, max {self.max_us:.1f}; "
            f"{self.calls_per_second:.0f} calls/s"
        )


def measure(
    program: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    calls: int,
    warm_up: int,
    threads: int = 1,
) -> Latency:
    """Times calls, each until its results are ready.

    Args:
        program: What to call.
        args, kwargs: What with.
        calls: Calls that each thread times.
        warm_up: Calls that each thread makes before.
        threads: Threads that call at the same time; on CUDA each has a stream of its own.
    """
    on_cuda = any(isinstance(value, torch.Tensor) and value.is_cuda for value in [*args, *kwargs.values()])
    first = _time_call(program, args, kwargs, on_cuda)
    times: list[float] = []
    failures: list[BaseException] = []
    barrier = threading.Barrier(threads + 1)

    def work() -> None:
        own: list[float] = []
        try:
            with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream() if on_cuda else None):
                for _ in range(warm_up):
                    _time_call(program, args, kwargs, on_cuda)
                barrier.wait()
                own.extend(_time_call(program, args, kwargs, on_cuda) for _ in range(calls))
        except BaseException as error:
            failures.append(error)
            barrier.abort()
        times.extend(own)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    with contextlib.suppress(threading.BrokenBarrierError):  # the failure is raised below
        barrier.wait()
    begin = time.perf_counter()
    for worker in workers:
        worker.join()
    elapsed = time.perf_counter() - begin
    if failures:
        raise failures[0]
    times.sort()
    return Latency(
        calls=len(times),
        threads=threads,
        first_us=first * 1e6,
        mean_us=sum(times) / len(times) * 1e6,
        p50_us=percentile(times, 0.5) * 1e6,
        p90_us=percentile(times, 0.9) * 1e6,
        p99_us=percentile(times, 0.99) * 1e6,
        max_us=times[-1] * 1e6,
        calls_per_second=len(times) / elapsed,
    )


def percentile(times: Sequence[float], part: float) -> float:
    """Returns the shortest time that at least `part` of the sorted times do not exceed."""
    return times[max(math.ceil(part * len(times)) - 1, 0)]


def _time_call(program: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], on_cuda: bool) -> float:
    begin = time.perf_counter()
    program(*args, **kwargs)
    if on_cuda:
        torch.cuda.current_stream().synchronize()
    return time.perf_counter() - begin


ENDINGS: Final = ".npz, .npy (one tensor), .pt or .safetensors"

_MOST_INFLATED: Final = 1 << 30
"""Bytes that the entries of an archive may have, where the archive itself has fewer."""


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Reads tensors by name; a file with one tensor without a name answers with the name "".

    Raises:
        InputError: The file holds something else, or has an unknown ending.
        OSError: The file cannot be read.
    """
    _check_ending(path)
    try:
        with opened(path) as file:
            found = _read(path.suffix, file)
    except FileError as error:
        raise InputError(f"{path} is not a regular file", hint=f"give a file of tensors: {ENDINGS}") from error
    except (OSError, InputError, KeyboardInterrupt):
        raise
    except BaseException as error:  # each format has errors of its own, and panics of Rust are no Exception
        raise InputError(f"{path} cannot be read", why=str(error).partition("\n")[0]) from error
    named = found if isinstance(found, Mapping) else {"": found}
    for name, value in named.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise InputError(
                f"{path} holds {kind_of(value)} under {name!r}", hint="write a dict of tensors by input name"
            )
    return dict(named)


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Writes tensors by name.

    Raises:
        InputError: The format has no such type, or holds one tensor only.
        OSError: The file cannot be written.
    """
    dense = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    if path.suffix == ".pt":
        torch.save(dense, path)
    elif path.suffix == ".safetensors":
        _safetensors().save_file({name: value.clone() for name, value in dense.items()}, path)
    elif path.suffix == ".npz":
        np.savez(path, allow_pickle=False, **{name: _to_numpy(name, value) for name, value in dense.items()})
    else:
        if len(dense) != 1:
            raise InputError(f"{path} holds one tensor, there are {len(dense)} outputs", hint="give a .npz file")
        (name, value), *_ = dense.items()
        np.save(path, _to_numpy(name, value), allow_pickle=False)


def require_writable(path: Path) -> None:
    """Finds before anything runs that results could not be written.

    Raises:
        InputError: The ending is unknown, the file exists, or there is no such folder.
    """
    _check_ending(path)
    if path.exists():
        raise InputError(f"{path} exists already", hint="remove it, or give another path")
    if not path.absolute().parent.is_dir():
        raise InputError(f"there is no folder {path.parent}")


def _read(suffix: str, file: BinaryIO) -> Any:
    size = os.fstat(file.fileno()).st_size
    if file.read(2) == b"PK":
        _refuse_bomb(file, size)
    file.seek(0)
    if suffix == ".pt":
        return torch.load(file, map_location="cpu", weights_only=True)
    if suffix == ".safetensors":
        return _safetensors().load(file.read(size))
    loaded = np.load(file, allow_pickle=False)
    if suffix == ".npy":
        return torch.from_numpy(loaded)
    with loaded:
        return {name: torch.from_numpy(loaded[name]) for name in loaded.files}


def _refuse_bomb(file: BinaryIO, size: int) -> None:
    """Bounds what entries of an archive take once they are read; entries may be compressed, or be each other.

    Raises:
        InputError: It is too much.
    """
    with zipfile.ZipFile(file) as archive:
        total = sum(entry.file_size for entry in archive.infolist())
    if total > max(size, _MOST_INFLATED):
        raise InputError(
            f"{file.name} has {size} bytes and holds {total}",
            hint=f"write more than {_MOST_INFLATED} bytes without compression, as np.savez and torch.save do",
        )


def _check_ending(path: Path) -> None:
    if path.suffix not in (".npz", ".npy", ".pt", ".safetensors"):
        raise InputError(f"{path} has an unknown ending", hint=f"give {ENDINGS}")


def _to_numpy(name: str, value: torch.Tensor) -> Any:
    try:
        return value.numpy()
    except TypeError as error:
        raise InputError(
            f"NumPy has no type for {name!r}, {value.dtype}", hint="give a .pt or .safetensors file"
        ) from error


def _safetensors() -> ModuleType:
    try:
        import safetensors.torch
    except ImportError as error:
        raise InputError("safetensors is not installed", hint="pip install safetensors, or give a .npz file") from error
    return safetensors.torch
