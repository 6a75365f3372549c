"""An engine whose bindings have names of one's own, of any nesting."""

from __future__ import annotations

import tensorrt as trt
import torch
import torch_tensorrt
from torch_tensorrt.dynamo._compiler import BindingNameMismatchError


class Heads(torch.nn.Module):
    def forward(self, cameras, bias):
        first, second = (camera["rgb"] + camera["depth"] + bias for camera in cameras)
        return {"primary": first, "secondary": torch.relu(second)}


def camera():
    return {"rgb": torch.randn(2, 3).cuda(), "depth": torch.randn(2, 3).cuda()}


arguments = ((camera(), camera()), torch.randn(2, 3).cuda())
program = torch.export.export(Heads().eval().cuda(), args=arguments)
settings = {"require_full_compilation": True, "min_block_size": 1, "use_python_runtime": False}
engine_bytes = torch_tensorrt.dynamo.convert_exported_program_to_serialized_trt_engine(
    program,
    arg_inputs=arguments,
    arg_input_binding_names=(
        ({"rgb": "rgb_0", "depth": "depth_0"}, {"rgb": "rgb_1", "depth": "depth_1"}),
        "bias",
    ),
    output_binding_names={"primary": "first", "secondary": "second"},
    immutable_weights=True,
    **settings,
)
engine = trt.Runtime(trt.Logger(trt.Logger.WARNING)).deserialize_cuda_engine(engine_bytes)
names = {engine.get_tensor_name(place) for place in range(engine.num_io_tensors)}
assert names == {"rgb_0", "depth_0", "rgb_1", "depth_1", "bias", "first", "second"}, names
engine_bytes = torch_tensorrt.dynamo.convert_exported_program_to_serialized_trt_engine(
    torch.export.export(torch.nn.ReLU(), (), {"input": torch.ones(2).cuda()}),
    arg_inputs=(),
    kwarg_inputs={"input": torch.ones(2).cuda()},
    kwarg_input_binding_names={"input": "image"},
    output_binding_names="result",
    **settings,
)
engine = trt.Runtime(trt.Logger(trt.Logger.WARNING)).deserialize_cuda_engine(engine_bytes)
assert [engine.get_tensor_name(place) for place in range(engine.num_io_tensors)] == ["image", "result"]
try:
    torch_tensorrt.dynamo.convert_exported_program_to_serialized_trt_engine(
        program, arg_inputs=arguments, output_binding_names=("only_one",), **settings
    )
except BindingNameMismatchError as error:
    assert "output_binding_names" in str(error)
else:
    raise AssertionError("names of another structure were taken")
