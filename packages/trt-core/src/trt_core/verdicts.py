"""Verdicts: whether a node can run in an engine and, if not, why.

A verdict is data. Computing one never raises; any doubt is a refusal, and the node runs in PyTorch.
The reason codes below are stable: scripts may match on them, and each has a page in the documentation.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from dataclasses import dataclass
from types import NoneType
from typing import Final, Protocol

from torch import fx

from trt_core.provenance import source_line


class Reason(enum.Enum):
    """Why a node runs in PyTorch. The value is (code, title, explanation, advice)."""

    NO_CONVERTER = (
        "TRT-F001",
        "No converter",
        "No converter is registered for this operator, and lowering has no decomposition that reaches one.",
        "Register a converter for it, or accept that it runs in PyTorch.",
    )
    FORCED_OPERATOR = (
        "TRT-F002",
        "Operator kept in PyTorch by a setting",
        "The operator is listed in `torch_executed_ops`.",
        "Remove it from the setting to let it be converted.",
    )
    FORCED_MODULE = (
        "TRT-F003",
        "Module kept in PyTorch by a setting",
        "The node belongs to a module listed in `torch_executed_modules`.",
        "Remove the module from the setting to let it be converted.",
    )
    DISABLED_CONVERTER = (
        "TRT-F004",
        "Converter disabled",
        "A converter exists and has been disabled from outside.",
        "Enable it again in the registry.",
    )
    UNSUPPORTED_DTYPE = (
        "TRT-F010",
        "Unsupported data type",
        "TensorRT has no such type for this operator (float64 and complex have none at all).",
        "Cast the tensors, or set `truncate_long_and_double` for float64.",
    )
    UNSUPPORTED_RANK = (
        "TRT-F011",
        "Unsupported rank",
        "TensorRT tensors have at most 8 dimensions, and some layers want a minimum rank.",
        "Reshape around the operator.",
    )
    EMPTY_TENSOR = (
        "TRT-F012",
        "Zero-size tensor",
        "The operator works on a tensor with no elements, which its layer cannot represent.",
        "Nothing to do: such nodes cost next to nothing in PyTorch.",
    )
    DYNAMIC_SHAPE = (
        "TRT-F020",
        "No dynamic shapes",
        "The converter of this operator needs static extents where the graph has symbolic ones.",
        "Compile with static shapes, or make the named dimension static.",
    )
    DATA_DEPENDENT_SHAPE = (
        "TRT-F021",
        "Data-dependent shape",
        "The extent of the result depends on the values of a tensor.",
        "Keep it in PyTorch, or bound the result.",
    )
    NOT_CONSTANT = (
        "TRT-F022",
        "Argument is not a constant",
        "An argument that TensorRT needs at build time is computed by the graph.",
        "Make the argument a Python number or a parameter.",
    )
    UNSUPPORTED_ARGUMENT = (
        "TRT-F030",
        "Unsupported argument",
        "An argument has a value that TensorRT's layers cannot express exactly.",
        "Change the argument, or accept that the node runs in PyTorch.",
    )
    TENSORRT_LIMIT = (
        "TRT-F031",
        "TensorRT limit",
        "The node exceeds a documented limit of TensorRT.",
        "Reduce the size that the message names.",
    )
    PROVIDER_VERSION = (
        "TRT-F032",
        "Needs another TensorRT version",
        "The layer that expresses this operator is not in the version in use.",
        "Install a TensorRT that has it.",
    )
    NO_LOW_PRECISION = (
        "TRT-F033",
        "No low-precision form",
        "The operator computes with quantized values in a form that no layer has: packed for one library's kernels, or "
        "of a type that networks do not quantize to.",
        "Quantize the float model with `trt_frontends.quantize`, or export it before its weights are packed.",
    )
    LEFT_IN_FLOAT = (
        "TRT-F034",
        "Left in float",
        "The product is excluded from quantization, or is of a kind that the configuration does not name.",
        "Take it out of `exclude`, or name its kind in `operators`.",
    )
    WEIGHT_IN_FLOATS = (
        "TRT-F035",
        "Weight in floats",
        "The product runs in an engine, but its weight, which the model stores in 8 or 4 bits, is floats there: no "
        "layer holds it as it is stored, or it may be replaced. Results are right, and memory is that of floats.",
        "Store groups of one size, or compile without `refit`.",
    )
    CHECK_FAILED = (
        "TRT-F040",
        "Support check failed",
        "The support check raised an exception, so it counts as a refusal.",
        "This is a defect of the converter: report it with the message.",
    )
    CONVERSION_FAILED = (
        "TRT-F041",
        "Conversion failed",
        "The converter accepted the node and then failed on it; the graph was partitioned again without it.",
        "This is a defect of the converter: report it with the message.",
    )
    BUILD_FAILED = (
        "TRT-F042",
        "Engine build failed",
        "The provider could not build the engine of this block, so the block runs in PyTorch.",
        "Read the provider's message; `pass_through_build_failures=True` turns it into an error.",
    )
    UNSUPPORTED_VALUE = (
        "TRT-F050",
        "Not a tensor",
        "The node takes or returns something that is not a tensor, a number or a list of them.",
        "Nothing to do: such nodes run in PyTorch.",
    )
    MUTATION = (
        "TRT-F051",
        "Changes a tensor in place",
        "The node writes to an input, a buffer or a view that others see.",
        "Write rows of a cache that follow each other, and read it afterwards alone (`index_copy_`, "
        "`cache[:, :, places] = rows`): engines do so in place. Else accept that the node runs in PyTorch.",
    )
    SIDE_EFFECT = (
        "TRT-F052",
        "Side effect or randomness",
        "The node must run exactly once and in order, with PyTorch's own generator.",
        "Nothing to do: such nodes run in PyTorch.",
    )
    HIGHER_ORDER = (
        "TRT-F053",
        "Control flow",
        "The node runs a graph of its own that engines do not, or whose operators do not all convert.",
        "See the message for the operator. `torch.cond`, `while_loop`, `scan` and `map` convert with all they hold.",
    )
    UNBOUND_ARGUMENTS = (
        "TRT-F054",
        "Arguments do not match the schema",
        "The arguments of the node could not be bound to the operator's schema.",
        "The graph is malformed: report how it was made.",
    )
    SMALL_BLOCK = (
        "TRT-F060",
        "Block too small",
        "The node can be converted, but its block has fewer operators than `min_block_size`.",
        "Lower `min_block_size`.",
    )
    NO_COMPUTATION = (
        "TRT-F061",
        "Block without computation",
        "The node can be converted, but its block only moves or names data.",
        "Nothing to do: an engine would cost more than it saves.",
    )

    @property
    def code(self) -> str:
        """Stable code, `TRT-F` and three digits."""
        return self.value[0]

    @property
    def title(self) -> str:
        """A few words, as the heading of the reason's page."""
        return self.value[1]

    @property
    def explanation(self) -> str:
        """What the reason means, in one or two sentences."""
        return self.value[2]

    @property
    def advice(self) -> str:
        """What a user can do about it."""
        return self.value[3]

    @classmethod
    def from_code(cls, code: str) -> Reason:
        """Returns the reason with that code.

        Raises:
            KeyError: No reason has the code.
        """
        for reason in cls:
            if reason.code == code:
                return reason
        raise KeyError(code)


