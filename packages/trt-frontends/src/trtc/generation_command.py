"""`trtc generate`: how fast a language model continues text once it is compiled, and what that takes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from trtc.assignments import Settings, read_assignments
from trtc.output import require_new, say, write_new

if TYPE_CHECKING:
    import torch

    from trt_runtime import TextGenerator

_TIMES: Final = 3


@dataclass(frozen=True)
class GenerationReport:
    """How fast text was generated.

    Attributes:
        model: What generated it.
        device: Where it ran.
        batch: Rows that were generated at once.
        prompt_tokens: Tokens of each prompt, or of each text that an encoder reads, or frames of speech.
        new_tokens: Tokens that followed, of each row.
        build_seconds: How long compiling or loading took.
        prompt_seconds: Until the first token.
        token_seconds: For each token after it, of all rows together.
        weight_bytes: What a step reads of weights: all but tables of which it looks up rows.
        cache_bytes: Size of the caches.
        bandwidth: Bytes a second that the device's memory can move; None where the device does not say.
    """

    model: str
    device: str
    batch: int
    prompt_tokens: int
    new_tokens: int
    build_seconds: float
    prompt_seconds: float
    token_seconds: float
    weight_bytes: int
    cache_bytes: int
    bandwidth: float | None

    @property
    def tokens_per_second(self) -> float:
        """Tokens of all rows in a second, after the first."""
        return self.batch / self.token_seconds

    @property
    def bandwidth_share(self) -> float | None:
        """Which part of the device's bandwidth reading the weights once a step takes; None where that is unknown."""
        return None if self.bandwidth is None else self.weight_bytes / self.token_seconds / self.bandwidth

    def to_json(self) -> str:
        """Returns the report as JSON."""
        derived = {"tokens_per_second": self.tokens_per_second, "bandwidth_share": self.bandwidth_share}
        return dumps({**asdict(self), **derived}, indent=2) + "\n"

    def to_text(self) -> str:
        """Returns the report as lines for reading."""
        prompt_rate = self.batch * self.prompt_tokens / self.prompt_seconds
        from trt_core.wording import human_bytes

        moved = f"{self.weight_bytes / self.token_seconds / 1e9:.1f} GB/s"
        share = self.bandwidth_share
        lines = {
            "model": f"{self.model} on {self.device}, ready in {self.build_seconds:.1f} s",
            "prompt": f"{self.batch} x {self.prompt_tokens} tokens in {self.prompt_seconds * 1e3:.2f} ms, "
            f"{prompt_rate:.0f} tokens/s",
            "decoding": f"{self.batch} x {self.new_tokens} tokens, {self.token_seconds * 1e3:.3f} ms a step, "
            f"{self.tokens_per_second:.1f} tokens/s",
            "weights": f"{human_bytes(self.weight_bytes)} read a step, {moved}"
            + ("" if share is None else f", {share:.0%} of what the memory can do"),
            "caches": human_bytes(self.cache_bytes),
        }
        return "".join(f"{name:<10}{text}\n" for name, text in lines.items())


