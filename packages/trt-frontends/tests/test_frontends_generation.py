"""Generating text with compiled language models: the tokens are those of transformers' own `generate`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import pytest
import torch
import transformers
from torch import nn

from trt_core import InputError, PlanError
from trt_frontends import compile, compile_generation, save
from trt_frontends.generation import CachedStep
from trt_runtime import TextGenerator
from trt_runtime.generation import GenerationLimits

SIZES: Final = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT_SIZES: Final = {
    "vocab_size": 300,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
WHOLE: Final = {name: SIZES[name] for name in SIZES if name != "num_key_value_heads"}
"""Sizes of models whose heads do not share keys."""

ARCHITECTURES: Final[dict[str, dict[str, Any]]] = {
    "Llama": SIZES,
    "Mistral": {**SIZES, "sliding_window": 16},
    "Qwen2": SIZES,
    "Qwen3": {**SIZES, "head_dim": 16},
    "GPT2": GPT_SIZES,
    "GPTJ": {**GPT_SIZES, "rotary_dim": 16},
    "GPTNeoX": WHOLE,
    "Phi": SIZES,
    "Phi3": SIZES,
    "Gemma2": {**SIZES, "head_dim": 16, "sliding_window": 16},
    "Gemma3": {**SIZES, "head_dim": 16, "sliding_window": 16},
    "Olmo": SIZES,
    "StableLm": SIZES,
    "Falcon": {**{name: WHOLE[name] for name in WHOLE if name != "intermediate_size"}, "alibi": False},
    "OPT": {**WHOLE, "ffn_dim": 96, "word_embed_proj_dim": 64},
    "Cohere": SIZES,
    "Granite": SIZES,
}


def model_of(name: str) -> Any:
    sizes = ARCHITECTURES[name]
    config = getattr(transformers, f"{name}TextConfig" if name == "Gemma3" else f"{name}Config")(**sizes)
    kind = "GPT2LMHeadModel" if name == "GPT2" else f"{name}ForCausalLM"
    model = getattr(transformers, kind)(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:  # scores further apart than rounding
            nn.init.normal_(parameter, std=0.08)
    return model


def padded_prompts() -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(3, 300, (2, 11))
    mask = torch.ones_like(ids)
    ids[1, :4] = mask[1, :4] = 0
    return ids, mask


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_steps_generate_what_transformers_does(name: str) -> None:
    """In PyTorch, which takes no build: chunks of prompts, padding and windows are those of every architecture."""
    model, (ids, mask) = model_of(name), padded_prompts()
    count = 256 if "TRT_STRESS" in os.environ else 48  # three windows
    limits = GenerationLimits(max_batch=2, max_length=count + 32, prefill_chunk=4)
    made = TextGenerator(CachedStep(model, limits), limits).generate(ids, mask, max_new_tokens=count, eos_token_id=())
    expected = model.generate(ids, attention_mask=mask, max_new_tokens=count, do_sample=False, eos_token_id=None)
    assert torch.equal(made, expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Llama", "GPT2", "Gemma2"])
def test_compiled_models_generate_what_transformers_does(name: str) -> None:
    model, (ids, mask) = model_of(name), padded_prompts()
    generator = compile_generation(model, max_length=64, max_batch=2, prefill_chunk=4)
    for end in (None, 2):
        made = generator.generate(ids, mask, max_new_tokens=40, eos_token_id=() if end is None else end)
        expected = model.generate(ids, attention_mask=mask, max_new_tokens=40, do_sample=False, eos_token_id=end)
        assert torch.equal(made, expected)
    one = generator.generate(ids[:1], max_new_tokens=9, eos_token_id=())
    assert torch.equal(one, model.generate(ids[:1], max_new_tokens=9, do_sample=False, eos_token_id=None))


@pytest.mark.slow
def test_seeds_give_the_samples_of_transformers() -> None:
    model, (ids, mask) = model_of("Llama"), padded_prompts()
    generator = compile_generation(model, max_length=64, max_batch=2, prefill_chunk=16)
    torch.manual_seed(3)
    made = generator.generate(ids, mask, max_new_tokens=20, do_sample=True, temperature=0.7, top_k=20, top_p=0.9)
    torch.manual_seed(3)
    options: dict[str, Any] = {"temperature": 0.7, "top_k": 20, "top_p": 0.9}
    expected = model.generate(ids, attention_mask=mask, max_new_tokens=20, do_sample=True, **options)
    assert torch.equal(made, expected)


@pytest.mark.slow
def test_a_saved_generator_generates_the_same(tmp_path: Path) -> None:
    model, (ids, mask) = model_of("Qwen2"), padded_prompts()
    generator = compile_generation(model, max_length=32, max_batch=2, prefill_chunk=8)
    path = tmp_path / "model.trtp"
    generator.save(path)
    loaded = TextGenerator.load(path)
    assert loaded.limits == generator.limits == GenerationLimits(2, 32, 8, (2,), 0)
    made = loaded.generate(ids, mask, max_new_tokens=20)
    assert torch.equal(made, generator.generate(ids, mask, max_new_tokens=20))
    loaded.save(path)
    assert torch.equal(TextGenerator.load(path).generate(ids, mask, max_new_tokens=20), made)


class OwnStep(nn.Module):
    """A step that is no model of transformers: one layer of attention over a cache, in the form of plain modules."""

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, rows: int, length: int, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, width)
        self.mix = nn.Linear(width, 3 * width)
        self.head = nn.Linear(width, 40)
        self.register_buffer("keys", torch.zeros(rows, 1, length, width))
        self.register_buffer("values", torch.zeros(rows, 1, length, width))

    def forward(self, input_ids: torch.Tensor, start: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        places = start + torch.arange(input_ids.shape[1])
        query, key, value = self.mix(self.embed(input_ids)).unsqueeze(1).chunk(3, -1)
        self.keys[:, :, places] = key
        self.values[:, :, places] = value
        cached = torch.arange(self.keys.shape[2])
        seen = (cached <= places[:, None]) & (cached >= padding[:, None, None]) | (cached == places[:, None])
        mixed = nn.functional.scaled_dot_product_attention(query, self.keys, self.values, seen[:, None])
        scores: torch.Tensor = self.head(mixed[:, 0, -1])
        return scores


def test_a_step_of_ones_own_is_compiled_as_it_is() -> None:
    step = OwnStep(2, 24).eval()
    generator = compile_generation(step, max_length=24, max_batch=2, prefill_chunk=4, min_block_size=1)
    ids = torch.randint(1, 40, (2, 6))
    made = generator.generate(ids, max_new_tokens=12)
    assert torch.equal(made, TextGenerator(step, generator.limits).generate(ids, max_new_tokens=12))


def test_other_programs_generate_nothing(tmp_path: Path) -> None:
    path = tmp_path / "relu.trtp"
    save(compile(nn.ReLU().eval(), arg_inputs=[torch.ones(2)], min_block_size=1), path)
    with pytest.raises(PlanError, match="generates no text"):
        TextGenerator.load(path)


@pytest.mark.parametrize(
    ("name", "kind"), [("T5", "T5ForConditionalGeneration"), ("Mamba", "MambaForCausalLM"), ("Bert", "BertModel")]
)
def test_models_without_such_caches_are_refused(name: str, kind: str) -> None:
    sizes: dict[str, Any] = {"vocab_size": 300, "hidden_size": 48, "num_hidden_layers": 1}
    if name == "T5":
        sizes = {"vocab_size": 300, "d_model": 32, "d_ff": 32, "num_layers": 1, "num_heads": 2, "d_kv": 16}
    model = getattr(transformers, kind)(getattr(transformers, f"{name}Config")(**sizes)).eval()
    with pytest.raises(InputError, match="cannot be compiled for generating text"):
        compile_generation(model, max_length=16)


@pytest.mark.parametrize(("name", "value"), [("max_length", 0), ("max_batch", 1.5), ("prefill_chunk", -1)])
def test_numbers_that_make_no_sense_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=name):
        compile_generation(model_of("Llama"), **{"max_length": 8, name: value})
