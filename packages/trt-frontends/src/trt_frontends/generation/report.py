"""How fast a language model generates text, as a report."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch
from torch import nn

from trt_core.internals import is_traceable_wrapper_subclass
from trt_core.reports import DataReport
from trt_core.wording import human_bytes
from trt_frontends.stored_layers import CODES_OF_EXPERTS, StoredLinear
from trt_runtime import TextGenerator

_TIMES: Final = 3


@dataclass(frozen=True, repr=False)
class GenerationReport(DataReport):
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
        weight_bytes: What a step reads of weights at most: all but tables of which it looks up rows, and experts that
            no token chooses. Of a saved program it is all that its step holds.
        cache_bytes: Size of the caches.
        bandwidth: Bytes a second that the device's memory can move; None where the device does not say.
        experts: How many experts a mixture has; 0 for none.
        chosen_experts: How many of them a token chooses.
        expert_bytes: Bytes of one, in all layers.
    """

    DERIVED: ClassVar = ("tokens_per_second", "bandwidth_share")

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
    experts: int = 0
    chosen_experts: int = 0
    expert_bytes: int = 0

    @property
    def tokens_per_second(self) -> float:
        """Tokens of all rows in a second, after the first."""
        return self.batch / self.token_seconds

    @property
    def bandwidth_share(self) -> float | None:
        """Which part of the device's bandwidth reading the weights once a step takes; None where that is unknown."""
        return None if self.bandwidth is None else self.weight_bytes / self.token_seconds / self.bandwidth

    def to_text(self) -> str:
        """Returns the report as lines for reading."""
        prompt_rate = self.batch * self.prompt_tokens / self.prompt_seconds
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
        if self.experts:
            lines["experts"] = (
                f"{self.chosen_experts} of {self.experts} for a token, {human_bytes(self.expert_bytes)} each"
            )
        return "".join(f"{name:<10}{text}\n" for name, text in lines.items())


def measure(
    generator: TextGenerator,
    module: Any,
    prompts: Mapping[str, torch.Tensor],
    new_tokens: int,
    *,
    name: str,
    build_seconds: float,
) -> GenerationReport:
    """Times generation: the best of a few calls for one token, and for all of them.

    Args:
        generator: What generates.
        module: The model of transformers that it was made of, as `open_stored_layers` opens it; None where it is not
            known, as for saved programs.
        prompts: What `generate` is given: (rows, length) int64 `input_ids`, or features by name.
        new_tokens: Tokens to generate, two at least.
        name: What the report calls the model.
        build_seconds: How long it took to make the generator.
    """
    first = min(_seconds(generator, prompts, 1) for _ in range(_TIMES))
    whole = min(_seconds(generator, prompts, new_tokens) for _ in range(_TIMES))
    given = next(iter(prompts.values()))
    experts, chosen, size = (0, 0, 0) if module is None else experts_of(module)
    return GenerationReport(
        model=name,
        device=str(generator.device),
        batch=len(given),
        prompt_tokens=given.shape[-1],
        new_tokens=new_tokens,
        build_seconds=build_seconds,
        prompt_seconds=first,
        token_seconds=max(whole - first, 1e-9) / (new_tokens - 1),
        weight_bytes=bytes_held(generator) if module is None else bytes_read(module, len(given)),
        cache_bytes=generator.cache_bytes,
        bandwidth=_bandwidth(generator.device),
        experts=experts,
        chosen_experts=chosen,
        expert_bytes=size,
    )


def bytes_read(module: Any, rows: int = 1) -> int:
    """Most bytes of weights that a step of some rows reads.

    Not those of an encoder, of tables of which it looks up rows, and of experts beyond what the rows can choose; what
    such a table shares with the head is read.
    """
    head = module.get_output_embeddings()
    tables = [child.weight for child in module.modules() if isinstance(child, nn.Embedding)]
    looked_up = {id(table) for table in tables if head is None or table is not head.weight}
    if getattr(module.config, "is_encoder_decoder", False):
        own = {id(value) for value in module.get_decoder().parameters()} | {id(value) for value in head.parameters()}
        looked_up |= {id(value) for value in module.parameters()} - own
    experts, chosen, size = experts_of(module)
    read: int = sum(_bytes_of(value) for value in module.parameters() if id(value) not in looked_up)
    read += sum(child.stored_bytes for child in module.modules() if isinstance(child, StoredLinear))
    return read - max(0, experts - chosen * rows) * size


def bytes_held(generator: TextGenerator) -> int:
    """Bytes of the plans of a step, which are buffers, and of its tensors outside of them that are no caches."""
    caches = {id(cache) for cache in generator._caches()}
    held = (*generator.step.parameters(), *generator.step.buffers())
    return sum(tensor.nbytes for tensor in held if id(tensor) not in caches)


def _bytes_of(value: torch.Tensor) -> int:
    """Bytes of a tensor; of one that holds codes, those of its parts."""
    if is_traceable_wrapper_subclass(value):
        return sum(_bytes_of(getattr(value, name)) for name in value.__tensor_flatten__()[0])
    return value.numel() * value.element_size()


def experts_of(module: Any) -> tuple[int, int, int]:
    """How many experts a mixture of transformers has, how many a token chooses, and bytes of one in all layers.

    Their matrices lie one behind the other, in the order of experts; there are none where a model keeps them otherwise.
    """
    stacks = {
        id(value): (len(value), value.numel() * value.element_size() // len(value))
        for child in module.modules()
        for value in child.parameters(recurse=False)
        if value.dim() == 3 and len(value) == getattr(child, "num_experts", None)
    }
    stacks |= {
        id(part): (child.num_experts, part.stored_bytes // child.num_experts)
        for child in module.modules()
        for name, part in child.named_children()
        if isinstance(part, StoredLinear) and name.endswith(CODES_OF_EXPERTS)
    }
    counts = {count for count, _ in stacks.values()}
    chosen = getattr(module.config.get_text_config(decoder=True), "num_experts_per_tok", None)
    if len(counts) != 1 or not isinstance(chosen, int):
        return 0, 0, 0
    return counts.pop(), chosen, sum(size for _, size in stacks.values())


def _seconds(generator: TextGenerator, prompts: Mapping[str, Any], count: int) -> float:
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
    if device.type != "cuda":
        return None
    facts = torch.cuda.get_device_properties(device)
    clock, width = getattr(facts, "memory_clock_rate", 0), getattr(facts, "memory_bus_width", 0)
    return 2e3 * clock * width / 8 or None
