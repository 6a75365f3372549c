"""The operators through which engines run, in eager mode, in exported programs and under torch.compile.

    torch.ops.trt.execute_engine(Tensor[] inputs, Tensor plan, str header) -> Tensor[]
    torch.ops.trt.update_by_engine(Tensor(a!)[] states, Tensor[] inputs, Tensor(b!)[] outputs, Tensor plan, str header)
        -> ()
    torch.ops.trt.engine_outputs(Tensor[] inputs, str header) -> Tensor[]
    torch.ops.trt.refuse_gradients(Tensor[] gradients, Tensor[] inputs, str header) -> Tensor[]

The second one is for engines that update inputs in place: it takes those apart from the others, each in their order,
and writes to memory that the third one allocates, since PyTorch makes no operator functional that does both. The fourth
one is the gradient of the first, and an error where it is computed: whoever captures a call may record gradients that
nobody asks for.

`plan` is the serialized engine, uint8 of shape (bytes,) on the CPU; `header` is `PlanHeader.text`.
Importing this module registers the operator.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn

import torch

from trt_core.errors import ExecutionError
from trt_runtime.bindings import require_addressable, shape_in_call, symbol_values
from trt_runtime.engine import ENGINES
from trt_runtime.header import parse_header
from trt_runtime.input_check import check_inputs, device_of

OPERATOR: Final = "trt::execute_engine"
UPDATING: Final = "trt::update_by_engine"
ALLOCATING: Final = "trt::engine_outputs"
REFUSING: Final = "trt::refuse_gradients"

_library = torch.library.Library("trt", "FRAGMENT")
_library.define(
    "execute_engine(Tensor[] inputs, Tensor plan, str header) -> Tensor[]", tags=(torch.Tag.pt2_compliant_tag,)
)
_library.define(
    "update_by_engine(Tensor(a!)[] states, Tensor[] inputs, Tensor(b!)[] outputs, Tensor plan, str header) -> ()",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.define("engine_outputs(Tensor[] inputs, str header) -> Tensor[]", tags=(torch.Tag.pt2_compliant_tag,))
_library.define(
    "refuse_gradients(Tensor[] gradients, Tensor[] inputs, str header) -> Tensor[]",
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


def _update(
    states: list[torch.Tensor], inputs: list[torch.Tensor], outputs: list[torch.Tensor], plan: torch.Tensor, header: str
) -> None:
    ENGINES.run(_in_order(states, inputs, header), plan, header, outputs)


def _infer_update(
    states: list[torch.Tensor], inputs: list[torch.Tensor], outputs: list[torch.Tensor], plan: torch.Tensor, header: str
) -> None:
    _infer(_in_order(states, inputs, header), plan, header)


def _allocate(inputs: list[torch.Tensor], header: str) -> list[torch.Tensor]:
    return _infer(inputs, inputs[0], header)


def _refuse(gradients: list[torch.Tensor], inputs: list[torch.Tensor], header: str) -> NoReturn:
    """Says why there are none.

    Raises:
        ExecutionError: Always.
    """
    raise ExecutionError(
        "engines compute no gradients",
        where=f"backward() through {parse_header(header).title}",
        hint="call the model under torch.no_grad() or torch.inference_mode(), or detach its inputs",
    )


def _keep_for_refusal(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    taken, *others = inputs
    ctx.header, ctx.others = others[-1], len(others)
    ctx.at = [at for at, value in enumerate(taken) if value.is_floating_point()]
    ctx.count = len(taken)
    ctx.save_for_backward(*(taken[at] for at in ctx.at))


def _differentiate(ctx: Any, gradients: list[torch.Tensor | None]) -> tuple[Any, ...]:
    known = [gradient for gradient in gradients if gradient is not None]
    made = iter(torch.ops.trt.refuse_gradients(known, list(ctx.saved_tensors), ctx.header))
    return [next(made) if at in ctx.at else None for at in range(ctx.count)], *[None] * ctx.others


def _in_order(states: list[torch.Tensor], inputs: list[torch.Tensor], header: str) -> list[torch.Tensor]:
    """All inputs of an engine in the order of its header."""
    written = {index: at for at, (index, _) in enumerate(parse_header(header).updates)}
    others = iter(inputs)
    return [states[written[index]] if index in written else next(others) for index in range(len(states) + len(inputs))]


_library.impl("update_by_engine", _update, "CPU")
_library.impl("update_by_engine", _update, "CUDA")
torch.library.register_fake(UPDATING, _infer_update, lib=_library)
_library.impl("engine_outputs", _allocate, "CPU")
_library.impl("engine_outputs", _allocate, "CUDA")
torch.library.register_fake(ALLOCATING, _allocate, lib=_library)
_library.impl("execute_engine", _execute, "CPU")
_library.impl("execute_engine", _execute, "CUDA")
torch.library.register_fake(OPERATOR, _infer, lib=_library)
_library.impl("refuse_gradients", _refuse, "CPU")
_library.impl("refuse_gradients", _refuse, "CUDA")
torch.library.register_fake(
    REFUSING, lambda gradients, inputs, header: [torch.empty_like(value) for value in inputs], lib=_library
)
# what an engine writes to has the past of its inputs; PyTorch allows no other place
for _name in (OPERATOR, ALLOCATING):
    torch.library.register_autograd(_name, _differentiate, setup_context=_keep_for_refusal, lib=_library)

execute_engine: Final = torch.ops.trt.execute_engine.default
"""The registered operator."""

update_by_engine: Final = torch.ops.trt.update_by_engine.default
"""The registered operator for engines that update inputs."""

engine_outputs: Final = torch.ops.trt.engine_outputs.default
"""The registered operator that allocates what `update_by_engine` writes to."""
