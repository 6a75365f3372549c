"""Candidates at one profile: built, held to what interpreting computes, and timed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Final

import torch

from trt_portable.builder.host_time import ColdWeights, host_clock
from trt_portable.builder.product_race import ProductRace
from trt_portable.builder.race import race
from trt_portable.builder.tactics import INTERPRET, PREPACKED, Subject, Tactic
from trt_portable.builder.timing import (
    as_engines_run,
    first_difference,
    milliseconds,
    race_milliseconds,
    time_layers,
)
from trt_portable.errors import PortableError, is_out_of_memory
from trt_portable.execution.launch_list import CompiledProgram
from trt_portable.execution.launcher import Executable
from trt_portable.execution.program import Program
from trt_portable.execution.tf32 import WithoutTF32
from trt_portable.plan.artifact import Artifact
from trt_portable.plan.weight_store import WeightStore
from trt_portable.reporting import Reporter
from trt_portable.shape_tensors import Value, as_tensor

_BUDGET_SECONDS: Final = {0: 0.0, 1: 0.0, 2: 0.0, 3: 120.0, 4: 600.0, 5: 1800.0}
"""No further candidate is begun after that time; what was begun is finished."""
RACE: Final = "all, in turns"
"""What is tried last on a GPU."""
_FEW_BYTES: Final = 64 << 20
"""Weights on the CPU up to which a model may be in memory twice: then programs are timed as they run. Larger ones with
packed weights are timed layer by layer; the small layers of a MobileNet would find in caches then what they do not find
there in a run."""
_LEAST_RUNS: Final = 15
_CLEAR_GAIN: Final = 0.9
_CLEAR_LOSS: Final = 1.33
"""Packed weights that take between these parts of the plain layers' time are timed again: of two measurements, one
after the other, work of others may disturb only one, and packing gains as a rule."""
_TURNS: Final = 2
NEVER: Final = float("inf")
"""The time of what cannot run."""


class Trial:
    """Builds and times candidates.

    Args:
        subject: What is built.
        profile: The profile whose optimal shapes count.
        iterations: Samples to take of each candidate.
        level: The optimization level, which bounds the time.
        reporter: Hears what became of each candidate.
        attempt: What is entered for each candidate, by its name, as long as it is tried.
    """

    def __init__(
        self,
        subject: Subject,
        profile: int,
        iterations: int,
        level: int,
        reporter: Reporter,
        attempt: Callable[[str], AbstractContextManager[object]],
    ) -> None:
        self._subject = subject
        self._profile = profile
        self._iterations = iterations
        self._until = time.monotonic() + _BUDGET_SECONDS[level]
        self._reporter = reporter
        self._attempt = attempt
        self._prepacked: Program | None = None

    def time_interpreted(self) -> float:
        """Milliseconds of an interpreted run on the CPU; `NEVER` when the network cannot run on example inputs."""
        with self._attempt(INTERPRET):
            try:
                _ = self._expected
                return self._milliseconds(self._interpreted)
            except Exception as error:
                if not (isinstance(error, PortableError) or is_out_of_memory(error)):  # so large are the example inputs
                    raise
                self._reporter.info(f"tactic {INTERPRET}: cannot be timed: {error}")
                return NEVER

    def time_prepacked(self) -> tuple[float, tuple[str, ...]]:
        """Milliseconds of a run with weights packed, and the fastest kernel of each product with a matrix.

        `NEVER`, and no kernels, where nothing is to pack, or something goes wrong.
        """
        with self._attempt(PREPACKED):
            try:
                products = ProductRace(self._cold_weights, self._reporter.verbose)
                self._prepacked = self._subject.prepacked(products)
                if self._prepacked is None:
                    return NEVER, ()
                found, spent = self._run_prepacked(self._prepacked)
                counts = Counter(products.names)
                self._reporter.verbose(f"tactic {PREPACKED}: {spent:.4f} ms, products by {dict(counts)}")
                return (spent, products.names) if self._is_right(PREPACKED, found) else (NEVER, ())
            except Exception as error:  # whatever goes wrong, the layers themselves can still run
                self._reporter.info(f"tactic {PREPACKED}: not available here: {type(error).__name__}: {error}")
                return NEVER, ()

    def compare_layers(self, plain: float, packed: float) -> tuple[float, float]:
        """Tells the layers as they are and with packed weights apart where they seem to take about as long.

        Then they are timed once more, in turns, so that other work on the machine disturbs both.

        Args:
            plain: Milliseconds of the layers as they are, as measured first.
            packed: The same with packed weights.

        Returns:
            Milliseconds of each.
        """
        if self._prepacked is None or not plain * _CLEAR_GAIN < packed < plain * _CLEAR_LOSS:
            return plain, packed
        try:
            plain, packed = self._in_turns(self._prepacked)
        except Exception as error:
            self._reporter.info(f"tactic {PREPACKED}: cannot be timed again: {type(error).__name__}: {error}")
            return plain, NEVER
        self._reporter.verbose(f"tactics {INTERPRET} and {PREPACKED}, in turns: {plain:.4f} and {packed:.4f} ms")
        return plain, packed

    def _in_turns(self, prepacked: Program) -> tuple[float, float]:
        """Milliseconds of the layers as they are and with packed weights."""
        if self._is_small:
            runs = [as_engines_run(each, self._values, self._subject.device) for each in (self._interpreted, prepacked)]
            plain, packed = race(runs, lambda: None, self._iterations, clock=host_clock())
            return plain * 1e3, packed * 1e3
        turns = [(self._milliseconds(self._interpreted), self._run_prepacked(prepacked)[1]) for _ in range(_TURNS)]
        return min(plain for plain, _ in turns), min(packed for _, packed in turns)

    def begin(self, tactics: Sequence[Tactic]) -> None:
        """Lets tactics begin what goes on by itself, while the layers run for the first time, which takes long too."""
        try:
            for tactic in tactics:
                tactic.begin()
            _ = self._expected
        except Exception as error:  # a tactic that cannot begin says so when it is built
            self._reporter.verbose(f"tactics: {type(error).__name__}: {error}")

    def build(self, tactic: Tactic) -> tuple[Artifact, CompiledProgram] | None:
        """What a tactic makes, if it computes what it should; None, with a note, whatever goes wrong."""
        with self._attempt(tactic.name):
            return self._build(tactic)

    def _build(self, tactic: Tactic) -> tuple[Artifact, CompiledProgram] | None:
        if time.monotonic() > self._until:
            self._reporter.verbose(f"tactic {tactic.name}: not tried, the time for tactics is spent")
            return None
        started = time.monotonic()
        try:
            artifact = tactic.build(self._subject, self._profile)
            if artifact is None:
                return None
            if artifact.shapes != self._subject.input_shapes(self._profile):
                raise ValueError(f"it is for inputs of the shapes {artifact.shapes}")
            program = CompiledProgram(artifact, self._weights, self._subject.device)
            _ = self._expected  # of inputs as they are now
            with torch.inference_mode():
                found = program.run(self._values)
                is_right = self._keeps_inputs(tactic.name) and self._is_right(tactic.name, found)
        except (Exception, SystemExit) as error:  # a compiler may fail in any way, and an engine needs none
            self._reporter.info(f"tactic {tactic.name}: not available here: {type(error).__name__}: {error}")
            self.__dict__.pop("_values", None)  # it may have written to them
            return None
        self._reporter.verbose(f"tactic {tactic.name}: built in {time.monotonic() - started:.1f} s")
        return (artifact, program) if is_right else None

    @property
    def is_raced(self) -> bool:
        """Whether candidates are timed together, by `race`; on the CPU each is timed when it is there."""
        return self._subject.device.type != "cpu"

    def race(self, programs: Sequence[tuple[Tactic, CompiledProgram]]) -> list[float]:
        """Times interpreting and what tactics made, in turns and as the engine would run them.

        Returns:
            Milliseconds of an interpreted run, and of each program; `NEVER` for what fails.
        """
        names = [INTERPRET, *(tactic.name for tactic, _ in programs)]
        self.__dict__.pop("_expected", None)  # all are right, and each takes memory for outputs now
        with self._attempt(RACE):
            executables: list[Executable] = [self._interpreted, *(program for _, program in programs)]
            found = race_milliseconds(
                [self._as_allowed(each) for each in executables], self._values, self._subject.device, self._iterations
            )
        for name, spent in zip(names, found, strict=True):
            if isinstance(spent, Exception):
                self._reporter.info(f"tactic {name}: cannot be timed: {spent}")
            else:
                self._reporter.verbose(f"tactic {name}: {spent:.4f} ms")
        return [NEVER if isinstance(spent, Exception) else spent for spent in found]

    def time(self, tactic: Tactic, program: CompiledProgram) -> float:
        """Milliseconds of a run of what a tactic made; `NEVER` when it fails."""
        try:
            return self._milliseconds(program)
        except Exception as error:
            self._reporter.info(f"tactic {tactic.name}: cannot be timed: {error}")
            return NEVER

    def _is_right(self, name: str, found: Sequence[Value]) -> bool:
        """Whether a candidate computes what interpreting computes; says so where it does not."""
        held = {tensor.dtype for tensor in self._subject.tensors}
        difference = first_difference(found, self._expected, held)
        if difference is not None:
            self._reporter.warning(f"tactic {name} is left out, for it computes something else: {difference}")
        return difference is None

    def _keeps_inputs(self, name: str) -> bool:
        """Whether the inputs are what they were, and were not written to; says so where they were."""
        fresh = self._subject.example_inputs(self._profile)
        pairs = zip(map(as_tensor, self._values), map(as_tensor, fresh), strict=True)
        if all(torch.equal(have, want) for have, want in pairs):
            return True
        self._reporter.warning(f"tactic {name} is left out, for it writes to inputs")
        self._values = fresh
        return False

    def _run_prepacked(self, program: Program) -> tuple[list[Value], float]:
        """The outputs of a program with packed weights, and milliseconds of a run."""
        with torch.inference_mode():
            if not self._is_small:
                return time_layers(program, self._values, self._cold_weights)
            return program.run(self._values), self._milliseconds(program)

    def _milliseconds(self, executable: Executable) -> float:
        samples = max(self._iterations, _LEAST_RUNS) if self._is_small else self._iterations
        return milliseconds(executable, self._values, self._subject.device, samples)

    @cached_property
    def _is_small(self) -> bool:
        return self._num_bytes <= _FEW_BYTES

    @cached_property
    def _num_bytes(self) -> int:
        blocks = {tensor.data_ptr(): tensor.nbytes for tensor in self._subject.tensors}  # some are used several times
        return sum(blocks.values())

    @cached_property
    def _cold_weights(self) -> ColdWeights:
        return ColdWeights(self._num_bytes)

    def _as_allowed(self, executable: Executable) -> Executable:
        """An executable as the engine runs it, with TF32 or without."""
        return executable if self._subject.info.allows_tf32 else WithoutTF32(executable)

    @cached_property
    def _values(self) -> list[Value]:
        return self._subject.example_inputs(self._profile)

    @cached_property
    def _interpreted(self) -> Program:
        return self._subject.interpreted()

    @cached_property
    def _expected(self) -> Sequence[Value]:
        with torch.inference_mode():
            return self._interpreted.run(self._values)

    @cached_property
    def _weights(self) -> WeightStore:
        return self._subject.weights()
