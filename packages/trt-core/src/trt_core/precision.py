"""Which nodes stay in float32 where a model is computed in a reduced type, and why: what lowering notes on nodes."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated, Final

from torch import fx

from trt_core.files.records import by_value

EXCLUDED: Final = "excluded_from_reduced_precision"
"""Key in `node.meta`: why the node is not to be reduced. Nodes that take its place inherit it."""

KEPT: Final = "kept_in_float32"
"""Key in `node.meta`: the node was not reduced, though it would have been."""


class PrecisionRule(enum.Enum):
    """What decided that a node stays in float32. The value is the setting; positions and state need none."""

    OPERATOR = "autocast_excluded_ops"
    NODE = "autocast_excluded_nodes"
    MAGNITUDE = "autocast_max_output_threshold"
    DEPTH = "autocast_max_depth_of_reduction"
    SENSITIVITY = "max_error"
    POSITION = "position"
    STATE = "state"


@dataclass(frozen=True)
class KeptInFloat32:
    """Why a node stays in float32.

    Attributes:
        rule: The rule that decided.
        why: What the rule found, in words.
    """

    rule: Annotated[PrecisionRule, by_value(PrecisionRule)]
    why: str

    def __str__(self) -> str:
        return f"{self.rule.value}: {self.why}"


def exclusion_of(node: fx.Node) -> KeptInFloat32 | None:
    """Returns why a node is not to be reduced, None where nothing is against it."""
    found: KeptInFloat32 | None = node.meta.get(EXCLUDED)
    return found


def kept_in_float32(node: fx.Node) -> KeptInFloat32 | None:
    """Returns why a node was not reduced, None where it was, or never could have been."""
    found: KeptInFloat32 | None = node.meta.get(KEPT)
    return found