def generate(
    model: Annotated[
        str,
        typer.Argument(
            help="A folder that save_pretrained of transformers wrote, or a config.json, which gives random weights."
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
    """Compiles a language model for generating text, and says how fast it does.

    Prompts are random tokens, and no token ends a row.
    """
    for path in (save, json):
        require_new(path)
    from trt_core import InputError

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
    generator = _compile(
        module, max_length or least, batch, setting, {"max_source_length": prompt_tokens} if follows else {}
    )
    ready = time.perf_counter() - begin
    prompts = _prompts(module, generator, batch, prompt_tokens)
    report = measure(generator, prompts, new_tokens, model=model, weight_bytes=_read_bytes(module), build_seconds=ready)
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

    from trt_core import InputError
    from trt_core.dtypes import parse_dtype

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
    kind = "auto" if dtype is None else parse_dtype(dtype)
    target = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        family = _family(transformers.AutoConfig.from_pretrained(path, local_files_only=True))
        if path.is_file() or random_weights:
            config = transformers.AutoConfig.from_pretrained(path, local_files_only=True)
            own = getattr(config, "dtype", None) or torch.float32
            torch.manual_seed(0)
            with torch.device(target):
                made = family.from_config(config, dtype=own if kind == "auto" else kind)
        else:
            made = family.from_pretrained(path, local_files_only=True, dtype=kind)
        return made.eval().to(target)
    except (OSError, ValueError, RuntimeError) as error:
        is_bare = path.is_dir() and not [*path.glob("*.safetensors"), *path.glob("*.bin")]
        hint = "--random-weights reads the configuration alone" if is_bare else ""
        raise InputError(f"transformers cannot load {path}", why=str(error).partition("\n")[0], hint=hint) from error


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


def _prompts(module: Any, generator: TextGenerator, batch: int, length: int) -> dict[str, torch.Tensor]:
    """Random tokens, or the features that an encoder takes."""
    import torch

    source = generator.limits.source
    if source is None or source.is_text:
        vocabulary = module.config.get_text_config(decoder=True).vocab_size
        return {"input_ids": torch.randint(0, vocabulary, (batch, length), device=generator.device)}
    assert isinstance(generator.encoder, torch.nn.Module)
    taken: Any = generator.encoder
    shapes = [(batch, *spec.shape[1:]) for spec in taken.inputs]
    return {name: torch.rand(shape, device=generator.device) for name, shape in zip(source.inputs, shapes, strict=True)}


def measure(
    generator: TextGenerator,
    prompts: Mapping[str, torch.Tensor],
    new_tokens: int,
    *,
    model: str,
    weight_bytes: int,
    build_seconds: float,
) -> GenerationReport:
    """Times generation: the best of a few calls for one token, and for all of them.

    Args:
        generator: What generates.
        prompts: What `generate` is given: (rows, length) int64 `input_ids`, or features by name.
        new_tokens: Tokens to generate, two at least.
        model: What the report calls it.
        weight_bytes: Bytes of weights that a step reads.
        build_seconds: How long it took to make the generator.
    """
    first = min(_seconds(generator, prompts, 1) for _ in range(_TIMES))
    whole = min(_seconds(generator, prompts, new_tokens) for _ in range(_TIMES))
    given = next(iter(prompts.values()))
    caches = [buffer for buffer in generator.step.buffers() if buffer.dim() == 4 and buffer.is_floating_point()]
    return GenerationReport(
        model=model,
        device=str(generator.device),
        batch=len(given),
        prompt_tokens=given.shape[-1],
        new_tokens=new_tokens,
        build_seconds=build_seconds,
        prompt_seconds=first,
        token_seconds=max(whole - first, 1e-9) / (new_tokens - 1),
        weight_bytes=weight_bytes,
        cache_bytes=sum(cache.numel() * cache.element_size() for cache in caches),
        bandwidth=_bandwidth(generator.device),
    )


def _compile(
    module: Any, max_length: int, batch: int, setting: list[str] | None, sizes: Mapping[str, int]
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
            **read_assignments(setting or ()),
        )


def _read_bytes(module: Any) -> int:
    """Bytes of the weights that a step reads: not those of an encoder, and of tables of which it looks up rows.

    What such a table shares with the head is read.
    """
    from torch import nn

    head = module.get_output_embeddings()
    tables = [child.weight for child in module.modules() if isinstance(child, nn.Embedding)]
    looked_up = {id(table) for table in tables if head is None or table is not head.weight}
    if getattr(module.config, "is_encoder_decoder", False):
        own = {id(value) for value in module.get_decoder().parameters()} | {id(value) for value in head.parameters()}
        looked_up |= {id(value) for value in module.parameters()} - own
    return sum(value.numel() * value.element_size() for value in module.parameters() if id(value) not in looked_up)


def _seconds(generator: TextGenerator, prompts: Mapping[str, Any], count: int) -> float:
    import torch

    is_waited_for = generator.device.type == "cuda"
    if is_waited_for:
        torch.cuda.synchronize(generator.device)
    begin = time.perf_counter()
    generator.generate(**prompts, max_new_tokens=count, eos_token_id=())
    if is_waited_for:
        torch.cuda.synchronize(generator.device)
    return time.perf_counter() - begin


def _bandwidth(device: torch.device) -> float | None:
    """What the memory of a GPU can move in a second by its clock and width; None where PyTorch does not say."""
    import torch

    if device.type != "cuda":
        return None
    facts = torch.cuda.get_device_properties(device)
    clock, width = getattr(facts, "memory_clock_rate", 0), getattr(facts, "memory_bus_width", 0)
    return 2e3 * clock * width / 8 or None
