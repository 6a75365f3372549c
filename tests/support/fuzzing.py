"""Structured mutations of saved programs and plans, and what must hold of each: an error of ours, or a sane result.

Run as a program, `python tests/support/fuzzing.py programs|plans SEED COUNT`, a crash takes down nobody else. It
writes one line of JSON: how many mutations were refused, how many ran, what went wrong, and how much memory it took.
"""

from __future__ import annotations

import contextlib
import copy
import json
import random
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from program_files import ProgramFile
from torch import nn

import trt_core
from trt_core import Input, TrtError
from trt_runtime import PlanHeader, TRTModule, load, refit_module, save

SECONDS = 20
"""Of a processor. No mutation may take as long; the honest file takes milliseconds."""

NUMBERS = (-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 5, 7, 64, 255, 2**16, 2**20, 2**31, 2**32, 10**12, 2**63 - 1, 2**64)
OTHERS: tuple[Any, ...] = (
    None,
    True,
    False,
    0.5,
    -1e300,
    "",
    "x",
    "s0",
    "aten::relu",
    [],
    {},
    [[]],
    [None],
    {"value": 0},
)

Place = tuple[Any, Any]
"""A container and the key of one of its items."""


class Sample(nn.Module):
    """A little of everything that a program can hold."""

    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.second = nn.Linear(8, 4)
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x: torch.Tensor, scale: float, pair: tuple[torch.Tensor, torch.Tensor]) -> dict[str, Any]:
        y = self.second(torch.relu(self.first(x)))
        values, order = torch.sort(y, 0)
        rows = x.shape[0]
        if rows == 7:  # becomes a condition on sizes
            y = y * 2.0
        rest = torch.cat([values, pair[0] * scale], 0)[: rows + 1] - pair[1]
        self.total.add_(y.sum(0))
        return {"rest": rest, "order": [order, rows, None], "filled": torch.full((rows, 2), 1.5), "name": "sample"}


OTHER_WEIGHTS = Sample().state_dict()


def sample_program(folder: Path) -> tuple[ProgramFile, tuple[Any, ...]]:
    """A saved program taken apart, and inputs that it takes."""
    import trt_frontends

    batch = Input(min_shape=(1, 4), opt_shape=(3, 4), max_shape=(8, 4))
    fixed = Input((1, 4))
    compiled = trt_frontends.compile(
        Sample().eval(),
        arg_inputs=(batch, 2.0, (fixed, fixed)),
        min_block_size=1,
        torch_executed_ops={"aten.sort", "aten.cat", "aten.full", "aten.sub"},
        refit=True,
    )
    save(compiled, folder / "sample.trtp")
    content = (folder / "sample.trtp").read_bytes()
    return ProgramFile.read(content), (torch.randn(3, 4), 2.0, (torch.randn(1, 4), torch.randn(1, 4)))


def places_in(tree: Any) -> Iterator[Place]:
    """Every item of every container in a tree of JSON, however deep mutations have made it."""
    containers = [tree]
    while containers:
        container = containers.pop()
        is_list = isinstance(container, list)
        for key, item in enumerate(container) if is_list else container.items():
            yield container, key
            if isinstance(item, (dict, list)):
                containers.append(item)


def mutate(tree: Any, source: random.Random) -> None:
    """Changes one place of a tree of JSON, or of a tree that is written as a text in it."""
    places = list(places_in(tree))
    owner, key = source.choice(places)
    value = owner[key]
    if isinstance(value, str) and value.startswith('{"') and source.random() < 0.9:
        inner = json.loads(value)
        mutate(inner, source)
        owner[key] = json.dumps(inner)
        return
    other, other_key = source.choice(places)
    choice = source.randrange(9)
    if choice == 0 and type(value) is int:
        owner[key] = value + source.choice((-1, 1))
    elif choice <= 2 and isinstance(value, (int, float)):
        owner[key] = source.choice(NUMBERS)
    elif choice == 3:
        owner[key] = source.choice(OTHERS)
    elif choice == 4:
        del owner[key]
    elif choice == 5:
        owner[key] = copy.deepcopy(other[other_key])
    elif choice == 6:
        owner[key], other[other_key] = copy.deepcopy(other[other_key]), copy.deepcopy(value)
    elif choice == 7 and isinstance(owner, list):
        owner.insert(source.randrange(len(owner) + 1), copy.deepcopy(value))
    elif choice == 8 and isinstance(value, str):
        names = [item for place, name in places if isinstance(item := place[name], str)]
        owner[key] = source.choice(names)
    else:
        nested: Any = value
        for _ in range(source.choice((1, 3, 100))):
            nested = [nested]
        owner[key] = nested


def flip(content: bytes, source: random.Random) -> bytes:
    """Changes some bytes, or the length."""
    changed = bytearray(content)
    if source.random() < 0.2:
        return bytes(changed[: source.randrange(1, len(changed) + 1)] + bytes(source.randrange(64)))
    for _ in range(source.randrange(1, 8)):
        changed[source.randrange(len(changed))] = source.randrange(256)
    return bytes(changed)


def mutated_program(parts: ProgramFile, source: random.Random) -> bytes:
    """A saved program with a few changes and right checksums."""
    parts = parts.copy()
    for _ in range(source.choice((1, 1, 1, 2, 4))):
        kind = source.random()
        if kind < 0.85:
            mutate(parts.graph, source)
        elif kind < 0.9:
            parts.weights = flip(parts.weights, source)
        elif kind < 0.95:
            at = source.randrange(len(parts.plans))
            parts.plans[at] = flip(parts.plans[at], source)
        else:
            text = flip(json.dumps(parts.graph).encode(), source)
            return parts.with_graph(text)
    return parts.to_bytes()


