"""Keywords that scripts bring from elsewhere, and what becomes of each: the one table of them.

They come from earlier generations of this API and from torch-tensorrt 2.x, whose `compile` takes many more than this
one. A keyword is renamed, has no effect, or is refused; whichever it is, a sentence says why. What only tunes has no
effect, and says so in a warning; what would change results, or what can be done with an engine, is refused. A value
that asks for what happens anyway (`strip_engine_weights=False`) passes without a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

REMOVAL_VERSION: Final = "1.0"
"""Version that drops the renamed keywords; a test fails when it comes."""


@dataclass(frozen=True)
class Renamed:
    """The keyword has another name today.

    Attributes:
        target: The setting.
        opposite: Whether the setting means the opposite, a bool.
    """

    target: str
    opposite: bool = False

    def __str__(self) -> str:
        return f"write `{self.target}`" + (", with the opposite value" if self.opposite else "")


@dataclass(frozen=True)
class NoEffect:
    """The keyword is taken and changes nothing.

    Attributes:
        why: One sentence.
        silent: Values that ask for what happens anyway.
    """

    why: str
    silent: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"no effect: {self.why}"


@dataclass(frozen=True)
class Refused:
    """The keyword is an error.

    Attributes:
        why: One sentence.
        instead: What to do in its place.
        silent: Values that ask for what happens anyway, and so are none.
    """

    why: str
    instead: str
    silent: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"refused: {self.why}; {self.instead}"


Fate = Renamed | NoEffect | Refused

_OFF: Final = (False, None)
_TUNING: Final = "the builder decides by itself"
_ARGUMENT: Final = "it is an argument of torch.compile, not a setting"
_CAPTURED: Final = "models are captured with torch.export, and run on any batch size that their inputs' ranges allow"
_QUANTIZE: Final = "compile what trt_frontends.quantize(model, calibration) returns"
_NO_CALIBRATION: Final = "networks are strongly typed, so the types are those of the model"

RETIRED_SETTINGS: Final[Mapping[str, Fate]] = {
    # other names
    "truncate_double": Renamed("truncate_long_and_double"),
    "make_refittable": Renamed("refit"),
    "make_refitable": Renamed("refit"),
    "immutable_weights": Renamed("refit", opposite=True),
    "allow_tf32": Renamed("disable_tf32", opposite=True),
    "strict_types": Renamed("use_explicit_typing"),
    "max_workspace_size": Renamed("workspace_size"),
    "dry_run": Renamed("dryrun"),
    "capability": Renamed("engine_capability"),
    "autocast_low_precision_type": Renamed("autocast_dtype"),
    "verbose_log": Renamed("debug"),
    # how a model is captured
    "ir": Refused(
        "models are captured with torch.export, the only frontend of `compile`",
        'leave it out; for ir="torch_compile" write trt_frontends.optimize(model, ...)',
        ("dynamo", "default", "exported_program", None),
    ),
    "capture_type": Refused(
        "models are captured with torch.export", "give an exported program to capture differently", ("export", None)
    ),
    "use_distributed_mode_trace": Refused(
        "a model is captured in one process", "compile each rank's part of the model by itself", _OFF
    ),
    "input_signature": Refused("inputs are nested as the model takes them", "give arg_inputs and kwarg_inputs", _OFF),
    "enable_cross_compile_for_windows": Refused(
        "an engine runs on the system that it was built on", "compile on Windows", _OFF
    ),
    "assume_dynamic_shape_support": NoEffect("every converter says itself whether it takes dynamic shapes", _OFF),
    "allow_shape_tensors": NoEffect("shape tensors are always allowed", (True, None)),
    "explicit_batch_dimension": NoEffect(_CAPTURED, (True, None)),
    "max_batch_size": Refused(_CAPTURED, "give an Input with min_shape, opt_shape and max_shape", (None,)),
    "mode": Refused(
        f"{_ARGUMENT}; its presets tune another compiler", "set optimization_level, 0 to 5", ("default", None)
    ),
    "fullgraph": Refused(_ARGUMENT, "write torch.compile(model, fullgraph=..., options={...})", _OFF),
    "dynamic": Refused(_ARGUMENT, "write torch.compile(model, dynamic=..., options={...})", (None,)),
    # precision
    "fp16_mode": Refused(_NO_CALIBRATION, "write precision=torch.float16, or enable_autocast=True", _OFF),
    "int8_mode": Refused(_NO_CALIBRATION, _QUANTIZE, _OFF),
    "lower_precision": Refused(_NO_CALIBRATION, "write precision=torch.float16, or enable_autocast=True", (None,)),
    "calibrator": Refused("TensorRT has dropped calibration", _QUANTIZE, (None,)),
    "use_fp32_acc": Refused(
        "how products of float16 accumulate is the builder's choice",
        "keep the model in float32 and set enable_autocast=True, or cast around the products that need it",
        _OFF,
    ),
    "autocast_calibration_dataloader": Refused(
        "it is an argument of compile and explain; torch.compile measures the inputs of a graph's first call",
        "write compile(model, autocast_calibration_dataloader=...)",
        (None,),
    ),
    "decompose_attention": NoEffect("attention has a converter of its own, which decomposes where it must", _OFF),
    "attn_bias_is_causal": NoEffect("attention masks are always applied as they are", (True, False, None)),
    # weights and memory
    "refit_identical_engine_weights": NoEffect("every weight of an engine is refitted by its own name", _OFF),
    "strip_engine_weights": Refused("an engine holds its weights", "set refit=True to replace them later", _OFF),
    "cpu_memory_budget": NoEffect("compiling shares the weights with the model in place of copying them", (None,)),
    "enable_resource_partitioning": NoEffect("the graph is partitioned by operators, not by memory", _OFF),
    "dynamically_allocate_resources": NoEffect("memory of an engine is allocated by PyTorch, which reuses it", _OFF),
    # building
    "num_min_timing_iters": NoEffect(f"{_TUNING}; see num_avg_timing_iters", (1, None)),
    "tiling_optimization_level": NoEffect(_TUNING, ("none", None)),
    "l2_limit_for_tiling": NoEffect(_TUNING, (-1, None)),
    "timing_cache_prefix": Renamed("timing_cache_path"),
    "save_timing_cache": NoEffect("timings are kept where timing_cache_path says", _OFF),
    "custom_engine_cache": Refused("built engines are kept in files", "give engine_cache_dir", (None,)),
    # running
    "lazy_engine_init": NoEffect("engines are always set up at their first call", (True, None)),
    "use_experimental_rt": NoEffect("engines always run through one registered operator", (True, False, None)),
    "cuda_graph_batch_size": NoEffect(_TUNING, (-1, None)),
}
