"""Calls every operator that a program may call with operands that do not fit, as a forged program would.

Run as a program, `python tests/support/operand_fuzzing.py SEED CALLS [PART PARTS]`, it makes CALLS calls of each
overload, in child processes, since some might crash. It tells on the standard error what went wrong, as it goes, and
writes one line of JSON at the end: calls that ran, that failed with an error of ours, and that were refused when the
program was loaded, and what went wrong: foreign exceptions, crashes, hangs, and memory beyond `MOST_MEMORY`.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch._ops import OpOverload

from trt_core import PlanError, TrtError
from trt_runtime.program.allowed_operators import allowed_operators, why_refused
from trt_runtime.program.graph import OperatorCall, Program, SequenceType, Signature, StoredTensor, TensorType
from trt_runtime.program.literals import Value
from trt_runtime.program.loaded_program import LoadedProgram
from trt_runtime.program.loading import check_agreement

SECONDS = 20
"""Of the processor: no operator may take as long with operands of this size."""

ADDRESS_SPACE = 12 << 30
MOST_MEMORY = 1 << 30
"""Bytes that a call may take beyond its operands: 2^26 elements of the largest type, where sizes depend on data."""

INTEGERS = (-(1 << 40), -(1 << 26), -7, -2, -1, 0, 0, 1, 1, 2, 2, 3, 4, 8, 64, 1 << 16, 1 << 30, 1 << 40)
FLOATS = (-1e30, -1.0, 0.0, 1e-18, 0.5, 1.0, 2.0, 1e9, float("nan"), float("inf"))
TEXTS = ("mean", "none", "sum", "reflect", "ij,jk->ik", "...i->i", "")
DTYPES = (torch.float32, torch.float32, torch.int64, torch.int64, torch.float16, torch.bool, torch.complex64)


def operators() -> Iterator[OpOverload]:
    """Yields every overload that programs may call."""
    for namespace, names in sorted(allowed_operators().items()):
        for name in sorted(names):
            packet = getattr(getattr(torch.ops, namespace), name, None)
            for overload in () if packet is None else packet.overloads():
                found = getattr(packet, overload)
                if not why_refused(found):
                    yield found


def tensor(chance: random.Random) -> torch.Tensor:
    """A small tensor, or one with one large axis, some with overlapping memory or indices far out of range."""
    shape = [chance.choice([0, 1, 1, 2, 2, 3, 4, 8]) for _ in range(chance.choice([0, 1, 1, 2, 2, 3, 4, 5]))]
    if shape and chance.random() < 0.25:
        shape[chance.randrange(len(shape))] = chance.choice([1 << 12, 1 << 15])
    dtype = chance.choice(DTYPES)
    if dtype is torch.int64:
        made = torch.full(shape, chance.choice([-(1 << 40), -1, 0, 1, 3, 1 << 33])) if chance.random() < 0.4 else None
        made = torch.randint(-3, 9, shape) if made is None else made
    else:
        made = torch.randn(shape).to(dtype)
    if made.dim() and chance.random() < 0.15:
        made = made[..., :1].expand(shape) if chance.random() < 0.5 else made.transpose(0, -1)
    return made


class Call:
    """A forged program of one call.

    Args:
        operator: What it calls.
        chance: Chooses operands, and what the program declares.
    """

    def __init__(self, operator: OpOverload, chance: random.Random) -> None:
        self._operator, self._chance = operator, chance
        self.tensors: list[torch.Tensor] = []
        self._is_alike = chance.random() < 0.4
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for argument in operator._schema.arguments:
            if argument.has_default_value() and chance.random() < 0.5:
                if argument.kwarg_only or kwargs:
                    continue
                args.append(argument.default_value)
                continue
            value = self._value(str(argument.type), argument.name)
            if argument.kwarg_only:
                kwargs[argument.name] = value
            else:
                args.append(value)
        self.args, self.kwargs = tuple(args), kwargs

    def _value(self, kind: str, name: str) -> Any:
        chance = self._chance
        if kind.startswith("Optional["):
            return None if chance.random() < 0.4 else self._value(kind[9:-1], name)
        if kind.startswith("List["):
            return [self._value(kind[5:-1], name) for _ in range(chance.choice([0, 1, 2, 2, 3]))]
        if name in ("dtype", "out_dtype"):
            return chance.choice(DTYPES)
        if kind == "Tensor":
            made = tensor(chance)
            if self._is_alike and self.tensors:
                made = self.tensors[0] if chance.random() < 0.5 else torch.randn(self.tensors[0].shape)
            self.tensors.append(made)
            return Value(len(self.tensors) - 1)
        if kind in ("int", "SymInt"):
            return chance.choice(INTEGERS)
        if kind == "float":
            return chance.choice(FLOATS)
        if kind == "number":
            return chance.choice(INTEGERS + FLOATS)
        if kind == "bool":
            return chance.random() < 0.5
        return chance.choice(TEXTS) if kind == "str" else None

    def run(self) -> None:
        """Loads the program, and calls it.

        Raises:
            TrtError: It was refused.
        """
        operator = self._operator
        stored = tuple(
            StoredTensor((), False, one.dtype, 0, 0, tuple(one.shape), one.stride(), "cpu") for one in self.tensors
        )
        rank = self._chance.choice([0, 1, 2, 4])
        told = TensorType(torch.float32, self._chance.choice([(None,) * rank, (2,) * rank]))
        made = SequenceType((told, told)) if len(operator._schema.returns) > 1 else told
        overload = "" if operator._overloadname == "default" else operator._overloadname
        step = OperatorCall(operator._schema.name, overload, self.args, self.kwargs, made)
        result = Value(len(stored))
        program = Program(Signature((), 0, (), ()), {}, (), stored, (), (step,), result)
        check_agreement(program, [operator])
        LoadedProgram(program, self.tensors, (), [operator], torch.device("cpu"))()

    def __str__(self) -> str:
        shapes = [f"{tuple(one.shape)} {one.dtype} {one.stride()}" for one in self.tensors]
        return f"{self._operator} {self.args} {self.kwargs} with {shapes}"


def peak_bytes() -> int:
    """The highest resident memory of this process so far."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


