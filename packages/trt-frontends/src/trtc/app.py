"""The commands of `trtc`, and how they read settings and write files."""

from __future__ import annotations

import contextlib
import datetime
import enum
import importlib.util
import inspect
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    import torch

    from trt_frontends.accuracy import AccuracyReport, BisectReport
    from trt_frontends.onnx_models import OnnxReport
    from trt_frontends.precision.report import PrecisionReport
    from trt_runtime import TextGenerator
    from trt_runtime.engine_cache import EngineCache


FAILED = 1
INTERRUPTED = 130  # what shells say of a process that Ctrl-C has ended


def say(text: str, *, end: str = "\n", to_errors: bool = False) -> None:
    """Prints a text as it is: what would command a terminal, in names from files, is spelled out."""
    if not text.replace("\n", "").isprintable():
        from trt_core.wording import printable  # with PyTorch, which the help does without

        text = printable(text)
    typer.echo(text + end, nl=False, err=to_errors)


def require_new(*paths: Path | None) -> None:
    """Refuses files that exist already or cannot be made, and one path for two of them, before any work is done.

    Raises:
        typer.BadParameter: One does, or there is no such folder, or nothing can be written to it.
    """
    given = [path for path in paths if path is not None]
    for path in given:
        if obstacle := _TABLE.obstacle_to(path):
            raise typer.BadParameter("; ".join(obstacle))
    if len({path.resolve() for path in given}) < len(given):
        raise typer.BadParameter(f"two files would be one, {given[0]}; give each a path of its own")


def write_new(path: Path | None, content: str | bytes) -> None:
    """Writes a file that does not exist yet; without a path, nothing."""
    if path is not None:
        from trt_core.files.replacing import replacing  # with PyTorch, which most commands' help does without

        with replacing(path, is_new=True) as file:
            file.write(content.encode() if isinstance(content, str) else content)


_Model = Annotated[
    str,
    typer.Argument(
        help="A .pt2 program, hf:DIR, timm:NAME, torchvision:NAME, or module:callable returning (model, inputs)."
    ),
]
_ModelOrOnnx = Annotated[
    str,
    typer.Argument(
        help="A .pt2 program, an .onnx model, hf:DIR, timm:NAME, torchvision:NAME, or module:callable returning "
        "(model, inputs)."
    ),
]
_RandomWeights = Annotated[bool, typer.Option("--random-weights", help="Do not fetch weights of a model by name.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--setting", "-s", help="A compilation setting as NAME=VALUE, such as precision=float16; repeatable."),
]


def read_assignments(texts: list[str] | tuple[str, ...]) -> dict[str, Any]:
    """Reads `NAME=VALUE` settings: numbers, `true`, `false`, `none`, names of types, and lists separated by commas.

    A list that is given several times adds up. Regular expressions, which may hold commas, are given one at a time.

    Raises:
        InputError: One has no `=`.
    """
    found: dict[str, Any] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            from trt_core import InputError

            raise InputError(f"{text!r} is not NAME=VALUE", hint="write for instance --setting precision=float16")
        name, read = name.strip(), _value(name.strip(), value.strip())
        found[name] = {*found.get(name, ()), *read} if name in _LISTS else read
    return found


def read_options(texts: list[str] | None) -> dict[str, Any]:
    """Reads the settings that a command was given, and holds them to those that there are before it begins.

    Raises:
        InputError: One has no `=`.
        SettingsError: One is no setting, or cannot be had; or its value cannot be read.
    """
    import warnings

    from trt_core import read_settings

    given = read_assignments(texts or ())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the function that takes them says what is retired or has no effect
        read_settings(**given)
    return given


_PATTERNS: Final = frozenset({"autocast_excluded_nodes"})
_LISTS: Final = _PATTERNS | {
    "autocast_excluded_ops",
    "enabled_precisions",
    "torch_executed_modules",
    "torch_executed_ops",
}
_WORDS: Final = {"true": True, "false": False, "none": None, "inf": float("inf")}