def mutated_plan(plan: bytes, source: random.Random) -> bytes:
    """A plan of the portable provider with a few changes and a right checksum."""
    from trt_portable.plan import plan_file

    read = plan_file.read_plan(plan)
    if source.random() < 0.15:
        changed = bytearray(plan)
        for _ in range(source.randrange(1, 4)):
            changed[source.randrange(16, len(changed))] = source.randrange(256)
        at = plan_file._CHECKSUM_OFFSET
        changed[at : at + plan_file._CHECKSUM_BYTES] = plan_file._checksum(memoryview(changed))
        return bytes(changed)
    structure = json.loads(json.dumps(read.structure))
    for _ in range(source.choice((1, 1, 1, 2, 4))):
        mutate(structure, source)
    return bytes(plan_file.write_plan(structure, read.weights))


def outcome(run: Callable[[], Any]) -> str:
    """What came of a mutation: refused, ran, or what was wrong."""

    def hang(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGPROF, hang)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        run()
        return "ran"
    except TrtError:
        return "refused"
    except KeyboardInterrupt:
        return "hangs"
    except BaseException as error:
        return f"{type(error).__name__}: {error!s:.300}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def run_program(content: bytes, path: Path, inputs: tuple[Any, ...]) -> None:
    """Loads a program, and calls it twice on equal inputs: what is read out of bounds differs from call to call.

    Other weights are given to a copy, which is called as well.
    """
    path.write_bytes(content)
    module = load(path)
    results = []
    for _ in range(2):
        state = copy.deepcopy(inputs)
        twin = copy.deepcopy(module)
        results.append(twin(*state))
    _check_same(*results)
    with contextlib.suppress(TrtError):  # what only a refit reads may be what is wrong
        refit_module(module, OTHER_WEIGHTS)(*copy.deepcopy(inputs))


def run_plan(plan: bytes, header: PlanHeader, inputs: list[torch.Tensor]) -> None:
    """Runs a plan twice on equal inputs."""
    import dataclasses
    import hashlib

    tensor = torch.frombuffer(bytearray(plan), dtype=torch.uint8)
    digest = hashlib.sha256(plan).hexdigest()
    module = TRTModule(dataclasses.replace(header, payload_sha256=digest, payload_bytes=len(plan)), tensor)
    first, second = module(*inputs), module(*inputs)
    for result, binding in zip(first if isinstance(first, tuple) else (first,), header.outputs, strict=True):
        if result.dtype is not binding.dtype or result.dim() != binding.rank:
            raise AssertionError(f"{binding} is {result.dtype} of rank {result.dim()}")
    _check_same(first, second)


def _check_same(first: Any, second: Any) -> None:
    left, right = torch.utils._pytree.tree_leaves(first), torch.utils._pytree.tree_leaves(second)
    if len(left) != len(right):
        raise AssertionError("another number of results")
    for one, other in zip(left, right, strict=True):
        if isinstance(one, torch.Tensor):
            if one.numel() and not torch.equal(_bytes(one), _bytes(other)):
                raise AssertionError("another result for the same inputs")
        elif one != other and one == one:
            raise AssertionError(f"{one!r:.80} and {other!r:.80} for the same inputs")


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def peak_bytes() -> int:
    """Most memory that this process has had."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def fuzz(kind: str, seed: int, count: int) -> dict[str, Any]:
    """Tries a number of mutations.

    Args:
        kind: `"programs"` or `"plans"`.
        seed: Where the mutations begin; each has a seed of its own, so that one can be tried again.
        count: How many.
    """
    trt_core.set_provider("portable")
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    wrong: dict[int, str] = {}
    ends = {"refused": 0, "ran": 0}
    with tempfile.TemporaryDirectory() as folder:
        parts, inputs = sample_program(Path(folder))
        path = Path(folder) / "mutated.trtp"
        header = PlanHeader.from_json(parts.graph["engines"][0]["header"])
        plan, given = parts.plans[0], _inputs_of(header)
        run_program(parts.to_bytes(), path, inputs)
        run_plan(plan, header, given)
        before = peak_bytes()
        for number in range(seed, seed + count):
            source = random.Random(number)
            sys.stderr.write(f"{number}\n")  # the last line names what crashed
            sys.stderr.flush()
            if kind == "programs":
                try:
                    content = mutated_program(parts, source)
                except RecursionError:  # several nestings, one in the other, are too deep to be written
                    continue
                end = outcome(lambda content=content: run_program(content, path, inputs))  # type: ignore[misc]
            else:
                try:
                    changed = mutated_plan(plan, source)
                except (TypeError, AttributeError, RecursionError):  # what is no object cannot be written
                    continue
                end = outcome(lambda changed=changed: run_plan(changed, header, given))  # type: ignore[misc]
            if end in ends:
                ends[end] += 1
            else:
                wrong[number] = end
        grown = peak_bytes() - before
    return {**ends, "wrong": wrong, "grown": grown}


def _inputs_of(header: PlanHeader) -> list[torch.Tensor]:
    return [
        torch.ones([best for _, best, _ in shape], dtype=binding.dtype)
        for binding, shape in zip(header.inputs, header.ranges, strict=True)
    ]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(fuzz(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))) + "\n")
