"""The peers of the latency benchmark: ways to run a model, and to have it back in another process."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

Tensors = tuple[torch.Tensor, ...]
Call = Callable[..., Any]
Build = Callable[[nn.Module, Tensors, Path], Call]


@dataclass(frozen=True)
class Peer:
    """A way to run a model.

    Attributes:
        build: Makes a callable of a model and example inputs; may leave files in the folder.
        load: Makes the callable in another process, from what `build` and `save` left in the folder (`torch.compile`
            finds its caches warm); None where nothing is kept.
        save: Writes what `load` needs and `build` did not leave.
        on: ``cpu``, ``cuda``, or empty for both.
        packages: What must be installed for it.
    """

    build: Build
    load: Build | None = None
    save: Callable[[Any, Path], None] | None = None
    on: str = ""
    packages: tuple[str, ...] = ("torch",)

    def is_available(self) -> bool:
        """Whether this machine can run it."""
        here = "cuda" if torch.cuda.is_available() else "cpu"
        return self.on in ("", here) and all(importlib.util.find_spec(name) is not None for name in self.packages)


def _eager(model: nn.Module, tensors: Tensors, folder: Path) -> Call:
    return model


def _eager_graph(model: nn.Module, tensors: Tensors, folder: Path) -> Call:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            model(*tensors)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = model(*tensors)

    def run(*_: torch.Tensor) -> Any:
        graph.replay()
        return result

    return run


def _compiled(mode: str | None = None, *, frozen: bool = False, on: str = "") -> Peer:
    def build(model: nn.Module, tensors: Tensors, folder: Path) -> Call:
        torch._inductor.config.freezing = frozen
        compiled: Call = torch.compile(model, mode=mode)
        return compiled

    return Peer(build, load=build, on=on)


def _portable(level: int | None) -> Peer:
    def build(model: nn.Module, tensors: Tensors, folder: Path) -> Call:
        import trt_frontends

        return trt_frontends.compile(model, arg_inputs=tensors, optimization_level=level)

    def save(call: Any, folder: Path) -> None:
        import trt_frontends

        trt_frontends.save(call, folder / "model.trt")

    def load(model: nn.Module, tensors: Tensors, folder: Path) -> Call:
        import trt_runtime

        return trt_runtime.load(folder / "model.trt", allow_host_code=True)

    return Peer(build, load, save, packages=("trt_frontends",))


def _onnxruntime(model: nn.Module, tensors: Tensors, folder: Path) -> Call:
    torch.onnx.export(model, tensors, str(folder / "model.onnx"), dynamo=True)
    return _onnxruntime_session(model, tensors, folder)


def _onnxruntime_session(model: nn.Module, tensors: Tensors, folder: Path) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]

    def run(*inputs: torch.Tensor) -> Any:
        given = {name: value.numpy() for name, value in zip(names, inputs, strict=True)}
        return [torch.from_numpy(value) for value in session.run(None, given)]

    return run


def _openvino(model: nn.Module, tensors: Tensors, folder: Path) -> Call:
    import openvino

    openvino.save_model(
        openvino.convert_model(model, example_input=tensors), folder / "model.xml", compress_to_fp16=False
    )
    return _openvino_model(model, tensors, folder)


def _openvino_model(model: nn.Module, tensors: Tensors, folder: Path) -> Call:
    import openvino

    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
    }
    compiled = openvino.Core().compile_model(str(folder / "model.xml"), "CPU", settings)
    request = compiled.create_infer_request()

    def run(*inputs: torch.Tensor) -> Any:
        found = request.infer([value.numpy() for value in inputs], share_inputs=True, share_outputs=True)
        return [torch.from_numpy(found[at]) for at in range(len(compiled.outputs))]

    return run


PEERS: Final[dict[str, Peer]] = {
    "eager": Peer(_eager),
    "eager + CUDA graph": Peer(_eager_graph, on="cuda"),
    "torch.compile": _compiled(),
    "torch.compile reduce-overhead": _compiled("reduce-overhead", on="cuda"),
    "torch.compile max-autotune": _compiled("max-autotune"),
    "torch.compile frozen": _compiled(frozen=True),
    "onnxruntime": Peer(_onnxruntime, _onnxruntime_session, on="cpu", packages=("onnxruntime", "onnxscript")),
    "openvino": Peer(_openvino, _openvino_model, on="cpu", packages=("openvino",)),
    "portable, level 0": _portable(0),
    "portable": _portable(None),
}
"""Name to peer, in the order of the table's columns."""
