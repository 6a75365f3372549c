"""What the zoo holds: architectures, the inputs they are compiled for, and the cases made of them."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import nn

from trt_core import Input


class Route(enum.Enum):
    """How a model gets to engines."""

    COMPILE = "compile"
    """`trt_frontends.compile`, which exports it."""
    TORCH_COMPILE = "torch.compile"
    """`torch.compile(backend="torch_tensorrt")`."""
    INDUCTOR = "inductor"
    """`torch.compile` as it comes; what speed is compared with, no route of the zoo's own cases."""
    AOT_EAGER = "aot_eager"
    """`torch.compile(backend="aot_eager")`: what PyTorch alone takes to trace, for cases that ran out of time."""


class Shapes(enum.Enum):
    """Which shapes a model is compiled for."""

    STATIC = "static"
    DYNAMIC = "dynamic"


@dataclass(frozen=True)
class Entry:
    """One architecture.

    Attributes:
        name: `library/model`, unique.
        make: Makes the module with random weights; the child process seeds the generator before.
        args: Positional inputs; ranges in them vary in dynamic cases, and stand for their optimum in static ones.
        kwargs: Inputs by keyword.
        excluded: Why no case of it can say anything (it draws random numbers, ...); empty for all others.
        fixed_shapes: Why the model itself works for one shape only; then it has no dynamic cases.
    """

    name: str
    make: Callable[[], nn.Module]
    args: tuple[Input, ...] = ()
    kwargs: Mapping[str, Input] = field(default_factory=dict)
    excluded: str = ""
    fixed_shapes: str = ""

    @property
    def library(self) -> str:
        """The library it comes from."""
        return self.name.partition("/")[0]


@dataclass(frozen=True)
class Case:
    """One way to run one entry.

    Attributes:
        entry: Name of the entry.
        route: How it gets to engines.
        shapes: Which shapes it is compiled for.
    """

    entry: str
    route: Route
    shapes: Shapes

    @property
    def key(self) -> tuple[str, str, str]:
        """The case as text."""
        return (self.entry, self.route.value, self.shapes.value)