def calls(operator: OpOverload, seed: int, count: int, note: int) -> dict[str, Any]:
    """Makes calls of one operator in this process, and notes each before it is made."""
    chance = random.Random(f"{operator}{seed}")
    ran = failed = refused = 0
    wrong = []
    for _ in range(count):
        call = Call(operator, chance)
        os.ftruncate(note, 0)
        os.pwrite(note, str(call)[:1500].encode(), 0)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        before = peak_bytes()
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            call.run()
            ran += 1
        except PlanError:
            refused += 1
        except TrtError:
            failed += 1
        except BaseException as error:
            wrong.append(f"{call}: {type(error).__name__}: {error}"[:600])
        if peak_bytes() - before > MOST_MEMORY:
            wrong.append(f"{call} took {peak_bytes() - before} bytes")
    return {"ran": ran, "failed": failed, "refused": refused, "wrong": wrong}


def in_child(batch: list[OpOverload], seed: int, count: int) -> dict[str, Any]:
    """Makes calls of operators in a child process; one that dies is told by the call that it noted."""
    total: dict[str, Any] = {"ran": 0, "failed": 0, "refused": 0, "wrong": []}
    note = os.memfd_create("note")
    for operator in batch:
        answers, answer = os.pipe()
        child = os.fork()
        if not child:
            resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            os.write(answer, json.dumps(calls(operator, seed, count, note))[:60000].encode())
            os._exit(0)
        os.close(answer)
        with os.fdopen(answers, "rb") as file:
            found = file.read()
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status) or not found:
            call = os.pread(note, 1500, 0).decode(errors="replace")
            found = json.dumps({"wrong": [f"{call} ended the process with signal {os.WTERMSIG(status)}"]}).encode()
        for name, value in json.loads(found).items():
            total[name] += value
            for line in value if name == "wrong" else ():
                sys.stderr.write(f"{line}\n")
    return total


def main() -> None:
    """Runs the part of the operators that the command line names."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.ops.prims.abs(torch.ones(1))  # imports what Python operators need, once
    torch.ops.aten.mean(torch.ones(1, device="meta"))
    seed, count, *rest = map(int, sys.argv[1:])
    part, parts = rest or (0, 1)
    sys.stdout.write(json.dumps(in_child(list(operators())[part::parts], seed, count)) + "\n")


if __name__ == "__main__":
    main()
