"""One question, asked many times: how large is the error when these nodes run in PyTorch and the rest in engines?"""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import fx, nn

from trt_core import InputError, Reason, Verdict
from trt_frontends.comparison.output_error import measure_error
from trt_frontends.comparison.sample_inputs import SampleInputs
from trt_frontends.pipeline import BuiltModel, LoweredModel
from trt_frontends.result_tensors import tensors_of

_LEFT_OUT = Verdict.refuse(Reason.BUILD_FAILED, "it failed to build when the search began")
_IN_PYTORCH = Verdict.refuse(Reason.FORCED_OPERATOR, "kept in PyTorch to look for the cause of an error")


class Experiment:
    """Runs a lowered model with some of its nodes in PyTorch, and compares with eager.

    Engines are built once for each set of nodes that is left in them. Answers are remembered, in a file too where one
    is given, so that a search that was interrupted goes on where it stopped.

    Args:
        built: The model. Engines that are not built are built when they are asked for.
        cases: Inputs to compare on.
        expected: Eager's outputs for them: tensors, in order.
        answers: What is known already.

    Attributes:
        built: The model.
        builds: How many engines were built.
        asked: How many times the model was run to find an answer.
    """

    def __init__(
        self,
        built: BuiltModel,
        cases: Sequence[SampleInputs],
        expected: Sequence[Sequence[torch.Tensor]],
        answers: _Answers,
    ) -> None:
        self.built = built
        self.builds = len(built.engines)
        self.asked = 0
        self._cases = cases
        self._expected = expected
        self._pieces: dict[tuple[str, frozenset[str]], nn.Module] = {}
        self._operators = {name: _operators(block) for name, block in built.blocks.items()}
        self._answers = answers
        self._question = ""

    @classmethod
    def begin(
        cls,
        lowered: LoweredModel,
        cases: Sequence[SampleInputs],
        expected: Sequence[Sequence[torch.Tensor]],
        state: Path | None = None,
    ) -> Experiment:
        """Builds the engines that `compile` builds; where answers are kept, they say what that left to PyTorch.

        Args:
            lowered: The model.
            cases, expected: See the class.
            state: File that answers are kept in; it belongs to one model, one set of inputs and one set of settings.

        Raises:
            InputError: The file holds the answers of another search.
            TrtError: What building raises.
        """
        answers = _Answers(state, _identity(lowered, expected))
        if answers.left_out is None:
            built = lowered.build()
            answers.left_out = tuple(lowered.excluded)
        else:
            lowered.excluded.update(dict.fromkeys(answers.left_out, _LEFT_OUT))
            built = lowered.split(lowered.plan())
        return cls(built, cases, expected, answers)

    def against_pytorch(self) -> Experiment:
        """Returns the same search with the lowered graph's own results in PyTorch as what is right.

        Answers are kept in the same file, and engines that were built are built once for both.
        """
        other = copy.copy(self)
        other.builds = other.asked = 0
        with torch.no_grad(), self.built.running(self.built.blocks):
            other._expected = [tensors_of(case.call(self.built.module)) for case in self._cases]
        other._question = "against PyTorch: "
        return other

    @property
    def nodes(self) -> tuple[fx.Node, ...]:
        """Every node that runs in an engine, in the order of the graph."""
        return tuple(node for nodes in self._operators.values() for node in nodes)

    def engine_of(self, node: fx.Node) -> str:
        """Returns the name of the engine that a node is in."""
        return next(name for name, nodes in self._operators.items() if node in nodes)

    def error(self, kept: Iterable[str]) -> float:
        """Returns the worst scaled error of any output on any input, with the nodes of these names in PyTorch."""
        names = frozenset(kept)
        key = self._question + _key(names)
        known = self._answers.get(key)
        if known is not None:
            return known
        self.asked += 1
        found = self._measure(names)
        self._answers.put(key, found)
        return found

    def error_of_engine(self, name: str) -> float:
        """Returns the error when one engine runs as an engine and every other one in PyTorch."""
        return self.error(node.name for other, nodes in self._operators.items() if other != name for node in nodes)

    def _measure(self, kept: frozenset[str]) -> float:
        pieces = {name: self._piece(name, kept) for name in self.built.blocks}
        with torch.no_grad(), self.built.running(pieces):
            results = [tensors_of(case.call(self.built.module)) for case in self._cases]
        return max(
            (
                measure_error(left, right).scaled
                for found, expected in zip(results, self._expected, strict=True)
                for left, right in zip(found, expected, strict=True)
            ),
            default=0.0,
        )

    def _piece(self, name: str, kept: frozenset[str]) -> nn.Module:
        """The module that runs a block with some of its nodes in PyTorch."""
        operators = {node.name for node in self._operators[name]}
        here = kept & operators
        if here == operators:
            return self.built.blocks[name]
        if not here and name in self.built.engines:
            return self.built.engines[name]
        piece = self._pieces.get((name, here))
        if piece is None:
            self.builds += 1
            piece = self._build(name, here)
            if len(self._pieces) > 2 * len(self._operators) + 4:
                self._pieces.pop(next(iter(self._pieces)))
            self._pieces[name, here] = piece
        return piece

    def _build(self, name: str, kept: frozenset[str]) -> nn.Module:
        lowered = self.built.lowered
        if not kept:
            return lowered.engine(self.built.blocks[name], name)
        settings = lowered.settings.replace(min_block_size=1, require_full_compilation=False, dryrun=False)
        part = LoweredModel(
            self.built.blocks[name],
            settings,
            lowered.ranges,
            lowered.registry,
            excluded=dict.fromkeys(kept, _IN_PYTORCH),
            is_block=True,
        )
        return part.build().module


