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
from trt_frontends.accuracy.blocks import LoweredModel
from trt_frontends.comparison.output_error import measure_error
from trt_frontends.comparison.sample_inputs import SampleInputs
from trt_frontends.pipeline import Compilation
from trt_frontends.result_tensors import tensors_of

_IN_PYTORCH = Verdict.refuse(Reason.FORCED_OPERATOR, "kept in PyTorch to look for the cause of an error")


class Experiment:
    """Runs a lowered model with some of its nodes in PyTorch, and compares with eager.

    Engines are built once for each set of nodes that is left in them. Answers are remembered, in a file too where one
    is given, so that a search that was interrupted goes on where it stopped.

    Args:
        lowered: The model.
        cases: Inputs to compare on.
        expected: Eager's outputs for them: tensors, in order.
        state: File that answers are kept in; it belongs to one model, one set of inputs and one set of settings.

    Attributes:
        builds: How many engines were built.
        asked: How many times the model was run to find an answer.

    Raises:
        InputError: The file holds the answers of another search.
    """

    def __init__(
        self,
        lowered: LoweredModel,
        cases: Sequence[SampleInputs],
        expected: Sequence[Sequence[torch.Tensor]],
        state: Path | None = None,
    ) -> None:
        self.builds = 0
        self.asked = 0
        self._lowered = lowered
        self._cases = cases
        self._expected = expected
        self._pieces: dict[tuple[str, frozenset[str]], nn.Module] = {}
        self._children = {name: _child(lowered.split, name) for name in lowered.engines}
        self._operators = {name: _operators(child) for name, child in self._children.items()}
        self._answers = _Answers(state, _identity(lowered, expected))
        self._question = ""

    def against_pytorch(self) -> Experiment:
        """Returns the same search with the lowered graph's own results in PyTorch as what is right.

        Answers are kept in the same file, and engines that were built are built once for both.
        """
        other = copy.copy(self)
        other.builds = other.asked = 0
        with torch.no_grad():
            other._expected = [tensors_of(case.call(self._lowered.split)) for case in self._cases]
        other._question = "against PyTorch: "
        return other

    @property
    def nodes(self) -> tuple[fx.Node, ...]:
        """Every node that runs in an engine, in the order of the graph."""
        return tuple(node for name in self._lowered.engines for node in self._operators[name])

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
        split = self._lowered.split
        try:
            for name in self._lowered.engines:
                split.set_submodule(name, self._piece(name, kept))
            with torch.no_grad():
                results = [tensors_of(case.call(split)) for case in self._cases]
        finally:
            for name, child in self._children.items():
                split.set_submodule(name, child)
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
        child = self._children[name]
        if here == operators:
            return child
        piece = self._pieces.get((name, here))
        if piece is None:
            self.builds += 1
            piece = self._build(child, here, name)
            if len(self._pieces) > 2 * len(self._children) + 4:
                self._pieces.pop(next(iter(self._pieces)))
            self._pieces[name, here] = piece
        return piece

    def _build(self, child: fx.GraphModule, kept: frozenset[str], name: str) -> nn.Module:
        if not kept:
            return self._lowered.build(child, name)
        compilation = self._lowered.compilation
        settings = compilation.settings.replace(min_block_size=1, require_full_compilation=False, dryrun=False)
        excluded = dict.fromkeys(kept, _IN_PYTORCH)
        return Compilation(child, settings, compilation.ranges, compilation.registry, excluded=excluded).run()


class _Answers:
    """Errors by question and set of nodes, mirrored in a file."""

    def __init__(self, path: Path | None, identity: str) -> None:
        self._path = path
        self._identity = identity
        self._known: dict[str, float] = {}
        if path is not None and path.exists():
            self._known = self._read(path)

    def get(self, key: str) -> float | None:
        return self._known.get(key)

    def put(self, key: str, error: float) -> None:
        self._known[key] = error
        if self._path is not None:
            temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
            try:
                temporary.write_text(json.dumps({"search": self._identity, "errors": self._known}), encoding="utf-8")
                os.replace(temporary, self._path)
            finally:
                temporary.unlink(missing_ok=True)

    def _read(self, path: Path) -> dict[str, float]:
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            identity, errors = data["search"], {str(key): float(value) for key, value in data["errors"].items()}
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
        return errors


def _key(names: frozenset[str]) -> str:
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:24]


def _identity(lowered: LoweredModel, expected: Sequence[Sequence[torch.Tensor]]) -> str:
    digest = hashlib.sha256(str(lowered.graph.graph).encode())
    digest.update(str(lowered.settings).encode())
    for results in expected:  # what eager computes depends on the weights and the inputs
        for tensor in results:
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:32]


def _child(split: fx.GraphModule, name: str) -> fx.GraphModule:
    child = split.get_submodule(name)
    assert isinstance(child, fx.GraphModule)
    return child


def _operators(child: fx.GraphModule) -> Mapping[fx.Node, None]:
    return {
        node: None
        for node in child.graph.nodes
        if node.op == "call_function" and not isinstance(node.meta.get("val"), (int, float, torch.SymInt))
    }
