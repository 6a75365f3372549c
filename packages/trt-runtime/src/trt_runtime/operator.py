"""The one operator through which engines run, in eager mode, in exported programs and under torch.compile.

    torch.ops.trt.execute_engine(Tensor[] inputs, Tensor plan, str header) -> Tensor[]

`plan` is the serialized engine, uint8 of shape (bytes,) on the CPU; `header` is `PlanHeader.text`.
Importing this module registers the operator.
"""

from __future__ import annotations

from typing import Final

import torch

from trt_runtime.bindings import require_addressable, shape_in_call, symbol_values
from trt_runtime.engine import ENGINES
from trt_runtime.header import parse_header
from trt_runtime.input_check import check_inputs, device_of

OPERATOR: Final = "trt::execute_engine"

_library = torch.library.Library("trt", "FRAGMENT")
_library.define(
    "execute_engine(Tensor[] inputs, Tensor plan, str header) -> Tensor[]",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _execute(inputs: list[torch.Tensor], plan: torch.Tensor, header: str) -> list[torch.Tensor]:
    return ENGINES.run(inputs, plan, header)


def _infer(inputs: list[torch.Tensor], plan: torch.Tensor, header: str) -> list[torch.Tensor]:
    """Outputs of the right type, shape and device without running anything; shapes may be symbolic."""
    described = parse_header(header)
    device = device_of(described, inputs)
    check_inputs(described, inputs, device, range(len(inputs)))
    symbols = symbol_values(described.symbols, inputs)
    outputs = []
    for binding in described.outputs:
        shape = [
            torch.library.get_ctx().new_dynamic_size() if extent is None else extent
            for extent in shape_in_call(binding, symbols, described.title)
        ]
        require_addressable(binding, shape, described.title)
        outputs.append(torch.empty(shape, dtype=binding.dtype, device=device))
    return outputs


_library.impl("execute_engine", _execute, "CPU")
_library.impl("execute_engine", _execute, "CUDA")
torch.library.register_fake(OPERATOR, _infer, lib=_library)

execute_engine: Final = torch.ops.trt.execute_engine.default
"""The registered operator."""
