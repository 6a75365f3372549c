"""Tactics: the ways in which an engine can execute its layers."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from trt_portable.runtime.fusion import fuse_linear
from trt_portable.runtime.program import LayerCall, Program


@dataclass(frozen=True)
class ProgramImage:
    """A network in executable order, before a tactic was chosen.

    Attributes:
        calls: Layers bound to tensor ids.
        inputs: Ids of the network inputs.
        outputs: Ids of the network outputs.
        visible: Ids of tensors that something besides the layers reads.
        level: Builder optimization level, 0 to 5.
    """

    calls: tuple[LayerCall, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    visible: frozenset[int]
    level: int


class Tactic(ABC):
    """One way of executing a program.

    Attributes:
        name: Stands in the plan.
        least_level: Builder optimization level from which the tactic is a candidate.
    """

    name: ClassVar[str]
    least_level: ClassVar[int]

    @abstractmethod
    def load(self, image: ProgramImage) -> Program:
        """Makes the program that runs the image."""

    @property
    def hash(self) -> int:
        """Identity in the timing cache."""
        digest = hashlib.sha256(self.name.encode()).digest()
        return int.from_bytes(digest[:8], "little") >> 1


class Interpret(Tactic):
    """PyTorch's kernels, layer by layer, with neighbours fused where that changes no meaning."""

    name = "interpret"
    least_level = 0

    def load(self, image: ProgramImage) -> Program:
        """Fuses from level 1 on; at level 0 every layer runs as it stands."""
        calls: Sequence[LayerCall] = image.calls
        if image.level > 0:
            calls = fuse_linear(calls, image.visible)
        return Program(calls, image.inputs, image.outputs)


TACTICS: dict[str, Tactic] = {tactic.name: tactic for tactic in (Interpret(),)}


def candidates(level: int) -> list[Tactic]:
    """The tactics that a build at a level may choose from, simplest first."""
    return [tactic for tactic in TACTICS.values() if tactic.least_level <= level]