class _Answers:
    """Errors by question and set of nodes, mirrored in a file.

    Attributes:
        left_out: Nodes that compiling left to PyTorch as they failed to build; None before it was tried.
    """

    def __init__(self, path: Path | None, identity: str) -> None:
        self._path = path
        self._identity = identity
        self._known: dict[str, float] = {}
        self.left_out: tuple[str, ...] | None = None
        if path is not None and path.exists():
            self._known, self.left_out = self._read(path)

    def get(self, key: str) -> float | None:
        return self._known.get(key)

    def put(self, key: str, error: float) -> None:
        self._known[key] = error
        if self._path is not None:
            temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
            try:
                kept = {"search": self._identity, "left_out": self.left_out, "errors": self._known}
                temporary.write_text(json.dumps(kept), encoding="utf-8")
                os.replace(temporary, self._path)
            finally:
                temporary.unlink(missing_ok=True)

    def _read(self, path: Path) -> tuple[dict[str, float], tuple[str, ...]]:
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            identity, errors = data["search"], {str(key): float(value) for key, value in data["errors"].items()}
            left_out = tuple(map(str, data["left_out"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                "this is not the state of a search", where=str(path), why=str(error), hint="give a new file"
            ) from error
        if identity != self._identity:
            raise InputError(
                "this is the state of another search",
                where=str(path),
                why="model, weights, inputs or settings differ",
                hint="give a new file, or remove this one",
            )
        return errors, left_out


def _key(names: frozenset[str]) -> str:
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:24]


def _identity(lowered: LoweredModel, expected: Sequence[Sequence[torch.Tensor]]) -> str:
    digest = hashlib.sha256(str(lowered.graph.graph).encode())
    digest.update(str(lowered.settings).encode())
    for results in expected:  # what eager computes depends on the weights and the inputs
        for tensor in results:
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:32]


def _operators(child: fx.GraphModule) -> Mapping[fx.Node, None]:
    return {
        node: None
        for node in child.graph.nodes
        if node.op == "call_function" and not isinstance(node.meta.get("val"), (int, float, torch.SymInt))
    }