@dataclass(frozen=True)
class Verdict:
    """Whether a node can run in an engine.

    Attributes:
        supported: True when it can.
        reason: The stable reason of a refusal, None when supported.
        message: What exactly stands in the way on this node; empty when supported.
        source: `file:line` of the model's code that made the node; empty when unknown.
    """

    supported: bool
    reason: Reason | None = None
    message: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        if self.supported != (self.reason is None):
            raise ValueError("a verdict has a reason exactly when it is a refusal")
        if not isinstance(self.reason, (Reason, NoneType)) or not isinstance(self.message, str):
            raise TypeError(f"a refusal has a Reason and a message, not {self.reason!r} and {self.message!r}")

    def __bool__(self) -> bool:
        return self.supported

    @property
    def code(self) -> str:
        """The reason's code, or an empty string when supported."""
        return self.reason.code if self.reason else ""

    @staticmethod
    def refuse(reason: Reason, message: str = "", source: str = "") -> Verdict:
        """Returns a refusal; without a message the reason's explanation is used."""
        return Verdict(False, reason, message or reason.explanation, source)


SUPPORTED: Final = Verdict(True)
"""The verdict of a node that can run in an engine."""


class OperatorSupport(Protocol):
    """Says whether a node can run in an engine. Total: it never raises, any doubt is a refusal."""

    def verdict(self, node: fx.Node) -> Verdict:
        """Returns the verdict of a `call_function` node."""
        ...


def total_verdict(decide: Callable[[fx.Node], Verdict], node: fx.Node) -> Verdict:
    """Returns what `decide` says of a node; never raises.

    An exception, or a result that is no verdict, is a refusal with `Reason.CHECK_FAILED`. Refusals get the node's
    source line.
    """
    try:
        verdict = decide(node)
    except (Exception, SystemExit) as error:  # whoever wrote the check must not end the process
        verdict = Verdict.refuse(Reason.CHECK_FAILED, f"{type(error).__name__}: {error}")
    if not isinstance(verdict, Verdict):
        verdict = Verdict.refuse(Reason.CHECK_FAILED, f"the check returned {verdict!r}, not a Verdict")
    if verdict.supported or verdict.source:
        return verdict
    return dataclasses.replace(verdict, source=source_line(node))


IN_FLOATS: Final = "weight_in_floats"
"""Key of `fx.Node.meta`: why a weight that the node reads, and that the model stores in few bits, is floats."""

LEFT_COMPLEX: Final = "left_complex"
"""Key of `fx.Node.meta`: why a node still computes with complex numbers; its verdict repeats it."""
