"""`trtc compile` and `trtc export`: models in; programs, ONNX models and repositories of Triton out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trtc.assignments import Settings, read_assignments
from trtc.output import require_new

Shapes = Annotated[
    list[str] | None,
    typer.Option(
        "--shapes",
        "--shape",
        help="Shape of an input by name, x=2x3x224x224, or its least, usual and greatest, x=1x3:4x3:8x3; repeatable.",
    ),
]

export_app = typer.Typer(no_args_is_help=True, help="Writes a model in another format.")


def compile_model(
    model: Annotated[
        str,
        typer.Argument(
            help="hf:DIR, timm:NAME, torchvision:NAME, an .onnx model, a .pt2 program, or module:callable returning "
            "(model, inputs)."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", dir_okay=False, help="The saved program, x.trtp.")],
    shape: Shapes = None,
    dtype: Annotated[
        str | None, typer.Option(help="Type of weights and inputs of a model by name: float16, bfloat16.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="Where a model by name runs: cuda, cpu.")] = None,
    random_weights: Annotated[
        bool, typer.Option("--random-weights", help="Do not fetch weights of a model by name.")
    ] = False,
    setting: Settings = None,
) -> None:
    """Compiles a model and saves the program, which `trtc run` and `trt_runtime.load` take.

    `trtc compile torchvision:resnet18 -o resnet18.trtp --shapes x=1x3x224x224:4x3x224x224:8x3x224x224 --dtype float16`

    Existing files are never overwritten.
    """
    require_new(output)
    from trt_frontends.compiler import compile as compile_
    from trt_frontends.onnx_models import inputs_of_types, is_onnx_path
    from trt_frontends.saving import save

    given = read_assignments(setting or ())
    ranges = _read_shapes(shape or ())
    if is_onnx_path(model):
        inputs = inputs_of_types(model, ranges) if ranges else None
        save(compile_(model, kwarg_inputs=inputs, **given), output)
        return
    from trtc.model_source import load_model, load_named_model

    named = load_named_model(model, ranges, dtype, random_weights=random_weights)
    if named is not None:
        import torch

        place = device or ("cuda" if torch.cuda.is_available() else "cpu")
        save(compile_(named[0].to(place), kwarg_inputs=named[1], **given), output)
        return
    from trt_core import InputError

    for option, value in (("--shapes", ranges), ("--dtype", dtype), ("--device", device)):
        if value:
            raise InputError(
                f"{option} is for models by name" + (" and .onnx models" if option == "--shapes" else ""),
                hint="the callable returns the inputs with the model, of their type and on their device",
            )
    module, arg_inputs, kwarg_inputs = load_model(model)
    save(compile_(module, arg_inputs=arg_inputs, kwarg_inputs=kwarg_inputs, **given), output)


@export_app.command("onnx")
def export_onnx_model(
    model: Annotated[
        str, typer.Argument(help="A .pt2 program, module:callable returning (model, inputs), or an .onnx model.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", dir_okay=False, help="The ONNX model, x.onnx.")],
    setting: Settings = None,
) -> None:
    """Writes what would be a model's engine as an ONNX model, for Netron, ONNX Runtime and others.

    Existing files are never overwritten.
    """
    require_new(output)
    from trt_core.files.replacing import replacing
    from trt_frontends.onnx_models import export_onnx, is_onnx_path

    given = read_assignments(setting or ())
    if is_onnx_path(model):
        data = export_onnx(model, **given)
    else:
        from trtc.model_source import load_model

        module, arg_inputs, kwarg_inputs = load_model(model)
        data = export_onnx(module, arg_inputs, kwarg_inputs, **given)
    with replacing(output) as file:
        file.write(data)


@export_app.command("triton")
def export_triton_model(
    program: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A saved program, or a TensorRT plan.")],
    repository: Annotated[Path, typer.Argument(file_okay=False, help="The model repository; made where missing.")],
    name: Annotated[str | None, typer.Option(help="Name of the model; by default that of the file.")] = None,
    version: Annotated[int, typer.Option(min=1, help="Version of the model.")] = 1,
    instances: Annotated[int, typer.Option(min=1, help="How many run at the same time.")] = 1,
    max_batch_size: Annotated[
        int | None, typer.Option(min=0, help="Most rows of a call; 0 to put no requests together.")
    ] = None,
) -> None:
    """Writes a saved program into a model repository of Triton Inference Server.

    A model that is there gets a further version; nothing is overwritten.
    """
    from trt_frontends.integrations.triton import export_triton

    export_triton(program, repository, name=name, version=version, instances=instances, max_batch_size=max_batch_size)


def explain_onnx_model(model: str, json: Path | None, fail_under: float) -> tuple[str, bool]:
    """The text of the report of an ONNX model, and whether it covers enough; writes the JSON that was asked for."""
    from trt_frontends.onnx_models import explain_onnx
    from trtc.output import write_new

    report = explain_onnx(model)
    write_new(json, report.to_json())
    return report.to_text(), report.coverage >= fail_under


def _read_shapes(texts: list[str] | tuple[str, ...]) -> dict[str, list[tuple[int, ...]]]:
    """Reads `NAME=1x3` and `NAME=1x3:4x3:8x3`.

    Raises:
        InputError: One is written otherwise.
    """
    found: dict[str, list[tuple[int, ...]]] = {}
    for text in texts:
        name, separator, value = text.rpartition("=")
        try:
            shapes = [tuple(int(extent) for extent in part.split("x")) if part else () for part in value.split(":")]
        except ValueError:
            shapes = []
        if not separator or not name or len(shapes) not in (1, 3):
            from trt_core import InputError

            raise InputError(f"{text!r} is no shape", hint="write --shape x=2x3x224x224, or --shape x=1x3:4x3:8x3")
        found[name] = shapes
    return found