def _value(name: str, text: str) -> Any:
    if name in _PATTERNS:
        return {text}
    if name in _LISTS:
        return {part.strip() for part in text.split(",") if part.strip()}
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def generate(
    model: Annotated[
        str,
        typer.Argument(
            help="A folder that save_pretrained of transformers wrote, a config.json, which gives random weights, or a "
            ".trtp file that a generator was saved to."
        ),
    ],
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")] = 64,
    new_tokens: Annotated[int, typer.Option(min=2, help="Tokens to generate for each row.")] = 64,
    batch: Annotated[int, typer.Option(min=1, help="Rows that are generated at once.")] = 1,
    max_length: Annotated[
        int | None, typer.Option(min=2, help="Places of the caches; by default what is asked for.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="Type of the weights; by default that of the checkpoint.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; by default a GPU where there is one.")] = None,
    random_weights: Annotated[bool, typer.Option(help="Read the configuration alone.")] = False,
    setting: Settings = None,
    save: Annotated[Path | None, typer.Option(dir_okay=False, help="Write the generator to a .trtp file.")] = None,
    json: Annotated[Path | None, typer.Option(dir_okay=False, help="Write the report as JSON.")] = None,
) -> None:
    """Compiles a language model for generating text, or loads one that was, and says how fast it does.

    Prompts are random tokens, and no token ends a row.
    """
    require_new(save, json)
    from trt_core import InputError
    from trt_frontends.generation.report import measure
    from trt_frontends.stored_layers import open_stored_layers
    from trtc.model_source import is_compiled

    if is_compiled(Path(model)):
        told = {"--max-length": max_length, "--dtype": dtype, "--random-weights": random_weights or None}
        _require_untold(model, {**told, "--setting": setting, "--save": save})
        begin = time.perf_counter()
        generator = _loaded(model, device)
        ready = time.perf_counter() - begin
        prompts = _prompts(generator, batch, prompt_tokens)
        report = measure(generator, None, prompts, new_tokens, name=model, build_seconds=ready)
        say(report.to_text(), end="")
        write_new(json, report.to_json())
        return
    settings = _told_settings(setting)
    begin = time.perf_counter()
    module = language_model(model, dtype, device, random_weights=random_weights)
    follows = bool(getattr(module.config, "is_encoder_decoder", False))
    least = new_tokens if follows else prompt_tokens + new_tokens
    if max_length is not None and max_length + 1 < least:  # the last token is never read
        raise InputError(
            f"caches of {max_length} places are too few for {least} tokens",
            where="--max-length",
            hint="leave it out, or ask for fewer tokens with --prompt-tokens and --new-tokens",
        )
    with open_stored_layers(module) as opened:
        generator = _compile(
            opened, max_length or least, batch, settings, {"max_source_length": prompt_tokens} if follows else {}
        )
        ready = time.perf_counter() - begin
        prompts = _prompts(generator, batch, prompt_tokens)
        report = measure(generator, opened, prompts, new_tokens, name=model, build_seconds=ready)
    say(report.to_text(), end="")
    if save is not None:
        generator.save(save)
    write_new(json, report.to_json())


def language_model(source: str, dtype: str | None, device: str | None, *, random_weights: bool) -> Any:
    """Loads a language model or an encoder-decoder of transformers from this machine; nothing is fetched.

    Args:
        source: A folder of a checkpoint, or the path of a configuration, which gives random weights.
        dtype: Type of the weights; None for that of the checkpoint.
        device: Where to; None for a GPU where there is one.
        random_weights: Make weights up.

    Raises:
        InputError: There is no such folder or file, or transformers knows no language model of that kind.
    """
    import torch

    from trt_core import Device, InputError
    from trt_core.dtypes import parse_dtype
    from trtc.model_source import require_configuration, without_configuration

    try:
        import transformers
    except ImportError as error:
        raise InputError("trtc generate needs transformers", why=str(error), hint="pip install transformers") from error
    path = Path(source.removeprefix("hf:"))
    if not path.exists():
        raise InputError(
            f"there is no folder {path}",
            hint="give the folder that save_pretrained wrote, or a config.json",
        )
    require_configuration(path)
    kind = "auto" if dtype is None else parse_dtype(dtype)
    if kind not in ("auto", torch.float32, torch.float16, torch.bfloat16, torch.float64):
        raise InputError(
            f"{dtype} is no type of weights that a model is loaded in",
            where="--dtype",
            hint="give float32, float16, bfloat16 or float64; fewer bits come from checkpoints that are quantized",
        )
    target = Device(("cuda" if torch.cuda.is_available() else "cpu") if device is None else device).torch_device
    if target.type == "cuda" and (target.index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"there is no {target} here",
            where="--device",
            why=f"PyTorch sees {torch.cuda.device_count()} GPUs",
            hint="give --device cpu, or leave it out",
        )
    try:
        config = transformers.AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        family = _family(config)
        if path.is_file() or random_weights:
            _note_floats(path, config)
            own = getattr(config, "dtype", None) or torch.float32
            torch.manual_seed(0)
            with torch.device(target):
                made = family.from_config(config, dtype=own if kind == "auto" else kind)
        else:
            made = family.from_pretrained(path, local_files_only=True, trust_remote_code=False, dtype=kind)
        return made.eval().to(target)
    except Exception as error:  # whatever a configuration leads transformers to
        is_bare = not random_weights and path.is_dir() and not [*path.glob("*.safetensors"), *path.glob("*.bin")]
        hint = "--random-weights reads the configuration alone" if is_bare else ""
        hint = without_configuration(path) or hint
        raise InputError(f"transformers cannot load {path}", why=_first_words(error), hint=hint) from error


def _first_words(error: Exception) -> str:
    """What an exception of another library says, in a line; its kind where that may be all that it says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])
    return said if isinstance(error, (ValueError, OSError)) else f"{type(error).__name__}: {said}"


def _note_floats(path: Path, config: Any) -> None:
    """Says of a configuration of quantized weights that random ones are not quantized."""
    asked = getattr(config, "quantization_config", None)
    if asked:
        from trt_core import logger

        method = asked.get("quant_method", "few bits") if isinstance(asked, dict) else "few bits"
        logger.warning("%s asks for weights in %s; random weights are floats, and take as much as these", path, method)


def _family(config: Any) -> Any:
    """The class of transformers that models of a configuration are loaded by."""
    import transformers
    from transformers.models.auto import modeling_auto

    for family, known in (
        (transformers.AutoModelForSeq2SeqLM, modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING),
        (transformers.AutoModelForSpeechSeq2Seq, modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING),
    ):
        if getattr(config, "is_encoder_decoder", False) and type(config) in known:
            return family
    return transformers.AutoModelForCausalLM


def _require_untold(model: str, options: Mapping[str, Any]) -> None:
    """Refuses options of compiling for a model that is compiled.

    Raises:
        InputError: One was given.
    """
    from trt_core import InputError

    told = [name for name, value in options.items() if value is not None]
    if told:
        raise InputError(
            f"{model} is compiled already, with what was said then",
            where=", ".join(told),
            hint=f"leave {'it' if len(told) == 1 else 'them'} out, or give the model that it was compiled from",
        )


def _loaded(model: str, device: str | None) -> TextGenerator:
    from trt_core import Device
    from trt_runtime import TextGenerator

    return TextGenerator.load(model, device=None if device is None else Device(device).torch_device)


def _prompts(generator: TextGenerator, batch: int, length: int) -> dict[str, torch.Tensor]:
    """Random tokens, or the features that an encoder takes."""
    import torch

    source, device = generator.limits.source, generator.device
    if source is not None and not source.is_text and generator.limits.is_encoder_decoder:
        taken: Any = generator.encoder
        features = {}
        for name, spec in zip(source.inputs, taken.inputs, strict=True):
            whole = torch.ones((batch, *spec.shape[1:]), dtype=spec.dtype, device=device)
            features[name] = torch.rand_like(whole) if whole.is_floating_point() else whole
        return features
    known = (generator.limits.vocabulary if source is None or not source.is_text else source.vocabulary) or 2
    ids = torch.randint(0, known, (batch, length), device=device)
    if source is not None and source.image_token_id is not None:  # which stands for a picture
        ids = torch.where(ids == source.image_token_id, (ids + 1) % known, ids)
    return {"input_ids": ids}


def _told_settings(setting: list[str] | None) -> dict[str, Any]:
    """Reads what `compile_generation` is told beside sizes, before a model is loaded.

    Raises:
        InputError: Something is no setting.
    """
    from trt_core import InputError, read_settings
    from trt_core.dtypes import parse_dtype
    from trt_frontends import compile_generation

    settings = read_assignments(setting or ())
    own = set(inspect.signature(compile_generation).parameters)
    told = own - {"prefill_chunk", "assisted_tokens", "cache_dtype", "eos_token_id", "pad_token_id", "settings"}
    if told := told & settings.keys():
        raise InputError(f"{min(told)} is no compilation setting", where="--setting", hint="see trtc generate --help")
    if settings.get("cache_dtype") is not None:
        settings["cache_dtype"] = parse_dtype(settings["cache_dtype"])
    read_settings({name: value for name, value in settings.items() if name not in own})
    return settings


def _compile(
    module: Any, max_length: int, batch: int, settings: Mapping[str, Any], sizes: Mapping[str, int]
) -> TextGenerator:
    from trt_frontends import compile_generation
    from trtc.progress import ConsoleProgress

    with ConsoleProgress() as progress:
        return compile_generation(
            module,
            max_length=max_length,
            max_batch=batch,
            progress=progress,
            **sizes,  # type: ignore[arg-type]  # they are no settings
            **settings,
        )


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
            "(model, inputs), or a model alone whose --shapes are given."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", dir_okay=False, help="The saved program, x.trtp.")],
    shape: Shapes = None,
    dtype: Annotated[
        str | None, typer.Option(help="Type of weights and inputs of a model by name: float16, bfloat16.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="Where a model by name runs: cuda, cpu.")] = None,
    random_weights: _RandomWeights = False,
    setting: Settings = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but warnings and errors.")] = False,
) -> None:
    """Compiles a model and saves the program, which `trtc run` and `trt_runtime.load` take.

    `trtc compile torchvision:resnet18 -o resnet18.trtp --shapes x=1x3x224x224:4x3x224x224:8x3x224x224 --dtype float16`

    Existing files are never overwritten.
    """
    require_new(output)
    if output.suffix == ".onnx":
        raise typer.BadParameter("what is saved is no ONNX model; call it x.trtp, or use trtc export onnx")
    from trt_frontends.compiler import compile as compile_
    from trt_frontends.script_saving import save
    from trt_runtime.command_line.commands import read_ranges
    from trtc.progress import shown_phases

    given = read_options(setting)
    module, arg_inputs, kwarg_inputs = _read_model(model, read_ranges(shape or ()), dtype, device, random_weights)
    with shown_phases(quiet=quiet) as progress:
        compiled = compile_(module, arg_inputs=arg_inputs, kwarg_inputs=kwarg_inputs, progress=progress, **given)
        save(compiled, output)


def _read_model(
    model: str, shapes: dict[str, list[tuple[int, ...]]], dtype: str | None, device: str | None, random_weights: bool
) -> tuple[Any, Any, Any]:
    """What to compile, with its inputs by place and by name."""
    from trt_core import InputError
    from trt_frontends.onnx_models import inputs_of_types, is_onnx_path

    if is_onnx_path(model):
        return model, None, inputs_of_types(model, shapes) if shapes else None
    from trtc.model_source import load_model, load_named_model, on_device

    named = load_named_model(model, shapes, dtype, random_weights=random_weights)
    if named is not None:
        return on_device(named[0], device), None, named[1]
    for option, value in (("--dtype", dtype), ("--device", device)):
        if value:
            raise InputError(
                f"{option} is for models by name",
                hint="the callable returns the model with its weights of their type and on their device",
            )
    return load_model(model, shapes)


@export_app.command("onnx")
def export_onnx_model(
    model: _ModelOrOnnx,
    output: Annotated[Path, typer.Option("--output", "-o", dir_okay=False, help="The ONNX model, x.onnx.")],
    shape: Shapes = None,
    random_weights: _RandomWeights = False,
    setting: Settings = None,
) -> None:
    """Writes what would be a model's engine as an ONNX model, for Netron, ONNX Runtime and others.

    Existing files are never overwritten.
    """
    require_new(output)
    from trt_core import InputError
    from trt_frontends.onnx_models import export_onnx, is_onnx_path
    from trt_runtime.command_line.commands import read_ranges

    given = read_options(setting)
    if shape and is_onnx_path(model):
        raise InputError("an ONNX model goes out with the shapes that it has", where="--shapes", hint="leave them out")
    module, arg_inputs, kwarg_inputs = _read_model(model, read_ranges(shape or ()), None, None, random_weights)
    write_new(output, export_onnx(module, arg_inputs, kwarg_inputs, **given))


@export_app.command("triton")
def export_triton_model(
    program: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A saved program, or a TensorRT plan.")],
    repository: Annotated[
        Path, typer.Argument(file_okay=False, writable=True, help="The model repository; made where missing.")
    ],
    name: Annotated[str | None, typer.Option(help="Name of the model; by default that of the file.")] = None,
    version: Annotated[int, typer.Option(min=1, help="Version of the model.")] = 1,
    instances: Annotated[
        int | None, typer.Option(min=1, help="How many run at the same time; by default as before, or 1.")
    ] = None,
    max_batch_size: Annotated[
        int | None, typer.Option(min=0, help="Most rows of a call; 0 to put no requests together.")
    ] = None,
) -> None:
    """Writes a saved program into a model repository of Triton Inference Server.

    A model that is there gets a further version; nothing is overwritten.
    """
    from trt_frontends.integrations.triton import export_triton

    export_triton(program, repository, name=name, version=version, instances=instances, max_batch_size=max_batch_size)


_Report = TypeVar("_Report")

_Json = Annotated[Path | None, typer.Option(dir_okay=False, help="Write the report as JSON.")]
_Samples = Annotated[int, typer.Option(min=0, max=100_000, help="How many random inputs are tried.")]
_MOST_SEED: Final = 1 << 62  # what PyTorch takes, with room for a sample's number
_Seed = Annotated[int, typer.Option(min=-_MOST_SEED, max=_MOST_SEED, help="Seed of the first random input.")]


def verify(
    model: _Model,
    setting: Settings = None,
    fail_above: Annotated[
        float | None, typer.Option(min=0.0, help="Exit with 1 when an error is larger; by default by type.")
    ] = None,
    samples: _Samples = 4,
    seed: _Seed = 0,
    exact: Annotated[bool, typer.Option(help="Compare both with float64 as well.")] = True,
    depth: Annotated[bool, typer.Option(help="Compare the values inside the engines as well.")] = False,
    random_weights: _RandomWeights = False,
    json: _Json = None,
    html: Annotated[Path | None, typer.Option(dir_okay=False, help="Write the report as an HTML page.")] = None,
) -> None:
    """Compiles a model and compares it with eager PyTorch, and both with float64.

    Errors are relative to the largest magnitude of an output. Exits with 1 when one is above the tolerance.
    """
    require_new(json, html)
    from trt_frontends.accuracy import verify as verify_model

    given = read_options(setting)
    report = _examined(
        verify_model,
        model,
        random_weights,
        tolerance=fail_above,
        samples=samples,
        seed=seed,
        exact=exact,
        depth=depth,
        **given,
    )
    if html is not None:
        write_new(html, report.to_html())
    _conclude(report, json, is_right=report.passed)


def bisect(
    model: _Model,
    setting: Settings = None,
    tolerance: Annotated[float | None, typer.Option(min=0.0, help="Largest error that is right.")] = None,
    samples: _Samples = 1,
    seed: _Seed = 0,
    most: Annotated[int, typer.Option(min=1, help="How many operators are looked for at most.")] = 8,
    state: Annotated[
        Path | None, typer.Option(dir_okay=False, help="File that keeps answers; a search that was stopped goes on.")
    ] = None,
    random_weights: _RandomWeights = False,
    json: _Json = None,
) -> None:
    """Finds the operators that make a compiled model's output wrong, and the setting that avoids them.

    Exits with 1 when something is wrong.
    """
    require_new(json)
    from trt_frontends.accuracy import Stage
    from trt_frontends.accuracy import bisect as bisect_model

    given = read_options(setting)
    report = _examined(
        bisect_model,
        model,
        random_weights,
        tolerance=tolerance,
        samples=samples,
        seed=seed,
        most=most,
        state=state,
        **given,
    )
    _conclude(report, json, is_right=report.stage is Stage.NONE)


def precision(
    model: _Model,
    max_error: Annotated[
        float | None,
        typer.Option(min=0.0, help="Largest error of an output, relative to its largest magnitude; by default 0.01."),
    ] = None,
    dtype: Annotated[str, typer.Option(help="float16, bfloat16, or auto for the better one.")] = "auto",
    setting: Settings = None,
    engines: Annotated[bool, typer.Option(help="Build the engines, and hold them to the error as well.")] = True,
    random_weights: _RandomWeights = False,
    json: _Json = None,
) -> None:
    """Chooses by measuring which operators may compute in a reduced type, and prints the settings that say so.

    Exits with 1 when nothing may.
    """
    require_new(json)
    from trt_core.settings_reader import DEFAULT_MAX_ERROR
    from trt_frontends.precision.automatic import choose_precision

    given = {"precision": dtype, "max_error": DEFAULT_MAX_ERROR, **read_options(setting)}
    if max_error is not None:
        given["max_error"] = max_error
    report = _examined(choose_precision, model, random_weights, engines=engines, **given)
    _conclude(report, json, is_right=report.reduced_share > 0)


def _examined(examine: Callable[..., _Report], model: str, random_weights: bool, **options: Any) -> _Report:
    """What a function reports of a model, whose progress is shown meanwhile."""
    from trtc.model_source import load_model
    from trtc.progress import ConsoleProgress

    module, arg_inputs, kwarg_inputs = load_model(model, random_weights=random_weights)
    with ConsoleProgress() as progress:
        return examine(module, arg_inputs=arg_inputs, kwarg_inputs=kwarg_inputs, progress=progress, **options)


def _conclude(
    report: AccuracyReport | BisectReport | OnnxReport | PrecisionReport, json: Path | None, *, is_right: bool
) -> None:
    """Prints a report, writes it where it is asked for, and ends the command with 1 where something is wrong."""
    say(report.to_text(), end="")
    write_new(json, report.to_json())
    if not is_right:
        raise typer.Exit(FAILED)


cache_app = typer.Typer(no_args_is_help=True, help="Shows and clears the engine cache.")

_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}

_Directory = Annotated[  # no Path: one of an empty text is the current folder
    str | None,
    typer.Option("--dir", metavar="DIRECTORY", help="The cache's directory, as in the setting engine_cache_dir."),
]


@cache_app.command("list")
def list_entries(
    directory: _Directory = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Lists the cached engines, the most recently used first."""
    path = _cache_folder(directory)
    is_there = path.exists()
    cache = _open(directory) if is_there or not json else None
    entries = [] if cache is None else cache.entries()
    total = sum(entry.bytes for entry in entries)
    if json:
        from json import dumps

        engines = [
            {
                **{name: entry.built.get(name) for name in _FACTS},
                "key": entry.digest,
                "bytes": entry.bytes,
                "used": _time_of(entry.used),
            }
            for entry in entries
        ]
        say(dumps({"format": 1, "directory": str(path), "bytes": total, "engines": engines}, indent=1))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from trt_core.wording import printable

    table = Table(box=None, pad_edge=False)
    for name, justify in (("key", "left"), ("engine", "left"), ("provider", "left"), ("layers", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for name in ("built in", "size", "used"):
        table.add_column(name, justify="right")
    for entry in entries:
        built = entry.built
        seconds = f"{built.get('build_seconds', 0):.2f} s"
        facts = (built.get("name", ""), built.get("provider", ""), built.get("layers", ""))
        table.add_row(
            entry.digest[:12],
            *(Text(printable(str(fact))) for fact in facts),
            seconds,
            _size(entry.bytes),
            _time_of(entry.used).replace("T", " "),
        )
    if entries:
        Console().print(table)
    say(f"{_engines(len(entries))}, {_size(total)}, in {path}")


_FACTS: Final = ("name", "provider", "layers", "build_seconds")
"""What an entry of the cache says of how its engine was built."""


def _time_of(seconds: float) -> str:
    try:
        return datetime.datetime.fromtimestamp(seconds).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):  # a file may be of any time, and a calendar ends
        return f"{seconds:.0f} seconds after 1970"


@cache_app.command("clear")
def clear(directory: _Directory = None) -> None:
    """Removes every cached engine."""
    cache = _open(directory)
    say(f"removed {_engines(cache.clear())} from {cache.directory}")


@cache_app.command("prune")
def prune(
    size: Annotated[str, typer.Option("--to", help="What may remain, in bytes, or with a unit: 500M, 2G.")],
    directory: _Directory = None,
) -> None:
    """Removes the engines that were unused for longest, until the others fit into a size."""
    limit = _bytes(size)
    cache = _open(directory)
    say(f"removed {_engines(cache.prune(limit))} from {cache.directory}")


@cache_app.command("why-miss")
def why_miss(
    model: _Model,
    setting: Settings = None,
    random_weights: _RandomWeights = False,
    directory: _Directory = None,
) -> None:
    """Says for each engine of a model whether it is cached, and in what it differs from the nearest one that is.

    Builds nothing. Exits with 1 when an engine is missing.
    """
    from trt_frontends.pipeline import capture_model
    from trt_frontends.stages import lower
    from trtc.model_source import load_model

    given = read_options(setting)
    given |= _cache_settings(directory)
    module, arg_inputs, kwarg_inputs = load_model(model, random_weights=random_weights)
    lowered = lower(capture_model(module, None, arg_inputs, kwarg_inputs, given, needs_weights=True))
    blocks = lowered.split(lowered.plan()).blocks
    misses = [lowered.source.why_miss(block, lowered.ranges, name) for name, block in blocks.items()]
    for name, lines in zip(blocks, misses, strict=True):
        say("\n  ".join([f"{name}: {'not cached' if lines else 'cached'}", *lines]))
    if not blocks:
        say("the model has no engines")
    if any(misses):
        raise typer.Exit(FAILED)


def _open(directory: str | None) -> EngineCache:
    """Opens a cache; where this user has none yet, the command ends, and makes none.

    Raises:
        typer.Exit: There is none.
    """
    from trt_runtime.engine_cache import EngineCache

    path = _cache_folder(directory)
    if not path.exists():
        say(f"{_engines(0)}: there is no folder {path} yet")
        raise typer.Exit
    return EngineCache(path)


def _cache_settings(directory: str | None) -> dict[str, Any]:
    """Settings by which a cache is looked into; where this user has none yet, none is made."""
    path = _cache_folder(directory)
    is_there = path.exists()
    named = {"engine_cache_dir": str(path)} if is_there else {}
    return {"cache_built_engines": is_there, "reuse_cached_engines": is_there, **named}


def _cache_folder(directory: str | None) -> Path:
    """The folder that is named, or this user's own, which may be missing.

    Raises:
        typer.BadParameter: There is no such folder.
    """
    from trt_runtime.engine_cache import default_directory

    if directory is None:
        return default_directory()
    if not directory or not Path(directory).is_dir():
        raise typer.BadParameter(f"there is no folder {directory!r}", param_hint="'--dir'")
    return Path(directory)


def _bytes(text: str) -> int:
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    try:
        if unit not in _UNITS or float(number) < 0:
            raise ValueError
        return int(float(number) * _UNITS[unit])
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a size such as 1000000, 500M or 2G", param_hint="'--to'") from None


def _engines(count: int) -> str:
    from trt_core.wording import counted

    return counted(count, "engine")


def _size(count: int) -> str:
    from trt_core.wording import human_bytes

    return human_bytes(count)


def _without_package(name: str) -> Any:
    """A module of trt-runtime without its package, which imports PyTorch."""
    found = importlib.util.find_spec("trt_runtime")
    assert found is not None
    assert found.origin is not None
    path = Path(found.origin).parent / f"{name}.py"
    of_file = importlib.util.spec_from_file_location(path.stem, path)
    assert of_file is not None
    assert of_file.loader is not None
    module: Any = importlib.util.module_from_spec(of_file)
    of_file.loader.exec_module(module)
    return module


_TABLE: Final = _without_package("command_line/table")
_EXIT_CODES: Final = _TABLE.EXIT_CODES


class _Commands(TyperGroup):
    """Turns an error of ours into a message and an exit code, without a stack trace."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        for command in self.commands.values():  # first sentences whole, where typer would cut them
            command.short_help = (command.help or "").partition("\n")[0]

    def make_context(self, *given: Any, **more: Any) -> Any:
        try:
            return super().make_context(*given, **more)
        except KeyboardInterrupt:  # which typer answers with another word, and 1
            raise _interrupted() from None
        except BrokenPipeError:  # as a check that fails
            raise _reader_left() from None
        except OSError as error:  # of what the help is written to
            raise _failed(_TABLE.told(error)) from error

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for option in self.get_params(ctx):  # typer's own have no value, for which it would import pydantic in any help
            option.default = False if option.default is None else option.default
        return super().parse_args(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if ctx.resilient_parsing and command is not None:  # a shell asks for names: no value is read, with pydantic
            for option in command.get_params(ctx):
                option.process_value = lambda ctx, value: value  # type: ignore[method-assign]  # this option's alone
        return command

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            if sys.stdout is not None:
                sys.stdout.flush()
            return result
        except KeyboardInterrupt:
            raise _interrupted() from None
        except BrokenPipeError:
            raise _reader_left() from None
        except Exception as error:
            core: Any = sys.modules.get("trt_core")  # of which an error of ours is
            is_ours = core is not None and isinstance(error, core.TrtError)
            if not is_ours and not (isinstance(error, OSError) and error.strerror):
                raise
            raise _failed(_TABLE.told(error)) from error


def _failed(told: str) -> typer.Exit:
    with contextlib.suppress(OSError):  # nowhere to say it
        typer.secho("error:", fg="red", bold=True, err=True, nl=False)
        say(f" {told}", to_errors=True)
    return typer.Exit(_TABLE.BAD_INPUT)


def _reader_left() -> typer.Exit:
    """Whoever read what is printed has seen enough, as `head` has."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return typer.Exit(_TABLE.READER_LEFT)


def _interrupted() -> typer.Exit:
    say("interrupted", to_errors=True)
    return typer.Exit(INTERRUPTED)


app = typer.Typer(
    name="trtc",
    cls=_Commands,
    no_args_is_help=True,
    context_settings={"help_option_names": ["--help", "-h"]},  # those of all commands
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # it takes twice as long to import as all else that the help needs
    epilog=_EXIT_CODES,
)


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        say(f"trtc {version('trt-frontends')}")
        raise typer.Exit


@app.callback()
def options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Compiles PyTorch models into TensorRT engines."""


def quickstart(
    seed: Annotated[
        int, typer.Option(min=-_MOST_SEED, max=_MOST_SEED, help="Seed of the random weights and inputs.")
    ] = 0,
    keep: Annotated[
        Path | None, typer.Option(file_okay=False, writable=True, help="Folder to keep the saved programs in.")
    ] = None,
) -> None:
    """Shows the main job on two real models: trace, explain, compile, compare, time, save, load elsewhere.

    Exits with 1 when an output differs from what PyTorch computes.
    """
    from rich.console import Console

    from trtc.quickstart import run_quickstart

    if not run_quickstart(Console(), seed=seed, directory=keep):
        raise typer.Exit(FAILED)


def explain(
    model: _ModelOrOnnx,
    min_block_size: Annotated[
        str | None, typer.Option(help="Fewest operators per engine; a number or inf; by default 5.")
    ] = None,
    setting: Settings = None,
    html: Annotated[Path | None, typer.Option(dir_okay=False, help="Write the report as an HTML page.")] = None,
    json: Annotated[Path | None, typer.Option(dir_okay=False, help="Write the report as JSON.")] = None,
    fail_under: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Exit with 1 when coverage (0 to 1) is lower.")
    ] = 0.0,
) -> None:
    """Reports which operators of a model would run in engines.

    Builds nothing, and needs no GPU, no TensorRT and no weights: the callable may return a model on the meta device.
    Existing files are never overwritten.
    """
    require_new(html, json)
    size = {} if min_block_size is None else {"min_block_size": _block_size(min_block_size)}
    if model.endswith(".onnx"):
        if html is not None:
            raise typer.BadParameter("reports of .onnx models are text and JSON", param_hint="'--html'")
        for option, is_given in (("--setting", setting), ("--min-block-size", size)):
            if is_given:
                why = "a model in ONNX's format is one engine: its nodes are looked at alone, whatever is set"
                raise typer.BadParameter(why, param_hint=f"'{option}'")
        from trt_frontends.onnx_models import explain_onnx

        of_nodes = explain_onnx(model)
        _conclude(of_nodes, json, is_right=of_nodes.coverage >= fail_under)
        return
    from trt_frontends.compiler import explain as explain_model
    from trtc.model_source import load_model

    module, arg_inputs, kwarg_inputs = load_model(model, random_weights=True)  # no weights are read
    given = {**size, **read_options(setting)}
    report = explain_model(module, arg_inputs=arg_inputs, kwarg_inputs=kwarg_inputs, **given)
    say(report.to_text(), end="")
    if html is not None:
        write_new(html, report.to_html(title=model))
    write_new(json, report.to_json())
    if report.coverage < fail_under:
        say(f"coverage {report.coverage:.2%} is below {fail_under:.2%}", to_errors=True)
        raise typer.Exit(FAILED)


def diff(
    before: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A report as JSON.")],
    after: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A report as JSON.")],
) -> None:
    """Says what changed between two reports of `trtc explain --json`; exits with 1 when something did."""
    from trt_partition import diff_reports

    changes = diff_reports(_read_report(before), _read_report(after))
    say(changes.to_text(), end="")
    if changes:
        raise typer.Exit(FAILED)


def info() -> None:
    """Says which versions are installed and which provider is in use."""
    import platform

    import torch

    import trt_frontends
    from trt_core import provider_identity

    say(f"trt-frontends {trt_frontends.__version__}")
    say(f"Python {platform.python_version()}, PyTorch {torch.__version__}")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    say(f"provider {provider_identity()} on {device}")


def _block_size(text: str) -> float | int:
    try:
        return float("inf") if text == "inf" else int(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is neither a whole number nor inf", param_hint="'--min-block-size'"
        ) from None


_MOST_REPORT_BYTES = 1 << 30


def _read_report(path: Path) -> Any:
    from trt_core import TrtError
    from trt_core.files.opening import read_file
    from trt_partition import PartitionReport

    try:
        return PartitionReport.from_json(read_file(str(path), _MOST_REPORT_BYTES).decode())
    except (TrtError, UnicodeDecodeError) as error:
        why = error.what if isinstance(error, TrtError) else "it is no text"
        raise typer.BadParameter(f"{path} is not a report: {why}") from error


def _program_command(command: Any) -> Callable[..., None]:
    """A function with the parameters of a command of trt-runtime, as typer reads them."""

    def run(**given: Any) -> None:
        from trt_runtime.command_line import run_command
        from trtc.model_source import peers_of

        plain = {
            name: [_plain(item) for item in value] if isinstance(value, list) else value
            for name, value in given.items()
        }
        run_command(command.name, plain, peers_of)

    shown = [_typer_parameter(parameter) for parameter in command.parameters]
    run.__doc__ = command.summary
    run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]  # it has one where it is given one
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return run


_choices: Any = enum.Enum  # typer takes lists of these, and of no literals


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, enum.Enum) else value


def _typer_parameter(parameter: Any) -> inspect.Parameter:
    kind: Any = Path if parameter.kind == "file" else parameter.kind
    if parameter.choices:
        kind = _choices(parameter.key, [(choice, choice) for choice in parameter.choices])
    least, most = parameter.bounds or (None, None)
    options: dict[str, Any] = {"help": parameter.help, "min": least, "max": most}
    if kind is Path:
        options["dir_okay"] = False
    told: Any = typer.Option(parameter.name, **options) if parameter.is_option else typer.Argument(**options)
    default: Any = inspect.Parameter.empty if parameter.default is ... else parameter.default
    taken: Any = list[kind] if parameter.repeats else kind
    taken = taken | None if default is None else taken
    return inspect.Parameter(
        parameter.key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[taken, told]
    )


# in the order of a reader's work, which is that of `trtc --help`
for _command in (quickstart, explain, diff, verify, bisect, precision):
    app.command(epilog=_EXIT_CODES)(_command)
for _listed in _TABLE.COMMANDS:
    app.command(_listed.name, epilog=_EXIT_CODES)(_program_command(_listed))
app.command("compile", epilog=_EXIT_CODES)(compile_model)
app.command(epilog=_EXIT_CODES)(generate)
app.add_typer(export_app, name="export", cls=_Commands, epilog=_EXIT_CODES)
app.command(epilog=_EXIT_CODES)(info)
app.add_typer(cache_app, name="cache", cls=_Commands, epilog=_EXIT_CODES)


def main() -> None:
    """Runs the command line."""
    _without_package("interruption").end_imports_at_interrupts()
    try:
        app()
    except KeyboardInterrupt:  # before or after the command itself
        sys.exit(_interrupted().exit_code)
