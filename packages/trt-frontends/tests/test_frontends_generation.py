"""Generating text with compiled language models: the tokens are those of transformers' own `generate`."""

from __future__ import annotations

import abc
import contextlib
import copy
import functools
import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
import torch
import transformers
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from torch import nn

from trt_core import InputError, PlanError, SettingsError, TrtError
from trt_frontends import compile, compile_generation, explain, model_report, refit_module_weights, save
from trt_frontends.backend import torch_tensorrt_backend
from trt_frontends.generation.caches import cache_classes
from trt_frontends.generation.compilation import _choice, _in_evaluation, _parts, _rules, _special_tokens, _vocabulary
from trt_frontends.generation.steps import CachedStep
from trt_frontends.stored_layers import open_stored_layers
from trt_runtime import TextGenerator, TRTModule
from trt_runtime.command_line.inspection import inspect_file
from trt_runtime.generation import GenerationLimits
from trt_runtime.generation.options import _LEFT
from trt_runtime.token_choice import TokenChoice

pytestmark = pytest.mark.sampled(4)

STRESSED: Final = "TRT_STRESS" in os.environ

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
    "Falcon-alibi": {**{name: WHOLE[name] for name in WHOLE if name != "intermediate_size"}, "alibi": True}
    | {"multi_query": False},
    "Bloom": {"vocab_size": 300, "hidden_size": 48, "n_layer": 2, "n_head": 3, "pad_token_id": 0},
    "Mpt": {"vocab_size": 300, "d_model": 48, "n_layers": 2, "n_heads": 3, "max_seq_len": 512, "pad_token_id": 0},
    "OPT": {**WHOLE, "ffn_dim": 96, "word_embed_proj_dim": 64},
    "XGLM": {"vocab_size": 300, "d_model": 64, "ffn_dim": 96, "num_layers": 2, "attention_heads": 4, "pad_token_id": 0}
    | {"max_position_embeddings": 512, "bos_token_id": 1, "eos_token_id": 2},
    "Cohere": SIZES,
    "Granite": SIZES,
    "Starcoder2": {**SIZES, "sliding_window": 16},
    "DeepseekV3": {**WHOLE, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16}
    | {"v_head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    | {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
    "JetMoe": {**SIZES, "num_key_value_heads": 2, "kv_channels": 16, "num_local_experts": 4},
    "Mixtral": {**SIZES, "num_local_experts": 4},
    "Qwen3Moe": {**SIZES, "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "GptOss": {**SIZES, "head_dim": 16, "sliding_window": 16, "num_local_experts": 4, "num_experts_per_tok": 2},
}


LINEAR: Final = {"linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_num_key_heads": 2} | {
    "linear_num_value_heads": 4
}
MAMBA: Final = {"mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 16, "mamba_n_groups": 2, "mamba_expand": 2}
TWO_KINDS: Final = {**SIZES, "head_dim": 16, "layer_types": ["linear_attention", "full_attention"]}
WITH_STATES: Final[dict[str, dict[str, Any]]] = {
    "Mamba": {**SIZES, "state_size": 16},
    "Mamba2": {**SIZES, "num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2, "chunk_size": 8},
    "Lfm2": {**SIZES, "layer_types": ["conv", "full_attention"]},
    "Qwen3Next": {**TWO_KINDS, **LINEAR, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    | {"shared_expert_intermediate_size": 32},
    "Jamba": {**SIZES, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 4, "use_mamba_kernels": False},
    "Bamba": {**SIZES, **MAMBA, "attn_layer_indices": [1]},
    "FalconH1": {**SIZES, **MAMBA, "head_dim": 16, "mamba_d_ssm": 128},  # each layer has both
    "GraniteMoeHybrid": {**SIZES, **MAMBA, "layer_types": ["mamba", "attention"], "num_local_experts": 4},
}
"""Models with states of convolutions and recurrences."""
ARCHITECTURES.update(WITH_STATES)
CHOOSING: Final = {**ARCHITECTURES["DeepseekV3"], "index_topk": 8, "index_head_dim": 16, "index_n_heads": 8}
"""Sizes of models whose layers choose eight places to look at."""
ARCHITECTURES.update({"DeepseekV32": CHOOSING, "GlmMoeDsa": CHOOSING})
ARCHITECTURES["Llama4"] = {**SIZES, "head_dim": 16, "attention_chunk_size": 16, "no_rope_layer_interval": 2} | {
    "num_local_experts": 4
}
ALIKE: Final = {"Qwen2", "Phi3", "Olmo", "StableLm", "Granite", "Starcoder2", "Falcon", "Mpt", "Qwen3Moe"} | {
    "Bamba",
    "GraniteMoeHybrid",
    "GlmMoeDsa",
}
"""Architectures whose caches, positions, heads and experts are those of others here: long runs have them."""


def model_of(name: str, *, short: bool = False) -> Any:
    """Returns a model of an architecture: of two layers, or of one."""
    sizes = {key: 1 if short and "layer" in key and size == 2 else size for key, size in ARCHITECTURES[name].items()}
    name = name.partition("-")[0]
    config = getattr(transformers, f"{name}TextConfig" if name in ("Gemma3", "Llama4") else f"{name}Config")(**sizes)
    kind = "GPT2LMHeadModel" if name == "GPT2" else f"{name}ForCausalLM"
    model = getattr(transformers, kind)(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:  # scores further apart than rounding
            nn.init.normal_(parameter, std=0.08)
    return model


SEQ2SEQ_SIZES: Final = {
    "vocab_size": 300,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 128,
    "decoder_start_token_id": 2,
}
ENCODER_DECODERS: Final[dict[str, dict[str, Any]]] = {
    "T5": {"vocab_size": 300, "d_model": 32, "d_ff": 48, "num_layers": 2, "num_heads": 2, "d_kv": 16}
    | {"decoder_start_token_id": 0},
    "Bart": {**SEQ2SEQ_SIZES, "forced_bos_token_id": 0},
    "MBart": {**SEQ2SEQ_SIZES, "forced_bos_token_id": 7},
    "Marian": {**SEQ2SEQ_SIZES, "pad_token_id": 299, "decoder_start_token_id": 299, "bad_words_ids": [[299]]},
    "Pegasus": SEQ2SEQ_SIZES,
    "M2M100": {**SEQ2SEQ_SIZES, "forced_bos_token_id": 9},
    "Whisper": {name: size for name, size in SEQ2SEQ_SIZES.items() if name != "max_position_embeddings"}
    | {"max_source_positions": 20, "max_target_positions": 128, "num_mel_bins": 8, "decoder_start_token_id": 1}
    | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    | {"suppress_tokens": [5, 6, 9], "begin_suppress_tokens": [3, 2]},
}


def encoder_decoder_of(name: str) -> tuple[Any, dict[str, torch.Tensor]]:
    """Returns a model, and two sources for it, of which one is padded."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**ENCODER_DECODERS[name])
    kind = "MarianMTModel" if name == "Marian" else f"{name}ForConditionalGeneration"
    model = getattr(transformers, kind)(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.2)
    if name == "Whisper":
        return model, {"input_features": torch.randn(2, 8, 40)}
    ids = torch.randint(3, 299, (2, 70))
    mask = torch.ones_like(ids)
    ids[1, 50:], mask[1, 50:] = config.pad_token_id, 0
    return model, {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("LED", "with a static cache are not those with one that grows"),  # a single token looks at all places
        ("ProphetNet", "does not run with a static cache"),
    ],
)
def test_decoders_that_cannot_have_static_caches_are_refused(name: str, said: str) -> None:
    config = getattr(transformers, f"{name}Config")
    known = {name: size for name, size in SEQ2SEQ_SIZES.items() if hasattr(config(), name)}
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 2, "hidden_size": 32, "attention_window": 8}
    known |= {name: size for name, size in sizes.items() if name != "hidden_size" or name not in known}
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config(**known)).eval()
    with pytest.raises(InputError, match=said):
        _parts(model, GenerationLimits(2, 32, 4), 32, None)


def test_decoders_whose_scores_without_caches_are_others_follow_texts() -> None:
    """UMT5: `generate` of transformers reads tokens one by one, and so gives what a cache that grows does."""
    sizes = {"vocab_size": 300, "d_model": 32, "d_ff": 48, "num_layers": 2, "num_heads": 2, "d_kv": 16}
    torch.manual_seed(0)
    model = transformers.UMT5ForConditionalGeneration(transformers.UMT5Config(**sizes, decoder_start_token_id=0)).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.2)
    given = {"input_ids": torch.randint(3, 299, (2, 9)), "attention_mask": torch.ones(2, 9, dtype=torch.int64)}
    parts = _parts(model, GenerationLimits(2, 64, 4), 32, None)
    made = TextGenerator(parts.step, parts.limits, parts.encoder).generate(**given, max_new_tokens=30)
    assert torch.equal(made, generated_by_transformers(model, given, 30, eos_token_id=None))


def test_decoders_and_encoders_with_configurations_of_their_own_follow_texts() -> None:
    sizes = {**{name: SIZES[name] for name in SIZES if not name.endswith("_id")}, "head_dim": 16, "sliding_window": 16}
    config = transformers.T5GemmaConfig(encoder=dict(sizes), decoder=dict(sizes), vocab_size=300)
    torch.manual_seed(0)
    model = transformers.T5GemmaForConditionalGeneration(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.08)
    given = {"input_ids": torch.randint(3, 299, (2, 9)), "attention_mask": torch.ones(2, 9, dtype=torch.int64)}
    given["attention_mask"][1, 6:] = 0
    parts = _parts(model, GenerationLimits(2, 64, 4), 32, None)
    generator = TextGenerator(parts.step, parts.limits, parts.encoder)
    made = generator.generate(**given, max_new_tokens=40)
    assert torch.equal(made, generated_by_transformers(model, given, 40, eos_token_id=None))


def generated_by_transformers(model: Any, given: Mapping[str, torch.Tensor], count: int, **how: Any) -> torch.Tensor:
    """What the common loop of transformers makes, which Whisper has another one around."""
    found: torch.Tensor = transformers.GenerationMixin.generate(
        model, **given, max_new_tokens=count, do_sample=False, **how
    )
    return found


def padded_prompts() -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(3, 300, (2, 11))
    mask = torch.ones_like(ids)
    ids[1, :4] = mask[1, :4] = 0
    return ids, mask


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if STRESSED or name not in ALIKE])
def test_steps_generate_what_transformers_does(name: str) -> None:
    """In PyTorch, which takes no build: chunks of prompts, padding and windows are those of every architecture."""
    model, (ids, mask) = model_of(name), padded_prompts()
    count = 256 if STRESSED else 32  # two windows and more
    parts = _parts(model, GenerationLimits(max_batch=2, max_length=count + 32, prefill_chunk=4), 0, None)
    made = TextGenerator(parts.step, parts.limits).generate(ids, mask, max_new_tokens=count, eos_token_id=())
    expected = model.generate(ids, attention_mask=mask, max_new_tokens=count, do_sample=False, eos_token_id=None)
    assert torch.equal(made, expected)


def test_models_with_states_continue_texts() -> None:
    """In PyTorch: beams copy states whole, guesses are refused, and what was read is not taken back."""
    model, (ids, mask) = model_of("Lfm2"), padded_prompts()
    limits = GenerationLimits(6, 96, 8)
    parts = _parts(model, limits, 96, None)
    assert parts.limits.prefill_chunk == 1
    generator = TextGenerator(parts.step, parts.limits)
    assert generator.cache_bytes == 4 * 6 * (64 * 3 + 2 * 2 * 96 * 16)  # one layer of states, one of keys and values
    found = generator.generate(ids, mask, max_new_tokens=20, num_beams=3, eos_token_id=())
    how: dict[str, Any] = {"num_beams": 3, "do_sample": False, "eos_token_id": None}
    assert torch.equal(found, model.generate(ids, attention_mask=mask, max_new_tokens=20, **how))
    for taken in (0, 0, 3, 0):
        made = generator.generate(ids, mask, max_new_tokens=8, eos_token_id=(), keep_cache=True)
        expected = model.generate(ids, attention_mask=mask, max_new_tokens=8, do_sample=False, eos_token_id=None)
        assert torch.equal(made, expected)
        ids = torch.cat([made[:, : made.shape[1] - taken], torch.randint(3, 300, (2, 3))], 1)
        mask = torch.cat([mask, torch.ones(2, ids.shape[1] - mask.shape[1], dtype=torch.int64)], 1)
    with pytest.raises(InputError, match="hold every token that was read, wrong guesses too"):
        compile_generation(model, max_length=32, assisted_tokens=4)


@pytest.mark.parametrize("name", ["Mistral", "GPT2", "Bart", *(["Llama", "Gemma3"] if STRESSED else [])])
def test_guesses_change_no_token(name: str) -> None:
    """In PyTorch: several tokens scored at once, of which rings of keys forget those that were refused."""
    if name == "Bart":
        model, given = encoder_decoder_of(name)
        given = {key: value[:1] for key, value in given.items()}
    else:
        model, given = model_of(name), {"input_ids": torch.randint(3, 300, (1, 11))}
    generators = []
    for assisted in (6, 1):
        parts = _parts(model, GenerationLimits(1, 96, 8, (), 0, assisted, _rules(model)), 100, None)
        generators.append(TextGenerator(parts.step, parts.limits, parts.encoder))
    expected = model.generate(**given, max_new_tokens=64, do_sample=False, eos_token_id=None)
    with torch.no_grad():  # a model that is nearly the same, so that some guesses are right
        draft = copy.deepcopy(model)
        for parameter in draft.parameters():
            parameter += torch.randn_like(parameter) * 0.01
    parts = _parts(draft, GenerationLimits(1, 80, 4), 100, None)
    assistant = TextGenerator(parts.step, parts.limits, parts.encoder)
    for how in ({"prompt_lookup_num_tokens": 5}, {"assistant_model": assistant}, {"assistant_model": generators[1]}):
        made = generators[0].generate(**given, max_new_tokens=64, eos_token_id=(), **how)
        assert torch.equal(made, expected)


_LENGTHS: Final = st.lists(st.sampled_from([1, 7, 8, 9, 16, 39, 40]) | st.integers(1, 40), min_size=1, max_size=3)
_NEW: Final = st.integers(1, 40)
_ENDS: Final = st.sampled_from([(), tuple(range(3, 300, 4)), tuple(range(3, 300, 13))])
_SEEDS: Final = st.integers(0, 20)


class _Interrupting:
    """A streamer that somebody interrupts after some steps."""

    def __init__(self, left: int) -> None:
        self._left = left

    def put(self, value: torch.Tensor) -> None:
        self._left -= 1
        if self._left < 0:
            raise KeyboardInterrupt

    def end(self) -> None:
        pass


class Conversations(RuleBasedStateMachine):
    """Calls of one generator of three rows and forty places, in any order, beside those of transformers.

    Lengths are those at borders of pieces of eight and of the caches; rows end at different times; interrupted and
    refused calls lie between.
    """

    model: Any
    generator: TextGenerator

    def __init__(self) -> None:
        super().__init__()
        self.text: tuple[torch.Tensor, torch.Tensor] | None = None  # of the last call that kept its caches

    @staticmethod
    def prompts(seed: int, lengths: list[int], new: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        longest = max(lengths)
        ids = torch.randint(3, 300, (len(lengths), longest), generator=torch.Generator().manual_seed(seed))
        mask = torch.tensor([[0] * (longest - length) + [1] * length for length in lengths])
        return ids * mask, mask, min(new, 41 - longest)

    def check(self, ids: torch.Tensor, mask: torch.Tensor, new: int, ends: tuple[int, ...], **how: Any) -> torch.Tensor:
        own = {name: how.pop(name) for name in ("keep_cache", "prompt_lookup_num_tokens") if name in how}
        said: dict[str, Any] = {"do_sample": False, **how}
        torch.manual_seed(new)
        expected: torch.Tensor = self.model.generate(
            ids, attention_mask=mask, max_new_tokens=new, eos_token_id=list(ends) or None, **said
        )
        torch.manual_seed(new)
        made = self.generator.generate(ids, mask, max_new_tokens=new, eos_token_id=ends, **own, **said)
        assert torch.equal(made, expected)
        is_kept = own.get("keep_cache")
        self.text = (
            (made, torch.nn.functional.pad(mask, (0, made.shape[1] - mask.shape[1]), value=1)) if is_kept else None
        )
        return made

    @rule(seed=_SEEDS, lengths=_LENGTHS, new=_NEW, ends=_ENDS, kept=st.booleans())
    def continue_prompts(self, seed: int, lengths: list[int], new: int, ends: tuple[int, ...], kept: bool) -> None:
        ids, mask, new = self.prompts(seed, lengths, new)
        self.check(ids, mask, new, ends, keep_cache=kept)

    @rule(cut=st.integers(0, 9), more=st.integers(1, 9), new=_NEW)
    def go_on(self, cut: int, more: int, new: int) -> None:
        if self.text is None:
            return
        ids, mask = (one[:, : max(one.shape[1] - cut, 1)] for one in self.text)
        ids = torch.cat([ids, torch.randint(3, 300, (len(ids), more))], 1)[:, :40]
        mask = torch.nn.functional.pad(mask, (0, more), value=1)[:, :40]
        if bool(mask[:, -1].all()):
            self.check(ids, mask, min(new, 41 - ids.shape[1]), (), keep_cache=True)

    @rule(seed=_SEEDS, lengths=_LENGTHS, new=_NEW, ends=_ENDS)
    def draw(self, seed: int, lengths: list[int], new: int, ends: tuple[int, ...]) -> None:
        ids, mask, new = self.prompts(seed, lengths, new)
        self.check(ids, mask, new, ends, do_sample=True, temperature=1.3, top_k=40)

    @rule(seed=_SEEDS, length=st.integers(1, 40), new=_NEW, ends=_ENDS)
    def search(self, seed: int, length: int, new: int, ends: tuple[int, ...]) -> None:
        ids, mask, new = self.prompts(seed, [length], new)
        self.check(ids, mask, new, ends, num_beams=3)

    @rule(seed=_SEEDS, length=st.integers(1, 40), new=_NEW, ends=_ENDS, kept=st.booleans())
    def guess(self, seed: int, length: int, new: int, ends: tuple[int, ...], kept: bool) -> None:
        ids, mask, new = self.prompts(seed, [length], new)
        self.check(ids % 5 + 3, mask, new, ends, prompt_lookup_num_tokens=3, keep_cache=kept)

    @rule(seed=_SEEDS, lengths=_LENGTHS, left=st.integers(0, 6), kept=st.booleans())
    def interrupt(self, seed: int, lengths: list[int], left: int, kept: bool) -> None:
        ids, mask, new = self.prompts(seed, lengths, 40)
        with contextlib.suppress(KeyboardInterrupt):
            self.generator.generate(
                ids, mask, max_new_tokens=new, eos_token_id=(), streamer=_Interrupting(left), keep_cache=kept
            )

    @rule(which=st.integers(0, 6))
    def refuse(self, which: int) -> None:
        ids, mask, _ = self.prompts(0, [6, 4], 1)
        bad: dict[str, Any] = [
            {"input_ids": ids.new_ones(1, 41)},
            {"input_ids": ids.new_ones(4, 2)},
            {"input_ids": ids, "attention_mask": mask.flip(1)},
            {"input_ids": ids, "attention_mask": mask * 0},
            {"input_ids": ids.to("meta")},
            {"input_ids": ids + 300},
            {"input_ids": ids, "max_new_tokens": 36},
        ][which]
        before = copy.deepcopy(list(self.generator.step.buffers()))
        with pytest.raises(InputError):
            self.generator.generate(**bad)
        assert all(map(torch.equal, before, self.generator.step.buffers()))


@pytest.mark.parametrize("name", ["Llama", "Mistral"])
def test_calls_in_any_order_make_the_tokens_of_transformers(name: str) -> None:
    """In PyTorch; a model whose layers look back a window writes over what is further back."""
    torch.manual_seed(0)
    model = model_of(name)
    limits = GenerationLimits(3, 40, 8, (), 0, 4, _rules(model), choice=_choice(model), vocabulary=300)
    parts = _parts(model, limits, 0, None)
    generator = TextGenerator(parts.step, parts.limits)
    machine = type("Of", (Conversations,), {"model": model, "generator": generator})
    examples = 60 if STRESSED else 4
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=8, deadline=None))


def _with_caches_as(model: Any, name: str) -> Any:
    """Has a model take its caches under another name, as other releases of transformers have it."""
    forward = type(model).forward
    known = inspect.signature(forward).parameters
    own = "cache" if "cache" in known else "past_key_values"

    def renamed(self: Any, *args: Any, **given: Any) -> Any:
        return forward(self, *args, **{own if key == name else key: value for key, value in given.items()})

    parameters = [each.replace(name=name) if each.name == own else each for each in known.values()]
    renamed.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    model.__class__ = type(type(model).__name__, (type(model),), {"forward": renamed})
    return model


@pytest.mark.parametrize("name", ["past_key_values", "cache"])
@pytest.mark.parametrize("kind", ["Llama", "Bart"])
def test_caches_are_given_under_the_name_that_the_release_has(kind: str, name: str) -> None:
    if kind == "Llama":
        (ids, mask), model = padded_prompts(), model_of(kind)
        given = {"input_ids": ids, "attention_mask": mask}
    else:
        model, given = encoder_decoder_of(kind)
    expected = generated_by_transformers(model, given, 9, eos_token_id=None)
    limits = GenerationLimits(3, 48, 4, (), model.generation_config.pad_token_id or 0, 1, _rules(model))
    parts = _parts(_with_caches_as(model, name), limits, 100, None)
    made = TextGenerator(parts.step, parts.limits, parts.encoder).generate(**given, max_new_tokens=9, eos_token_id=())
    assert torch.equal(made, expected)


def test_caches_are_those_of_older_releases_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """In transformers 5.0, for one, a layer says its length under another name; no model was compiled there."""

    class Older(transformers.cache_utils.CacheLayerMixin):
        @abc.abstractmethod
        def get_max_cache_shape(self) -> int: ...

    monkeypatch.setattr(transformers.cache_utils, "CacheLayerMixin", Older)
    layer = cache_classes.__wrapped__()[1](torch.zeros(1, 2, 7, 4), torch.zeros(1, 2, 7, 4))
    assert layer.get_max_cache_shape() == layer.get_max_length() == 7


@pytest.mark.parametrize(
    "name",
    [name for name in ENCODER_DECODERS if STRESSED or name not in ("MBart", "Pegasus")],  # as BART
)
def test_steps_of_encoder_decoders_generate_what_transformers_does(name: str) -> None:
    """In PyTorch: cross attention over what was computed once, padded sources, forced and suppressed tokens."""
    model, given = encoder_decoder_of(name)
    limits = GenerationLimits(3, 48, 4, (), model.generation_config.pad_token_id, 1, _rules(model))
    parts = _parts(model, limits, 100, None)
    generator = TextGenerator(parts.step, parts.limits, parts.encoder)
    made = generator.generate(**given, max_new_tokens=40)
    assert torch.equal(made, generated_by_transformers(model, given, 40, eos_token_id=None))
    begun = torch.cat([made[:, :1], torch.randint(3, 299, (2, 5))], 1)
    how: dict[str, Any] = {"decoder_input_ids": begun, "eos_token_id": int(made[0, 9])}
    made = generator.generate(**given, **how, max_new_tokens=20)
    assert torch.equal(made, generated_by_transformers(model, given, 20, **how))
    one = {key: value[:1] for key, value in given.items()}  # rows that are missing are filled up
    made = generator.generate(**one, max_new_tokens=9)
    assert torch.equal(made, generated_by_transformers(model, one, 9, eos_token_id=None))


@pytest.mark.parametrize("name", ["Llama", "Gemma2", "Bloom", "Mistral", "DeepseekV32"])
def test_conversations_go_on_from_kept_caches(name: str) -> None:
    """In PyTorch: padded rows, windows whose rings forget, and a turn that takes back what was said."""
    model, (ids, mask) = model_of(name), padded_prompts()
    limits = GenerationLimits(2, 128, 8)
    generator = TextGenerator(CachedStep(model, limits), limits)
    for taken in (0, 0, 3, 20, 0):
        made = generator.generate(ids, mask, max_new_tokens=20, eos_token_id=(), keep_cache=True)
        expected = model.generate(ids, attention_mask=mask, max_new_tokens=20, do_sample=False, eos_token_id=None)
        assert torch.equal(made, expected)
        ids = torch.cat([made[:, : made.shape[1] - taken], torch.randint(3, 300, (2, 3))], 1)
        mask = torch.cat([mask, torch.ones(2, ids.shape[1] - mask.shape[1], dtype=torch.int64)], 1)


SEARCHES: Final[list[dict[str, Any]]] = [
    {"num_beams": 3},
    {"num_beams": 4, "num_return_sequences": 3, "length_penalty": -1.0, "early_stopping": True},
    {"num_beams": 2, "length_penalty": 2.0, "early_stopping": "never", "no_repeat_ngram_size": 2},
    {"num_beams": 3, "do_sample": True, "temperature": 0.8, "top_p": 0.9, "min_p": 0.01},
    {"num_return_sequences": 2, "do_sample": True, "top_k": 0, "min_p": 0.05},
    {"do_sample": True},  # from the 50 likeliest, as transformers does
    {"repetition_penalty": 1.3, "min_new_tokens": 6},
    {"no_repeat_ngram_size": 1},
]


_CONTINUATIONS: Final = transformers.GenerationMixin._get_top_k_continuations


def _likeliest_first(self: Any, *given: Any, **named: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What continues beams, in the order of newer releases of transformers; older ones leave samples as drawn."""
    scores, *others = _CONTINUATIONS(self, *given, **named)
    scores, order = scores.sort(-1, descending=True)
    texts, origins = (each.take_along_dim(order[:, :, None], 1) for each in others)
    return scores, texts, origins


@pytest.mark.parametrize("name", ["Gemma2", "Bart", *(["Bloom", "DeepseekV32"] if STRESSED else [])])
def test_searches_samples_and_penalties_are_those_of_transformers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In PyTorch: beams reorder caches, rings of windows among them, and end where those of transformers do."""
    monkeypatch.setattr(transformers.GenerationMixin, "_get_top_k_continuations", _likeliest_first)
    if name == "Bart":
        model, given = encoder_decoder_of(name)
    else:
        model, (ids, mask) = model_of(name), padded_prompts()
        given = {"input_ids": ids, "attention_mask": mask}
    limits = GenerationLimits(8, 64, 4, (), 1, 1, _rules(model), choice=_choice(model))
    parts = _parts(model, limits, 100, None)
    generator = TextGenerator(parts.step, parts.limits, parts.encoder)
    plain = generator.generate(**given, max_new_tokens=24)
    some = [int(plain[0, -6]), int(plain[1, -14])]
    for how in SEARCHES:
        for ends in ((), *([some[:1]] if STRESSED else []), [*some, *range(40, 160)]):
            found = []
            for generate in (generator.generate, functools.partial(transformers.GenerationMixin.generate, model)):
                torch.manual_seed(5)
                theirs: dict[str, Any] = {"do_sample": False} if generate != generator.generate else {}
                options = {**theirs, **how, "eos_token_id": ends or (() if not theirs else None)}
                found.append(generate(**given, **options, max_new_tokens=24, pad_token_id=1))
            assert torch.equal(*found), (how, ends)


def test_models_with_a_loop_of_their_own_say_that_it_is_not_compiled(caplog: pytest.LogCaptureFixture) -> None:
    """Bark's parts make their prompts of text and of what was said before: other tokens, without a word."""
    sizes = {"block_size": 64, "input_vocab_size": 96, "output_vocab_size": 96, "num_layers": 2, "num_heads": 4}
    model = transformers.BarkSemanticModel(transformers.BarkSemanticConfig(**sizes, hidden_size=32)).eval()
    _parts(model, GenerationLimits(1, 16, 4), 16, None)
    assert "BarkSemanticModel generates in a loop of its own, which takes semantic_generation_config" in caplog.text
    caplog.clear()
    _parts(model_of("Llama"), GenerationLimits(1, 16, 4), 16, None)
    assert "loop of its own" not in caplog.text


_DRAWN: Final = {"do_sample": True}
_OPTIONS: Final[dict[str, list[Any]]] = {
    # options of a GenerationConfig, each with what is asked for with it: values that change tokens, so that one that is
    # ignored is seen
    "max_length": [{"max_length": 20, "max_new_tokens": None}],
    "max_new_tokens": [{"max_new_tokens": 3}],
    "min_length": [{"min_length": 24, "eos_token_id": "made"}],
    "min_new_tokens": [{"min_new_tokens": 15, "eos_token_id": "made"}, {"min_new_tokens": 3, "min_length": 60}],
    "early_stopping": [{"early_stopping": True, "num_beams": 3, "eos_token_id": "made"}, {"early_stopping": "never"}],
    "do_sample": [_DRAWN],
    "num_beams": [{"num_beams": 3}],
    "temperature": [{**_DRAWN, "temperature": 0.3}],
    "top_k": [{**_DRAWN, "top_k": 2}],
    "top_p": [{**_DRAWN, "top_p": 0.2}],
    "min_p": [{**_DRAWN, "min_p": 0.5}],
    "top_h": [{**_DRAWN, "top_h": 0.3}, {**_DRAWN, "top_h": 0.6, "temperature": 0.5, "top_k": 0}],
    "typical_p": [{**_DRAWN, "typical_p": 0.2}, {**_DRAWN, "typical_p": 0.6, "num_beams": 3}],
    "epsilon_cutoff": [{**_DRAWN, "epsilon_cutoff": 0.02}, {**_DRAWN, "epsilon_cutoff": 0.9, "num_beams": 3}],
    "eta_cutoff": [{**_DRAWN, "eta_cutoff": 0.04}, {**_DRAWN, "eta_cutoff": 0.04, "num_beams": 3}],
    "repetition_penalty": [{"repetition_penalty": 1.4}],
    "encoder_repetition_penalty": [{"encoder_repetition_penalty": 3.0}],
    "length_penalty": [{"length_penalty": -3.0, "num_beams": 3, "eos_token_id": "made"}],
    "no_repeat_ngram_size": [{"no_repeat_ngram_size": 1}],
    "encoder_no_repeat_ngram_size": [
        {"encoder_no_repeat_ngram_size": size, "sequence_bias": [[["read"], 90.0], [["read", "next"], 180.0]]}
        for size in (1, 2, 3)
    ],
    "bad_words_ids": [{"bad_words_ids": [["first"], ["third", "fourth"]], "eos_token_id": "made"}],
    "renormalize_logits": [{"renormalize_logits": True, "num_beams": 3, "bad_words_ids": [["first"]]}, {**_DRAWN}],
    "forced_bos_token_id": [{"forced_bos_token_id": 0, "row": True}, {"forced_bos_token_id": 1, "row": True}],
    "forced_eos_token_id": [{"forced_eos_token_id": 0}, {"forced_eos_token_id": [1, 5]}],
    "remove_invalid_values": [
        {"remove_invalid_values": True, "bad_words_ids": [["first"]], **_DRAWN, "temperature": 1e30}
    ],
    "exponential_decay_length_penalty": [{"exponential_decay_length_penalty": (2, 1.5), "eos_token_id": [40, 50]}],
    "suppress_tokens": [{"suppress_tokens": ["first", "third"]}],
    "begin_suppress_tokens": [{"begin_suppress_tokens": ["first"]}],
    "sequence_bias": [
        {"sequence_bias": [[["first"], -30.0], [["third", "fourth"], -30.0], [[7], 4.0]]},
        {"sequence_bias": [[["first"], -0.5]], "repetition_penalty": 1.3, "num_beams": 3},
    ],
    "num_return_sequences": [{**_DRAWN, "num_return_sequences": 2}],
    "pad_token_id": [{"pad_token_id": 5, "eos_token_id": "made"}],
    "eos_token_id": [{"eos_token_id": "made"}],
    "decoder_start_token_id": [{"decoder_start_token_id": 9}],
    "prompt_lookup_num_tokens": [],  # for one row, with growing caches of transformers: see the tests of guesses
}
_REFUSED: Final[dict[str, Any]] = {
    # those that are not done, with values that a plain `value in (0, 1)` took for nothing
    "max_time": 1,
    "stop_strings": ["end"],
    "use_mtp": True,
    "token_healing": True,
    "guidance_scale": 1.5,
    "watermarking_config": {"bias": 2.5},
    **dict.fromkeys(("output_attentions", "output_hidden_states", "output_scores", "output_logits"), True),
    "return_dict_in_generate": True,
    "is_assistant": True,
    "assistant_early_exit": 1,
    "assistant_ensemble_weight": 0.5,
    "speculation_type": "dflash",
    "penalty_alpha": 1,
    "dola_layers": "low",
    "diversity_penalty": 1,
    "num_beam_groups": 2,
    "constraints": ["one"],
    "force_words_ids": [[1]],
    "of_nobody": 1,
}


def test_every_option_of_transformers_is_done_or_refused_or_changes_no_token() -> None:
    known = {name for name in vars(transformers.GenerationConfig()) if not name.startswith("_")}
    asked = {*_OPTIONS, *_REFUSED}
    assert known <= asked | set(_LEFT)
    assert not asked & set(_LEFT)


@pytest.mark.parametrize("name", _REFUSED)
def test_options_that_are_not_done_are_refused_by_name(name: str, for_options: Any) -> None:
    generator, ids = for_options["Llama"][2], torch.tensor([[3, 4]])
    config = transformers.GenerationConfig(max_new_tokens=2)
    setattr(config, name, _REFUSED[name])
    for how in ({name: _REFUSED[name]}, {"generation_config": config}):
        with pytest.raises(InputError, match=f"generate takes no {name} here"):
            generator.generate(ids, **how)
    for value in (None, False):
        setattr(config, name, value)
        generator.generate(ids, generation_config=config)


@pytest.fixture(scope="module")
def for_options() -> dict[str, tuple[Any, dict[str, torch.Tensor], TextGenerator]]:
    made = {}
    for kind in ("Llama", "Bart"):
        if kind == "Bart":
            model, given = encoder_decoder_of(kind)
        else:
            model, (ids, mask) = model_of(kind), padded_prompts()
            given = {"input_ids": ids, "attention_mask": mask}
        model.generation_config = transformers.GenerationConfig(
            pad_token_id=1, decoder_start_token_id=model.generation_config.decoder_start_token_id
        )
        parts = _parts(model, GenerationLimits(12, 64, 8, (), 1, choice=_choice(model)), 100, None)
        made[kind] = model, given, TextGenerator(parts.step, parts.limits, parts.encoder)
    return made


_OF_BOTH: Final = {"begin_suppress_tokens", "exponential_decay_length_penalty", "encoder_no_repeat_ngram_size"} | {
    name for name in _OPTIONS if name.endswith("_length") or "min_" in name
}
"""Options that count from where a text begins, which is behind a prompt, or at the start of a decoder."""
_OF_SOURCES: Final = {name for name in _OPTIONS if "coder" in name or "bos" in name} | {"renormalize_logits"}
"""Options that an encoder's text counts for, or that decoders alone have."""


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (name, kind)
        for name in _OPTIONS
        for kind in ("Llama", "Bart")
        if STRESSED or name in _OF_BOTH or (kind == "Bart") == (name in _OF_SOURCES)
    ],
)
def test_options_of_transformers_lead_to_its_tokens(
    name: str, kind: str, for_options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given in the call, in a configuration, and in the model's own that it was compiled with."""
    monkeypatch.setattr(transformers.GenerationMixin, "_get_top_k_continuations", _likeliest_first)
    model, given, generator = for_options[kind]
    plain = _tokens_of(model, given, {"max_new_tokens": 12})
    new = plain[:, -12:]
    words = {"first": int(new[0, 0]), "third": int(new[0, 2]), "fourth": int(new[0, 3]), "made": int(new[0, 5])}
    words |= {"read": int(given["input_ids"][0, 2]), "next": int(given["input_ids"][0, 3])}
    changed = False
    for how in _OPTIONS[name]:
        options = {"max_new_tokens": 12, **_with_words(how, words)}
        if options.pop("row", False):
            some = {part: value[:1, : 1 if kind == "Llama" else None] for part, value in given.items()}
            some["attention_mask"] = torch.ones_like(some["input_ids"])
        else:
            some = given
        for config in (False, True):
            asked = {"generation_config": transformers.GenerationConfig(**options)} if config else options
            expected = _tokens_of(model, some, asked)
            torch.manual_seed(5)
            assert torch.equal(generator.generate(**some, **asked), expected), (options, config)
            changed |= expected.shape != plain.shape or not torch.equal(expected, plain)
        model.generation_config, before = transformers.GenerationConfig(**options), model.generation_config
        try:
            limits = replace(generator.limits, rules=_rules(model), choice=_choice(model))
            limits = GenerationLimits.from_text(limits.to_text())
            ends, limits_ends = _special_tokens(model, None, None)[0], replace(limits, eos_token_ids=())
            own = TextGenerator(generator.step, replace(limits_ends, eos_token_ids=ends), generator.encoder)
            told = {key: options[key] for key in _IN_CALLS if options.get(key) is not None}
            torch.manual_seed(5)
            assert torch.equal(own.generate(**some, **told), expected), options
        finally:
            model.generation_config = before
    is_seen = name not in ("decoder_start_token_id", "renormalize_logits") or kind == "Bart"
    assert changed or not _OPTIONS[name] or not is_seen


_IN_CALLS: Final = ("max_new_tokens", "max_length", "do_sample", "num_beams", "num_return_sequences")
_IN_CALLS += ("decoder_start_token_id", "pad_token_id")


def _with_words(asked: Any, words: Mapping[str, int]) -> Any:
    """Puts tokens in place of their names."""
    if isinstance(asked, dict):
        return {key: _with_words(value, words) for key, value in asked.items()}
    if isinstance(asked, list):
        return [_with_words(value, words) for value in asked]
    return words.get(asked, asked) if isinstance(asked, str) else asked


def _tokens_of(model: Any, given: Mapping[str, torch.Tensor], options: dict[str, Any]) -> torch.Tensor:
    torch.manual_seed(5)
    made: torch.Tensor = transformers.GenerationMixin.generate(model, **given, **options)
    return made


WITHOUT_TRANSFORMERS: Final = """
import sys, torch
sys.modules["transformers"] = None
from trt_runtime import TextGenerator
generator = TextGenerator.load(sys.argv[1])
torch.save(generator.generate(**torch.load(sys.argv[2]), max_new_tokens=20), sys.argv[3])
"""


def test_encoders_of_pictures_lead_to_whole_engines() -> None:
    """TrOCR, whose decoder counts positions from the length of its cache."""
    torch.manual_seed(0)
    decoder = transformers.TrOCRConfig(
        vocab_size=300, d_model=32, decoder_layers=2, decoder_attention_heads=2, decoder_ffn_dim=48
    )
    encoder = transformers.ViTConfig(**{**VISION, "hidden_size": 32})
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    config.decoder_start_token_id, config.pad_token_id = 2, 1
    model: Any = transformers.VisionEncoderDecoderModel(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.2)
    given = {"pixel_values": torch.randn(2, 3, 16, 16)}
    parts = _parts(model, GenerationLimits(2, 48, 4), 100, given)
    assert explain(parts.step, arg_inputs=parts.step_inputs()).coverage == 1
    generator = TextGenerator(parts.step, parts.limits, parts.encoder)
    expected = generated_by_transformers(model, given, 30, eos_token_id=None, decoder_start_token_id=2)
    assert torch.equal(generator.generate(**given, max_new_tokens=30), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ENCODER_DECODERS if STRESSED else ["Bart"])
def test_encoder_decoders_are_one_file_that_runs_without_transformers(name: str, compiled: Any, tmp_path: Path) -> None:
    (model, generator, saved), given = compiled(name), encoder_decoder_of(name)[1]
    expected = generated_by_transformers(model, given, 20)
    assert torch.equal(generator.generate(**given, max_new_tokens=20), expected)
    for part in (generator.step, generator.encoder):
        assert sum(isinstance(child, TRTModule) for child in part.modules()) == 1
    source, made = tmp_path / "source.pt", tmp_path / "made.pt"
    torch.save(given, source)
    command = [sys.executable, "-c", WITHOUT_TRANSFORMERS, str(saved), str(source), str(made)]
    subprocess.run(command, check=True, timeout=300)
    assert torch.equal(torch.load(made), expected)


@pytest.mark.slow
def test_decoders_that_count_positions_from_a_cache_take_one_token_and_several() -> None:
    """BERT cuts a table of positions by the length of its cache: a compiled step refused single tokens."""
    sizes = {name: size for name, size in WHOLE.items() if not name.endswith("_id")} | {"num_hidden_layers": 1}
    parts = (
        transformers.BertConfig(**sizes),
        transformers.BertConfig(**sizes, is_decoder=True, add_cross_attention=True),
    )
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(*parts)
    config.decoder_start_token_id, config.pad_token_id = 2, 0
    torch.manual_seed(0)
    model = transformers.EncoderDecoderModel(config=config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.2)
    given = {"input_ids": torch.randint(3, 299, (2, 9)), "attention_mask": torch.ones(2, 9, dtype=torch.int64)}
    given["attention_mask"][1, 6:] = 0
    generator = compile_generation(model, max_length=32, max_batch=2, max_source_length=16)
    expected = generated_by_transformers(model, given, 16, eos_token_id=None)
    assert torch.equal(generator.generate(**given, max_new_tokens=16, eos_token_id=()), expected)


VISION: Final = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 4,
}
TEXTS: Final = {**SIZES, "model_type": "llama", "hidden_size": 32, "vocab_size": 300}
AXES: Final = {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 10000.0}
PATCHES: Final = {"depth": 1, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2}
PICTURES: Final[dict[str, dict[str, Any]]] = {
    "Llava": {"vision_config": {**VISION, "model_type": "clip_vision_model", "projection_dim": 32}},
    "SmolVLM": {"vision_config": VISION, "scale_factor": 2},
    "Idefics3": {"vision_config": VISION, "scale_factor": 2},
    "InternVL": {"vision_config": {**VISION, "image_size": [16, 16], "patch_size": [4, 4]}},
    "LlavaNext": {"vision_config": {**VISION, "model_type": "clip_vision_model", "projection_dim": 32}}
    | {"image_grid_pinpoints": [[16, 16], [16, 32]]},
    "Gemma3": {"vision_config": VISION, "mm_tokens_per_image": 4}
    | {
        "text_config": {**SIZES, "head_dim": 16, "sliding_window": 16, "query_pre_attn_scalar": 1}
        | {"layer_types": ["full_attention", "sliding_attention"]}
    },
    "PaliGemma": {"vision_config": {**VISION, "model_type": "siglip_vision_model", "projection_dim": 64}}
    | {"text_config": {**SIZES, "model_type": "gemma", "head_dim": 16}, "projection_dim": 64},
    "Qwen2VL": {"vision_config": {**PATCHES, "embed_dim": 32, "hidden_size": 32, "mlp_ratio": 2}},
    "Qwen2_5_VL": {
        "vision_config": {**PATCHES, "hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 32}
        | {"depth": 2, "window_size": 16, "fullatt_block_indexes": [1]}
    },
    "Qwen3VL": {
        "vision_config": {**PATCHES, "hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 32}
        | {"depth": 2, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]}
    },
    "PaliGemma-2": {"vision_config": {**VISION, "model_type": "siglip_vision_model", "projection_dim": 64}}
    | {"text_config": {**SIZES, "model_type": "gemma2", "head_dim": 16, "sliding_window": 16}, "projection_dim": 64},
    "LlavaOnevision": {"vision_config": {**VISION, "model_type": "siglip_vision_model"}}
    | {"image_grid_pinpoints": [[16, 16], [16, 32]]},
    "Llava-pixtral": {"vision_config": {**VISION, "model_type": "pixtral", "head_dim": 16}}
    | {"vision_feature_select_strategy": "full", "vision_feature_layer": -1},
    "AyaVision": {"vision_config": {**VISION, "model_type": "siglip_vision_model"}, "downsample_factor": 2}
    | {"vision_feature_select_strategy": "full"},
    "Cohere2Vision": {"vision_config": {**VISION, "model_type": "siglip_vision_model"}, "downsample_factor": 2},
    "Mistral3": {"vision_config": {**VISION, "model_type": "pixtral", "head_dim": 16}, "spatial_merge_size": 2},
    "LightOnOcr": {"vision_config": {**VISION, "model_type": "pixtral", "head_dim": 16}, "spatial_merge_size": 2}
    | {"text_config": {**TEXTS, "model_type": "qwen3"}},
    "Aria": {"vision_config": {**VISION, "model_type": "idefics3_vision"}, "projector_patch_to_query_dict": {16: 4}}
    | {"text_config": {**TEXTS, "model_type": "aria_text", "moe_num_experts": 4, "moe_topk": 2}},
    "Idefics2": {"vision_config": VISION, "text_config": {**TEXTS, "model_type": "mistral"}}
    | {
        "perceiver_config": {"hidden_size": 32, "resampler_n_latents": 4, "resampler_depth": 1, "resampler_n_heads": 2}
        | {"resampler_head_dim": 16, "num_key_value_heads": 1}
    },
    "GotOcr2": {"text_config": {**TEXTS, "model_type": "qwen2"}}
    | {"vision_config": {**VISION, "output_channels": 16, "mlp_dim": 48, "window_size": 2, "global_attn_indexes": [0]}},
}
FILLED: Final[dict[str, int]] = {"Llava": 16, "LlavaNext": 16 + 4 * 9, "PaliGemma": 16, "Qwen2VL": 6, "Qwen2_5_VL": 6}
FILLED |= {"GotOcr2": 1, "Llava-pixtral": 16, "Qwen3VL": 6, "PaliGemma-2": 16, "LlavaOnevision": 16 + 4 * 9}
"""Places of a picture, where they are not 4."""


def model_with_pictures(name: str, *, short: bool = False) -> tuple[Any, dict[str, torch.Tensor]]:
    """Returns a model, of two layers or mostly of one, and two padded prompts with three pictures."""
    torch.manual_seed(0)
    texts: dict[str, Any] = {**TEXTS, **({"rope_parameters": AXES} if name.startswith("Qwen") else {})}
    texts["num_hidden_layers"] = 1 if short else 2
    kind, name = name, name.partition("-")[0]
    config = getattr(transformers, f"{name}Config")(**{"text_config": texts, "image_token_id": 299} | PICTURES[kind])
    config.image_token_index = config.image_token_id = 299
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.05 if name == "Gemma3" else 0.2)  # tokens follow from pictures
    fills = FILLED.get(kind, 4)
    length = 50 if fills < 20 else 150
    ids, pictures = torch.randint(3, 290, (2, length)), torch.randn(3, 3, 16, 16)
    mask = torch.ones_like(ids)
    for row, place in ((0, 5), (0, length - 6 - fills), (1, 10)):
        ids[row, place : place + fills] = 299
    ids[1, :3] = mask[1, :3] = 0
    given = {"input_ids": ids, "attention_mask": mask, "pixel_values": pictures}
    if name in ("SmolVLM", "Idefics2", "Idefics3"):  # a row of pictures for each prompt, filled up with empty ones
        given["pixel_values"] = torch.stack([pictures[:2], torch.stack([pictures[2], torch.zeros(3, 16, 16)])])
    if name in ("Mistral3", "LightOnOcr"):
        given["image_sizes"] = torch.tensor([[16, 16]] * 3)
    if name in ("LlavaNext", "LlavaOnevision"):
        given |= {"pixel_values": torch.randn(3, 3, 3, 16, 16), "image_sizes": torch.tensor([[16, 32]] * 3)}
    types = (ids == 299).long()
    if name in ("Gemma3", "PaliGemma"):
        given["token_type_ids"] = types if name == "Gemma3" else torch.zeros_like(ids)
    if name.startswith("Qwen"):  # 4 x 6 patches of two frames
        given |= {"pixel_values": torch.randn(3 * 24, 3 * 2 * 16), "image_grid_thw": torch.tensor([[1, 4, 6]] * 3)}
        given["mm_token_type_ids"] = types
    return model, given


def of_first_pictures(given: dict[str, torch.Tensor], count: int) -> dict[str, torch.Tensor]:
    """Returns what a model with pictures is compiled for: so many of them at once."""
    pictures = given["pixel_values"]
    if pictures.dim() == 5 and "image_sizes" not in given:
        pictures = pictures.flatten(0, 1)
    each = 24 if pictures.dim() == 2 else 1
    sizes = {name: given[name][:count] for name in ("image_sizes", "image_grid_thw") if name in given}
    return {"pixel_values": pictures[: count * each], **sizes}


_PICTURED: Final = (
    "Llava",
    "SmolVLM",
    "LlavaNext",
    "Gemma3",
    "PaliGemma",
    "Qwen2VL",
    "Qwen2_5_VL",
    "Qwen3VL",
    "GotOcr2",
)
"""Models with pictures of one kind each: long runs have them all."""


@pytest.mark.parametrize("name", PICTURES if STRESSED else _PICTURED)
def test_steps_of_models_with_pictures_generate_what_transformers_does(name: str) -> None:
    """In PyTorch: prompts in pieces that cut pictures, two pictures at once, and texts without any."""
    model, given = model_with_pictures(name)
    chunk = 50 if "PaliGemma" in name else 8
    length = given["input_ids"].shape[1] + 46
    parts = _parts(model, GenerationLimits(2, length, chunk), length, of_first_pictures(given, 2))
    generator = TextGenerator(parts.step, parts.limits, parts.encoder)
    made = generator.generate(**given, max_new_tokens=32)
    assert torch.equal(made, generated_by_transformers(model, given, 32, eos_token_id=None))
    text = {"input_ids": torch.randint(3, 298, (1, 9))}
    made = generator.generate(**text, max_new_tokens=9)
    assert torch.equal(made, generated_by_transformers(model, text, 9, eos_token_id=None))
    for cache in parts.step.buffers():
        cache.zero_()
    refused: list[tuple[dict[str, Any], str]] = [
        (of_first_pictures(given, 1), "places for pictures"),
        (
            {"pixel_values": torch.zeros(3)},
            "are not 3 pictures" if "image_sizes" in given or "Qwen" in name else "have shape",
        ),
        ({"image_size": torch.ones(2, 2)}, "takes no image_size"),
        ({"input_ids": given["input_ids"], "pixel_values": None}, "pixel_values is a tensor"),
    ]
    if "token_type_ids" in given or "mm_token_type_ids" in given:
        types = "token_type_ids" if "token_type_ids" in given else "mm_token_type_ids"
        refused.append(({types: 1 - given[types]}, "follow from input_ids"))
    for sizes in {"image_sizes", "image_grid_thw"} & set(given):
        refused.append(({sizes: given[sizes] + 1}, "compiled for pictures whose"))
        refused.append(({"pixel_values": given["pixel_values"][:-1]}, "are not 3 pictures"))
    if name.partition("-")[0] in ("Gemma3", "PaliGemma", "Qwen2VL", "Qwen2_5_VL", "Qwen3VL"):
        cut = given["input_ids"].clone()
        cut[0, 4], cut[0, 6] = 299, 7
        refused.append(({"input_ids": cut, "token_type_ids": None, "mm_token_type_ids": None}, "do not follow each"))
    if name in ("SmolVLM", "Idefics2", "Idefics3"):
        partly = torch.ones(2, 2, 16, 16)
        partly[0, 0, 0] = 0
        refused.append(({"pixel_attention_mask": partly}, "a part of a picture is padding"))
    for other, said in refused:
        with pytest.raises(InputError, match=said):
            generator.generate(**{**given, **other}, max_new_tokens=5)
    assert not any(cache.any() for cache in parts.step.buffers() if cache.dim() == 4)


@pytest.mark.slow
@pytest.mark.parametrize("name", PICTURES if STRESSED else ["Gemma3", "Qwen2_5_VL"])
def test_models_with_pictures_are_one_file(name: str, tmp_path: Path) -> None:
    model, given = model_with_pictures(name, short=not STRESSED)
    source, length = of_first_pictures(given, 3), given["input_ids"].shape[1] + 30
    chunk = length if "PaliGemma" in name else 8
    generator = compile_generation(model, max_length=length, max_batch=2, prefill_chunk=chunk, source_inputs=source)
    expected = generated_by_transformers(model, given, 20, eos_token_id=None)
    for part in (generator.step, generator.encoder):
        assert sum(isinstance(child, TRTModule) for child in part.modules()) == 1
    generator.save(tmp_path / "model.trtp")
    for each in (generator, TextGenerator.load(tmp_path / "model.trtp")):
        assert torch.equal(each.generate(**given, max_new_tokens=20, eos_token_id=()), expected)


EARS: Final = {"num_mel_bins": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 32}
HEARING: Final = {**EARS, "max_source_positions": 32, "intermediate_size": 128, "model_type": "voxtral_encoder"}
ASKING: Final = {"vocab_size": 60, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1} | {
    "num_attention_heads": 2,
    "encoder_hidden_size": 32,
    "cross_attention_frequency": 1,
}
OPT_TEXTS: Final = {**TEXTS, "model_type": "opt", "word_embed_proj_dim": 32, "ffn_dim": 48, "eos_token_id": 2}
BESIDE: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    # models that are told something of each picture or sound, or whose text is continued by a model inside of them
    "Qwen2Audio": (
        "feature_attention_mask",
        {"text_config": {**TEXTS, "model_type": "qwen2"}, "audio_token_id": 299}
        | {
            "audio_config": {"num_mel_bins": 8, "encoder_layers": 1, "encoder_attention_heads": 2, "d_model": 32}
            | {"encoder_ffn_dim": 48, "max_source_positions": 32, "model_type": "qwen2_audio_encoder"}
        },
    ),
    "Voxtral": ("", {"text_config": TEXTS, "audio_config": HEARING, "audio_token_id": 299}),
    "AudioFlamingo3": (
        "input_features_mask",
        {"text_config": {**TEXTS, "model_type": "qwen2"}, "audio_token_id": 299}
        | {"audio_config": {**HEARING, "model_type": "audioflamingo3_encoder"}},
    ),
    "GlmAsr": (
        "input_features_mask",
        {"text_config": TEXTS, "audio_token_id": 299}
        | {"audio_config": {**EARS, "intermediate_size": 128, "head_dim": 16, "model_type": "glmasr_encoder"}},
    ),
    "Blip2": ("", {"text_config": OPT_TEXTS}),
    "InstructBlip": ("qformer_attention_mask", {"text_config": TEXTS}),
}
LONG: Final = (64, 40, 23)
"""Frames of sounds."""


def model_told_beside(name: str, *, short: bool = False) -> tuple[Any, dict[str, torch.Tensor]]:
    """Returns a model, and two padded prompts with three sounds of other lengths, or with a picture each."""
    torch.manual_seed(0)
    mask_name, sizes = BESIDE[name]
    sizes = {**sizes, "text_config": {**sizes["text_config"], "num_hidden_layers": 1 if short else 2}}
    reads_pictures = "Blip" in name
    if reads_pictures:
        sizes = {"vision_config": VISION, "qformer_config": ASKING, "num_query_tokens": 4, **sizes}
        sizes["image_token_index"] = 299
    config = getattr(transformers, f"{name}Config")(**sizes)
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.2)
    ids = torch.randint(3, 290, (2, 60))
    mask = torch.ones_like(ids)
    given = {"input_ids": ids, "attention_mask": mask}
    ids[1, :4] = mask[1, :4] = 0
    if reads_pictures:
        ids[:, 5:9] = 299
        given["pixel_values"] = torch.randn(2, 3, 16, 16)
        if mask_name:
            given["qformer_input_ids"], given[mask_name] = torch.randint(3, 60, (2, 7)), torch.ones(2, 7).long()
            given[mask_name][1, 4:] = 0
        return model, given
    given["input_features"] = torch.randn(3, 8, 64)
    halves = [(long - 1) // 2 + 1 for long in LONG]
    fills = [half // 4 if name == "GlmAsr" else half // 2 for half in halves] if mask_name else [8] * 3
    if mask_name:
        given[mask_name] = (torch.arange(64) < torch.tensor(LONG)[:, None]).long()
    for row, place, count in ((0, 5, fills[0]), (0, 30, fills[1]), (1, 10, fills[2])):
        ids[row, place : place + count] = 299
    return model, given


def beside_text(given: Mapping[str, torch.Tensor], count: int) -> dict[str, torch.Tensor]:
    return {name: value[:count] for name, value in given.items() if name not in ("input_ids", "attention_mask")}


@pytest.mark.parametrize("name", BESIDE)
def test_what_is_said_of_each_picture_or_sound_leads_to_the_tokens_of_transformers(name: str) -> None:
    """In PyTorch: three sounds by an encoder of two, each of places by its length, in pieces that cut them."""
    model, given = model_told_beside(name)
    parts = _parts(model, GenerationLimits(2, 120, 16), 120, beside_text(given, 2))
    generator = TextGenerator(parts.step, parts.limits, parts.encoder)
    assert GenerationLimits.from_text(parts.limits.to_text()) == parts.limits
    own = model.generate(**given, max_new_tokens=24, do_sample=False, eos_token_id=None)
    assert torch.equal(generator.generate(**given, max_new_tokens=24, eos_token_id=()), own)
    first = next(iter(beside_text(given, 1)))
    other = {**given, first: given[first].flip(0)}
    changed = model.generate(**other, max_new_tokens=24, do_sample=False, eos_token_id=None)
    assert not torch.equal(own, changed)
    assert torch.equal(generator.generate(**other, max_new_tokens=24, eos_token_id=()), changed)
    for cache in parts.step.buffers():
        cache.zero_()
    places = given["input_ids"].clone()
    places[0, 5] = 7
    kind = "pictures" if "Blip" in name else "sounds"
    refused: list[tuple[dict[str, Any], str]] = [
        ({"input_ids": places}, f"places for {kind}"),
        ({first: torch.zeros(3)}, f"{kind} have shape"),
        ({"image_size": torch.ones(2, 2)}, "takes no image_size"),
    ]
    mask = BESIDE[name][0]
    if mask:
        refused += [
            ({mask: given[mask][:1]}, f"{mask} is torch.int64"),
            ({mask: given[mask].float()}, f"{mask} is torch.float32"),
            ({mask: torch.cat([given[mask]] * 2, 1)}, f"{mask} is torch.int64"),
            ({mask: None}, f"{mask} is a tensor with a row at least"),
        ]
    if mask and kind == "sounds":
        refused += [
            ({mask: given[mask][:, :60]}, f"{mask} is torch.int64"),
            ({mask: torch.zeros_like(given[mask])}, "a row of the source is all padding"),
        ]
    for change, said in refused:
        with pytest.raises(InputError, match=said):
            generator.generate(**{**given, **change}, max_new_tokens=5)
    assert not any(cache.any() for cache in parts.step.buffers() if cache.dim() == 4)


@pytest.mark.slow
@pytest.mark.parametrize("name", BESIDE if STRESSED else ["Qwen2Audio", "InstructBlip"])
def test_models_that_are_told_of_each_picture_or_sound_are_one_file(name: str, tmp_path: Path) -> None:
    model, given = model_told_beside(name, short=not STRESSED)
    generator = compile_generation(
        model, max_length=100, max_batch=2, prefill_chunk=16, source_inputs=beside_text(given, 2)
    )
    for part in (generator.step, generator.encoder):
        assert sum(isinstance(child, TRTModule) for child in part.modules()) == 1
    expected = model.generate(**given, max_new_tokens=20, do_sample=False, eos_token_id=None)
    generator.save(tmp_path / "model.trtp")
    for each in (generator, TextGenerator.load(tmp_path / "model.trtp")):
        assert torch.equal(each.generate(**given, max_new_tokens=20, eos_token_id=()), expected)


def test_texts_beside_pictures_may_be_shorter() -> None:
    model, given = model_told_beside("InstructBlip")
    parts = _parts(model, GenerationLimits(2, 100, 16), 100, beside_text(given, 2))
    generator = TextGenerator(parts.step, parts.limits, parts.encoder)
    for name in ("qformer_input_ids", "qformer_attention_mask"):
        given[name] = given[name][:, :5]
    own = model.generate(**given, max_new_tokens=16, do_sample=False, eos_token_id=None)
    assert torch.equal(generator.generate(**given, max_new_tokens=16, eos_token_id=()), own)


def test_a_model_inside_of_another_says_how_tokens_are_chosen() -> None:
    """BLIP-2 calls `generate` of its language model, whose configuration ends rows."""
    model, given = model_told_beside("Blip2", short=True)
    plain = model.generate(**given, max_new_tokens=16, do_sample=False, eos_token_id=None)
    model.language_model.generation_config.eos_token_id = int(plain[0, 66])
    model.language_model.generation_config.repetition_penalty = 1.2
    own = model.generate(**given, max_new_tokens=16, do_sample=False)
    generator = compile_generation(
        model, max_length=100, max_batch=2, prefill_chunk=16, source_inputs=beside_text(given, 2)
    )
    assert torch.equal(generator.generate(**given, max_new_tokens=16), own)
    assert not torch.equal(own, plain)


def test_models_that_cannot_be_told_of_pictures_or_sounds_say_what_to_do() -> None:
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("Qwen2Audio", {"feature_attention_mask": None}, "input_features and feature_attention_mask, not as"),
        ("Qwen2Audio", {"feature_attention_mask": torch.ones(1, 64).long()}, r"has one size, \(2, length\)"),
        ("Voxtral", {"input_features": torch.ones(8, 64)}, r"sounds have one size, \(n, bins, frames\)"),
        ("Voxtral", {"input_features": torch.ones(1, 8, 60)}, "features of pictures or sounds cannot be computed"),
        ("Voxtral", {"max_length": 7}, "8 places, and the caches hold 7"),
        ("InstructBlip", {"qformer_input_ids": None}, "qformer_attention_mask, not as"),
        ("Blip2", {"pixel_values": None}, r"takes no past_key_values(.|\n)*BLIP-2 and InstructBLIP are compiled with"),
    ]
    for name, other, said in cases:
        model, given = model_told_beside(name)
        length = other.pop("max_length", 100)
        source = {key: value for key, value in {**beside_text(given, 2), **other}.items() if value is not None}
        with pytest.raises(InputError, match=said):
            compile_generation(model, max_length=length, source_inputs=source)
    text = {"model_type": "t5", "vocab_size": 300, "d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 1}
    sizes = {"vision_config": VISION, "qformer_config": ASKING, "text_config": {**text, "num_heads": 2}}
    model = transformers.Blip2ForConditionalGeneration(transformers.Blip2Config(**sizes)).eval()
    for source in (None, {"pixel_values": torch.ones(1, 3, 16, 16)}):
        with pytest.raises(InputError, match="reads pictures among text"):
            compile_generation(model, max_length=16, source_inputs=source)


@pytest.mark.parametrize("change", [lambda rows: rows * 1.5, lambda rows: rows.flip(1), torch.zeros_like])
def test_pictures_that_lead_to_other_scores_than_those_of_the_model_are_refused(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """A model whose features for the asking are not those that its forward computes."""
    model, given = model_with_pictures("Llava")
    own = model.get_image_features

    @functools.wraps(own)
    def changed(**named: Any) -> torch.Tensor:
        return change(torch.stack(tuple(own(**named).pooler_output)))

    monkeypatch.setattr(model, "get_image_features", changed)
    with pytest.raises(InputError, match=r"after a picture are not those of its own generate: they are .* of"):
        compile_generation(model, max_length=64, max_batch=2, source_inputs=of_first_pictures(given, 2))
    with pytest.raises(InputError, match="16 places, and the caches hold 15"):
        compile_generation(model, max_length=15, source_inputs=of_first_pictures(given, 2))


def test_models_with_pictures_that_need_more_say_what() -> None:
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("Llava", {"images": torch.ones(1)}, "as pixel_values, not as pixel_values, images"),
        ("LlavaNext", {"image_sizes": None}, "pixel_values and image_sizes, not as pixel_values"),
        ("LlavaNext", {"image_sizes": torch.tensor([[16, 32], [16, 16]])}, "pictures have one size, not"),
        ("LlavaNext", {"image_sizes": torch.tensor([[16, 32]] * 4)}, "pictures have one size, .* for 4 sizes"),
        ("Qwen2VL", {"image_grid_thw": torch.tensor([[2, 4, 6]] * 2)}, "pictures have one size, not"),
        ("Qwen2VL", {"image_grid_thw": 4}, "image_grid_thw is a tensor of the sizes"),
        ("Gemma3", {}, "4 places that look at each other, and 3 are read at once"),
    ]
    for name, other, said in cases:
        model, given = model_with_pictures(name)
        example = {**of_first_pictures(given, 2), **other}
        example = {key: value for key, value in example.items() if value is not None}
        with pytest.raises(InputError, match=said):
            compile_generation(model, max_length=16, prefill_chunk=3, source_inputs=example)
    with pytest.raises(InputError, match="not known how it reads pixel_values beside text"):
        compile_generation(model_of("Llama"), max_length=16, source_inputs={"pixel_values": torch.zeros(1, 3, 16, 16)})


def test_encoders_of_pictures_among_text_are_refused() -> None:
    """Florence-2: it ended in an error of the capture, or in a hint that led there."""
    tower: dict[str, Any] = {"embed_dim": [8], "num_heads": [2], "num_groups": [2], "depths": [1], "patch_size": [7]}
    tower |= {"patch_stride": [4], "patch_padding": [3], "patch_prenorm": [False], "projection_dim": 32}
    text = {**SEQ2SEQ_SIZES, "model_type": "bart"}
    config = transformers.Florence2Config(text_config=text, vision_config=tower, image_token_id=299)
    model = transformers.Florence2ForConditionalGeneration(config).eval()
    pictures = {"pixel_values": torch.zeros(1, 3, 32, 32)}
    for given in (None, pictures, {**pictures, "input_ids": TEXT}):
        with pytest.raises(InputError, match="reads pictures among text"):
            compile_generation(model, max_length=16, source_inputs=given)


def test_pictures_that_look_ahead_and_are_longer_than_a_piece_are_refused() -> None:
    """In two rows their places overlap, so that no piece of 6 holds them; before anything is written."""
    model, given = model_with_pictures("Gemma3")
    given["input_ids"] = torch.where(given["input_ids"] == 299, 5, given["input_ids"])
    for row, place in ((0, 5), (1, 8), (0, 30)):
        given["input_ids"][row, place : place + 4] = 299
    given["token_type_ids"] = (given["input_ids"] == 299).long()
    parts = _parts(model, GenerationLimits(2, 64, 6), 64, of_first_pictures(given, 2))
    generator = TextGenerator(parts.step, parts.limits, parts.encoder)
    with pytest.raises(InputError, match="7 tokens from place 5 on look at each other, and 6 are read"):
        generator.generate(**given, max_new_tokens=4)
    assert not any(cache.any() for cache in parts.step.buffers() if cache.dim() == 4)


@pytest.fixture(scope="module")
def uncompiled() -> dict[str, TextGenerator]:
    found = {}
    for name in ("Bart", "Whisper"):
        parts = _parts(encoder_decoder_of(name)[0], GenerationLimits(2, 16, 4), 100, None)
        found[name] = TextGenerator(parts.step, parts.limits, parts.encoder)
    return found


TEXT: Final = torch.ones(2, 5, dtype=torch.int64)
FEATURES: Final = torch.zeros(2, 8, 40)


_SOURCE_SIZES: Final = {
    "vocab_size": 96,
    "d_model": 32,
    "max_position_embeddings": 64,
    "pad_token_id": 1,
    "bos_token_id": 0,
    **{f"{kind}_{name}": 2 for kind in ("encoder", "decoder") for name in ("layers", "attention_heads")},
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "eos_token_id": 95,
    "decoder_start_token_id": 2,
}


def model_of_features(name: str) -> tuple[Any, dict[str, torch.Tensor]]:
    """Returns a small encoder-decoder and features of two rows, the second of which ends with padding."""
    torch.manual_seed(0)
    if name == "Speech2Text":
        sizes = {name: size for name, size in _SOURCE_SIZES.items() if name != "max_position_embeddings"}
        sizes |= {"max_source_positions": 64, "max_target_positions": 64, "input_feat_per_channel": 8}
        model: Any = transformers.Speech2TextForConditionalGeneration(
            transformers.Speech2TextConfig(**sizes, num_conv_layers=2, conv_channels=16)
        )
        given = {"input_features": torch.randn(2, 40, 8)}
    elif name == "Moonshine":
        sizes = {f"{kind}_num_{part}": 4 for kind in ("encoder", "decoder") for part in ("attention_heads",)}
        sizes |= {f"{kind}_num_{part}": 2 for kind in ("encoder", "decoder") for part in ("hidden_layers",)}
        sizes |= {f"{kind}_num_key_value_heads": 4 for kind in ("encoder", "decoder")}
        model = transformers.MoonshineForConditionalGeneration(
            transformers.MoonshineConfig(
                **{**sizes, "vocab_size": 96, "hidden_size": 32, "intermediate_size": 64},
                max_position_embeddings=64,
                decoder_start_token_id=1,
                pad_token_id=0,
                eos_token_id=95,
            )
        )
        given = {"input_values": torch.randn(2, 3000)}
    elif name == "Pix2Struct":
        shared = {"hidden_size": 32, "d_kv": 8, "d_ff": 64}
        text = {**shared, "vocab_size": 96, "num_layers": 1, "num_heads": 4, "decoder_start_token_id": 0}
        pictures = {**shared, "patch_embed_hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 4}
        config = transformers.Pix2StructConfig(text_config=text, vision_config={**pictures, "seq_len": 16})
        config.decoder_start_token_id = 0
        model = transformers.Pix2StructForConditionalGeneration(config)
        patches = torch.randn(2, 9, 14)
        patches[..., :2] = torch.randint(0, 4, (2, 9, 2)).float()
        given = {"flattened_patches": patches}
    else:  # Donut, whose decoder is wider than its encoder
        swin = transformers.DonutSwinConfig(image_size=[32, 32], patch_size=4, embed_dim=8, depths=[1, 1])
        swin.num_heads, swin.window_size = [2, 2], 4
        decoder = transformers.MBartConfig(**_SOURCE_SIZES, is_decoder=True, add_cross_attention=True)
        config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(swin, decoder)
        config.decoder_start_token_id, config.pad_token_id = 2, 1
        model = transformers.VisionEncoderDecoderModel(config=config)
        given = {"pixel_values": torch.randn(2, 3, 32, 32)}
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.2)
    if name != "Donut":
        features = next(iter(given.values()))
        given["attention_mask"] = torch.ones(features.shape[:2], dtype=torch.int64)
        given["attention_mask"][1, features.shape[1] * 2 // 3 :] = 0
    return model.eval(), given


@pytest.mark.parametrize("name", ["Speech2Text", "Moonshine", "Pix2Struct", "Donut"])
def test_features_with_masks_lead_to_the_tokens_of_transformers(name: str) -> None:
    """As processors give them: padding of features was ignored without a word, or the models were refused."""
    model, given = model_of_features(name)
    example = {key: value[:1] for key, value in given.items()}
    parts = _parts(model, GenerationLimits(3, 40, 4, (), 1, rules=_rules(model)), 40, example)
    generator = TextGenerator(parts.step, parts.limits, parts.encoder)
    expected = generated_by_transformers(model, given, 16, eos_token_id=None)
    assert torch.equal(generator.generate(**given, max_new_tokens=16), expected)
    if "attention_mask" in given:
        unmasked = {**given, "attention_mask": torch.ones_like(given["attention_mask"])}
        other = generated_by_transformers(model, unmasked, 16, eos_token_id=None)
        assert torch.equal(generator.generate(**unmasked, max_new_tokens=16), other)
        empty = {**given, "attention_mask": torch.zeros_like(given["attention_mask"])}
        with pytest.raises(InputError, match="all padding"):
            generator.generate(**empty)
        del example["attention_mask"]
        plain = _parts(model, GenerationLimits(3, 40, 4, (), 1, rules=_rules(model)), 40, example)
        without = TextGenerator(plain.step, plain.limits, plain.encoder)
        with pytest.raises(InputError, match="attention_mask in source_inputs, too"):
            without.generate(**given)
        assert torch.equal(without.generate(**unmasked, max_new_tokens=16), other)


def test_masks_that_a_model_ignores_are_taken(uncompiled: dict[str, TextGenerator]) -> None:
    """Whisper, whose extractor gives some where it is asked to."""
    whisper, mask = uncompiled["Whisper"], torch.ones(2, 40, dtype=torch.int64)
    mask[1, 20:] = 0
    expected = whisper.generate(input_features=FEATURES, max_new_tokens=4)
    assert torch.equal(whisper.generate(input_features=FEATURES, attention_mask=mask, max_new_tokens=4), expected)
    whisper.reset()
    for name in ("language", "task", "return_timestamps", "forced_decoder_ids", "prompt_ids"):
        with pytest.raises(InputError, match="decoder_input_ids"):
            whisper.generate(input_features=FEATURES, **{name: "en"})


@pytest.mark.skipif(not STRESSED, reason="models that are told of each sound are one file in short runs")
def test_features_with_masks_are_one_file(tmp_path: Path) -> None:
    model, given = model_of_features("Pix2Struct")
    generator = compile_generation(
        model, max_length=24, max_batch=2, source_inputs={key: value[:1] for key, value in given.items()}
    )
    generator.save(tmp_path / "model.trtp")
    expected = generated_by_transformers(model, given, 12, eos_token_id=None)
    for made in (generator, TextGenerator.load(tmp_path / "model.trtp")):
        assert torch.equal(made.generate(**given, max_new_tokens=12, eos_token_id=()), expected)


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("Bart", {"input_ids": torch.ones(1, 101, dtype=torch.int64)}, "larger max_source_length"),
        ("Bart", {"input_ids": torch.ones(3, 4, dtype=torch.int64)}, "more than the 2 rows"),
        ("Bart", {"input_ids": TEXT, "attention_mask": torch.zeros(2, 5)}, "all padding"),
        ("Bart", {"input_ids": TEXT, "attention_mask": torch.ones(2, 4)}, "does not fit"),
        ("Bart", {"input_ids": TEXT, "decoder_input_ids": TEXT[:1]}, "1 rows begin the text of 2"),
        ("Bart", {"input_ids": TEXT, "max_new_tokens": 17}, "ask for 16 at most"),
        ("Bart", {"input_ids": TEXT, "num_beams": 4}, "2 prompts of 4 texts each are more than the 2 rows"),
        ("Whisper", {"input_features": FEATURES, "num_beams": 2}, "2 prompts of 2 texts each"),
        ("Bart", {"input_ids": TEXT, "keep_cache": True}, "caches are kept for texts alone"),
        ("Whisper", {"input_features": FEATURES, "keep_cache": True}, "caches are kept for texts alone"),
        ("Bart", {"input_features": FEATURES}, "generate takes no input_features"),
        ("Whisper", {"input_ids": TEXT}, "takes input_features by name"),
        ("Whisper", {"input_features": FEATURES, "input_ids": TEXT}, "takes input_features by name"),
        ("Whisper", {"input_features": FEATURES[:0]}, "with a row at least"),
    ],
)
def test_sources_that_do_not_fit_are_refused_before_anything_is_written(
    uncompiled: dict[str, TextGenerator], name: str, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        uncompiled[name].generate(**given)
    assert not any(cache.any() for cache in uncompiled[name].step.buffers() if cache.dim() == 4)


def test_what_a_configuration_asks_for_and_is_not_done_is_said(caplog: pytest.LogCaptureFixture) -> None:
    model, _ = encoder_decoder_of("T5")
    model.generation_config.update(num_beams=4, bad_words_ids=[[5, 6], [7]], stop_strings=["end"])
    model.generation_config.of_its_own = 3
    assert _rules(model).bad_words == ((5, 6), (7,))
    assert "asks for num_beams, stop_strings, of_its_own when it generates" in caplog.text
    model.generation_config.update(temperature=0.5, repetition_penalty=1.2, top_p=0.9)
    assert _choice(model) == TokenChoice(0.5, 50, 0.9, repetition_penalty=1.2)
    assert _choice(nn.Identity()) == TokenChoice()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [*ARCHITECTURES] if STRESSED else ["Gemma2", "Lfm2", "Mamba2", "XGLM"],
)
def test_compiled_models_generate_what_transformers_does(name: str) -> None:
    model, (ids, mask) = model_of(name, short=not STRESSED and name in ("Mamba2", "XGLM")), padded_prompts()
    count = 256 if STRESSED else 40
    generator = compile_generation(model, max_length=count + 24, max_batch=2, prefill_chunk=4)
    assert sum(isinstance(child, TRTModule) for child in generator.step.modules()) == 1
    for end in (None, 2):
        made = generator.generate(ids, mask, max_new_tokens=count, eos_token_id=() if end is None else end)
        expected = model.generate(ids, attention_mask=mask, max_new_tokens=count, do_sample=False, eos_token_id=end)
        assert torch.equal(made, expected)
    one = generator.generate(ids[:1], max_new_tokens=9, eos_token_id=())
    assert torch.equal(one, model.generate(ids[:1], max_new_tokens=9, do_sample=False, eos_token_id=None))


@pytest.mark.slow
def test_compiled_models_take_guesses() -> None:
    """Mistral, whose rings of keys forget those of guesses that were wrong."""
    model, ids = model_of("Mistral", short=True), torch.randint(3, 300, (1, 11))
    generator = compile_generation(model, max_length=96, prefill_chunk=8, assisted_tokens=6)
    expected = generated_by_transformers(model, {"input_ids": ids}, 64, eos_token_id=None)
    for how in ({}, {"prompt_lookup_num_tokens": 5}):
        assert torch.equal(generator.generate(ids, max_new_tokens=64, eos_token_id=(), **how), expected)


@pytest.mark.skipif(not STRESSED, reason="takes many seconds; nox -s stress runs it")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [
        *("T5", "Bart", "Whisper", "Llava", "Mistral", "Llama", "Gemma2", "Gemma3", "Qwen2", "GPT2", "Phi3", "OPT"),
        *("Falcon", "GptOss"),
    ],
)
@pytest.mark.parametrize("cache", ["static", "dynamic"])
def test_the_loop_of_transformers_builds_few_engines(name: str, cache: str) -> None:
    torch._dynamo.reset()
    if name in ENCODER_DECODERS:
        model, given = encoder_decoder_of(name)
    else:
        plain = {"input_ids": torch.randint(3, 300, (2, 11))}
        model, given = model_with_pictures(name) if name in PICTURES else (model_of(name), plain)
    expected = generated_by_transformers(model, given, 64, eos_token_id=None)
    compiled = model.forward = torch.compile(model.forward, backend=torch_tensorrt_backend)
    how = {"cache_implementation": "static", "disable_compile": True} if cache == "static" else {}
    assert torch.equal(generated_by_transformers(model, given, 64, eos_token_id=None, **how), expected)
    assert 0 < sum(len(graph.builds) for graph in model_report(compiled).graphs) <= 6


@pytest.mark.parametrize("token", [-1, 10**6])
def test_tokens_that_the_model_does_not_know_are_refused(token: int) -> None:
    model, (ids, mask) = model_of("Llama"), padded_prompts()
    limits = GenerationLimits(2, 48, 4, (), 0, 1, _rules(model), vocabulary=_vocabulary(model))
    generator = TextGenerator(_parts(model, limits, 100, None).step, GenerationLimits.from_text(limits.to_text()))
    assert generator.limits.vocabulary == model.config.vocab_size
    ids[1, -2] = token
    with pytest.raises(
        InputError, match=rf"knows tokens 0 to {model.config.vocab_size - 1}, and the prompt has {token}"
    ):
        generator.generate(ids, mask, max_new_tokens=2)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, TextGenerator, Path]]:
    """Makes a small model, its generator and the file of that, once for each name."""

    @functools.cache
    def make(name: str) -> tuple[Any, TextGenerator, Path]:
        torch.manual_seed(0)
        model = encoder_decoder_of(name)[0] if name in ENCODER_DECODERS else model_of(name, short=True)
        model.generation_config.forced_bos_token_id = None
        how = {
            "max_batch": 1 if name == "Mistral" else 2,
            "max_source_length": 80 if name in ENCODER_DECODERS else None,
        }
        built = compile_generation(model, max_length=64, prefill_chunk=8, **how)
        path = tmp_path_factory.mktemp("compiled") / "model.trtp"
        built.save(path)
        return model, built, path

    return make


@pytest.mark.parametrize("name", ["Mistral", "Bart"])
def test_steps_and_encoders_of_built_and_loaded_generators_know_their_tokens(name: str, compiled: Any) -> None:
    """Engines read nothing where a table has no row; whoever calls them on the CPU is told."""
    _, built, path = compiled(name)
    zero = torch.zeros(1, dtype=torch.int64)
    for generator in (built, TextGenerator.load(path)):
        generator.generate(torch.ones(1, 3, dtype=torch.int64), max_new_tokens=3)
        before = [buffer.clone() for buffer in generator.step.buffers()]
        for token in (-1, 300):
            unknown = torch.tensor([[4, token]])
            with pytest.raises(InputError, match=f"knows tokens 0 to 299, and the prompt has {token}"):
                generator.generate(unknown, max_new_tokens=2)
            with pytest.raises(InputError, match=f"knows tokens 0 to 299, and the prompt has {token}"):
                if name in ENCODER_DECODERS:
                    generator.generate(torch.tensor([[4]]), decoder_input_ids=unknown, max_new_tokens=2)
                else:
                    generator.step(unknown, zero, zero)
        assert all(torch.equal(*pair) for pair in zip(generator.step.buffers(), before, strict=True))


def test_codes_of_layers_whose_kernels_are_not_there_lead_to_tokens(tmp_path: Path) -> None:
    """Those of transformers in float8 run on some GPUs alone, with another library, and so does the model itself."""
    layers = pytest.importorskip("transformers.integrations.finegrained_fp8")
    sizes = {**SIZES, "hidden_size": 256, "intermediate_size": 256, "num_key_value_heads": 4, "num_hidden_layers": 1}
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).eval()
    for name, module in list(model.model.named_modules()):
        if isinstance(module, nn.Linear):
            layer = layers.FP8Linear(256, 256, block_size=(128, 128), activation_scheme="dynamic")
            weight = (torch.randn(256, 256) * 100).clamp(-448, 448).to(torch.float8_e4m3fn)
            layer.weight = nn.Parameter(weight, requires_grad=False)
            layer.weight_scale_inv = nn.Parameter(torch.rand(2, 2) / 500, requires_grad=False)
            model.model.set_submodule(name, layer)
    generator = compile_generation(model, max_length=64, max_batch=2, prefill_chunk=16)
    generator.save(tmp_path / "model.trtp")
    floats = sum(parameter.numel() * 4 for parameter in model.parameters())
    assert (tmp_path / "model.trtp").stat().st_size < 0.7 * floats
    ids, mask = padded_prompts()
    with open_stored_layers(model) as opened:
        how: dict[str, Any] = {"max_new_tokens": 32, "do_sample": False, "eos_token_id": None}
        expected = opened.generate(ids, attention_mask=mask, **how)
    for made in (generator, TextGenerator.load(tmp_path / "model.trtp")):
        assert torch.equal(made.generate(ids, mask, max_new_tokens=32, eos_token_id=()), expected)
    assert isinstance(model.model.layers[0].mlp.up_proj, layers.FP8Linear)  # the model is left as it was


def test_rings_are_read_in_whole_pieces_and_forget_what_is_far_back(compiled: Any) -> None:
    _, built, path = compiled("Mistral")
    zero = torch.zeros(1, dtype=torch.int64)
    for generator in (built, TextGenerator.load(path)):
        generator.generate(torch.ones(1, 30, dtype=torch.int64), max_new_tokens=3)  # 32 are read
        for start, count, said in ((20, 1, "forgets some"), (24, 1, "forgets some"), (30, 4, "two pieces of 8")):
            with pytest.raises(InputError, match=said):
                generator.step(torch.ones(1, count, dtype=torch.int64), zero + start, zero)
        for start in (25, 26, 0):
            generator.step(torch.ones(1, 1, dtype=torch.int64), zero + start, zero)


@pytest.mark.slow
def test_seeds_give_the_samples_of_transformers(compiled: Any) -> None:
    (model, generator, _), (ids, mask) = compiled("Qwen2"), padded_prompts()
    torch.manual_seed(3)
    made = generator.generate(ids, mask, max_new_tokens=20, do_sample=True, temperature=0.7, top_k=20, top_p=0.9)
    torch.manual_seed(3)
    options: dict[str, Any] = {"temperature": 0.7, "top_k": 20, "top_p": 0.9}
    expected = model.generate(ids, attention_mask=mask, max_new_tokens=20, do_sample=True, **options)
    assert torch.equal(made, expected)


@pytest.mark.slow
def test_a_saved_generator_generates_the_same(compiled: Any, tmp_path: Path) -> None:
    (model, generator, path), (ids, mask) = compiled("Qwen2"), padded_prompts()
    said = inspect_file(path)["generation"]
    assert [said[f"cache_{name}"] for name in ("tensors", "bytes", "bytes_per_token")] == [2, 32768, 256.0]
    loaded = TextGenerator.load(path)
    assert (
        loaded.limits
        == generator.limits
        == GenerationLimits(2, 64, 8, (2,), 0, choice=TokenChoice(top_k=50), vocabulary=model.config.vocab_size)
    )
    made = loaded.generate(ids, mask, max_new_tokens=20)
    assert torch.equal(made, generator.generate(ids, mask, max_new_tokens=20))
    found = loaded.generate(ids[:1], num_beams=2, max_new_tokens=12)
    assert torch.equal(found, model.generate(ids[:1], num_beams=2, max_new_tokens=12, do_sample=False))
    loaded.save(tmp_path / "again.trtp")
    assert torch.equal(TextGenerator.load(tmp_path / "again.trtp").generate(ids, mask, max_new_tokens=20), made)


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


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> tuple[OwnStep, TextGenerator, Path]:
    """A step, what it is compiled to, and the file of that."""
    step, path = OwnStep(2, 24).eval(), tmp_path_factory.mktemp("own") / "model.trtp"
    built = compile_generation(step, max_length=24, max_batch=2, prefill_chunk=4, min_block_size=1)
    built.save(path)
    return step, built, path


def test_a_step_of_ones_own_is_compiled_as_it_is(own: Any) -> None:
    step, generator, _ = own
    ids = torch.randint(1, 40, (2, 6))
    made = generator.generate(ids, max_new_tokens=12)
    assert torch.equal(made, TextGenerator(step, generator.limits).generate(ids, max_new_tokens=12))


def test_models_in_training_mode_and_wrapped_ones_are_compiled_without_dropout(own: Any) -> None:
    """They were said to look ahead, since two runs of them differed; or to take no tokens."""
    step = own[0]
    model = model_of("GPT2", short=True).train()
    with pytest.warns(UserWarning, match="in training mode"), _in_evaluation(model):
        CachedStep(model, GenerationLimits(1, 16, 4))
    assert all(module.training for module in model.modules())
    limits = {"max_length": 24, "max_batch": 2, "prefill_chunk": 4, "min_block_size": 1, "optimization_level": 0}
    generator = compile_generation(torch.compile(step, backend="eager"), **limits)
    ids = torch.randint(1, 40, (2, 6))
    assert torch.equal(generator.generate(ids), TextGenerator(step, generator.limits).generate(ids))


def test_models_without_numbers_and_caches_without_room_are_refused() -> None:
    with pytest.raises(InputError, match="on the meta device, which holds no numbers"):
        compile_generation(model_of("Llama", short=True).to("meta"), max_length=8)
    with pytest.raises(InputError, match=rf"no memory for caches of 8 tokens of {2**31 - 1} rows"):
        compile_generation(model_of("Llama", short=True), max_length=8, max_batch=2**31 - 1)
    with pytest.raises(SettingsError, match="unknown setting 'max_seq_len'"):
        compile_generation(model_of("Llama", short=True), max_length=8, max_seq_len=8)


class Around(nn.Module):
    """A step that holds a model, as those of transformers' models do."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, start: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.model(input_ids, start, padding)
        return scores


def test_built_and_loaded_generators_take_other_weights_of_their_model(tmp_path: Path) -> None:
    limits = {"max_length": 24, "max_batch": 2, "prefill_chunk": 4, "min_block_size": 1, "optimization_level": 0}
    built = compile_generation(Around(OwnStep(2, 24)).eval(), **limits, refit=True)
    built.save(tmp_path / "model.trtp")
    ids = torch.randint(1, 40, (2, 6))
    for generator in (built, TextGenerator.load(tmp_path / "model.trtp")):
        before = generator.generate(ids, max_new_tokens=12, keep_cache=True)
        others = OwnStep(2, 24).eval()
        wanted = TextGenerator(others, generator.limits).generate(ids, max_new_tokens=12)
        for weights in (others, others.state_dict(), dict(others.named_parameters())):
            refitted = refit_module_weights(generator, weights)
            assert torch.equal(refitted.generate(ids, max_new_tokens=12, keep_cache=True), wanted)
        assert torch.equal(generator.generate(ids, max_new_tokens=12, keep_cache=True), before)
        refit_module_weights(generator, others, in_place=True)
        assert torch.equal(generator.generate(ids, max_new_tokens=12, keep_cache=True), wanted)


CODES: Final = {torch.int8: 127, torch.float8_e4m3fn: 448}


def keep_codes(monkeypatch: pytest.MonkeyPatch, kind: torch.dtype) -> None:
    """Has caches of transformers round each key and value to codes of its own largest number, as they are written."""
    from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

    def rounded(rows: torch.Tensor) -> torch.Tensor:
        scale = rows.abs().amax(-1, keepdim=True) / CODES[kind]
        shares = rows / scale
        return (shares.round() if kind is torch.int8 else shares.to(kind).to(rows.dtype)) * scale

    for layer in (DynamicLayer, DynamicSlidingWindowLayer):
        update = layer.update
        monkeypatch.setattr(
            layer,
            "update",
            lambda self, keys, values, *rest, _update=update, **named: _update(
                self, rounded(keys), rounded(values), *rest, **named
            ),
        )


_CODED: Final = ("Llama", "Mistral", "DeepseekV3", "FalconH1", "Bloom")


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for at, name in enumerate(_CODED) for place, kind in enumerate(CODES) if STRESSED or at % 2 == place],
)
def test_caches_of_codes_lead_to_what_transformers_makes_with_rounded_ones(
    name: str, kind: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In PyTorch: padded rows, rings of windows, keys and values of two widths, and beams, which codes move with."""
    model, (ids, mask) = model_of(name), padded_prompts()
    parts = _parts(model, GenerationLimits(6, 96, 4), 0, None, kind)
    plain = TextGenerator(_parts(model, GenerationLimits(6, 96, 4), 0, None).step, parts.limits)
    generator = TextGenerator(parts.step, parts.limits)
    assert generator.cache_bytes < 0.7 * plain.cache_bytes
    assert generator.dtype is torch.float32
    keep_codes(monkeypatch, kind)
    how: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": 40, "do_sample": False, "eos_token_id": None}
    made = generator.generate(ids, mask, max_new_tokens=40, eos_token_id=())
    assert torch.equal(made, model.generate(ids, **how))
    made = generator.generate(ids, mask, max_new_tokens=40, eos_token_id=(), num_beams=3)
    assert torch.equal(made, model.generate(ids, **how, num_beams=3))
    generator.reset()
    assert not any(cache.float().any() for cache in generator._caches())


@pytest.mark.slow
@pytest.mark.parametrize("kind", CODES if STRESSED else [torch.float8_e4m3fn])  # codes of int8 move with beams below
def test_compiled_models_keep_codes_in_their_file(
    kind: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, (ids, mask) = model_of("Llama"), padded_prompts()
    generator = compile_generation(model, max_length=48, max_batch=2, prefill_chunk=4, cache_dtype=kind)
    (engine,) = (child for child in generator.step.modules() if isinstance(child, TRTModule))
    assert len(engine.header.updates) == 8
    assert len(engine.header.outputs) == 1
    assert sum(buffer.dtype is kind for buffer in generator.step.buffers()) == 4
    generator.save(tmp_path / "model.trtp")
    loaded = TextGenerator.load(tmp_path / "model.trtp")
    said = inspect_file(tmp_path / "model.trtp")["generation"]
    assert said["cache_bytes"] == loaded.cache_bytes == generator.cache_bytes == 2 * 2 * 2 * 2 * 48 * (16 + 4)
    keep_codes(monkeypatch, kind)
    how: dict[str, Any] = {"max_new_tokens": 30, "do_sample": False}
    for each in (generator, loaded):
        made = each.generate(ids, mask, max_new_tokens=30)
        assert torch.equal(made, model.generate(ids, attention_mask=mask, **how))
        made = each.generate(ids[:1], max_new_tokens=30, num_beams=2)
        assert torch.equal(made, model.generate(ids[:1], **how, num_beams=2))


def test_caches_of_other_codes_are_refused() -> None:
    for kind in (torch.float8_e5m2, torch.uint8, torch.float16):
        with pytest.raises(InputError, match=r"caches hold codes in torch.int8 or torch.float8_e4m3fn, not"):
            compile_generation(model_of("Llama"), max_length=8, cache_dtype=kind)
    with pytest.raises(InputError, match="a step of your own"):
        compile_generation(OwnStep(1, 8).eval(), max_length=8, cache_dtype=torch.int8)


@pytest.mark.parametrize("tokens", ["x", [1.5], [True], {3}])
def test_what_is_no_token_ends_no_row(tokens: Any) -> None:
    model: Any = OwnStep(1, 8).eval()
    model.generation_config = SimpleNamespace(eos_token_id=tokens)
    with pytest.raises(InputError, match="eos_token_id is a token or a list of them"):
        compile_generation(model, max_length=8)


class OwnCodes(nn.Module):
    """A step of one's own that keeps codes: which tokens a row has had, and how many of them."""

    seen: torch.Tensor
    count: torch.Tensor

    def __init__(self, rows: int, length: int, kind: torch.dtype) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 16)
        self.head = nn.Linear(16, 40)
        self.register_buffer("seen", torch.zeros(rows, 1, length, 16, dtype=kind))
        self.register_buffer("count", torch.zeros(rows, dtype=torch.int64))
        self.register_buffer("table", torch.randn(rows, 16))  # as many rows, and none of the text

    def forward(self, input_ids: torch.Tensor, start: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        places = start + torch.arange(input_ids.shape[1])
        self.seen[:, :, places] = self.embed(input_ids)[:, None].mul(20).round().to(self.seen.dtype)
        told = input_ids.sum(1)
        self.count.copy_(torch.where(start == 0, told, self.count + told))
        there = torch.arange(self.seen.shape[2])
        weight = ((there <= places[-1]) & (there >= padding[:, None])) * (there + 1).sin()
        total = (self.seen[:, 0].float() * weight[..., None]).sum(1)
        scores: torch.Tensor = self.head((total + self.count[:, None] % 7) / 20 + self.table.sum(0))
        return scores


@pytest.mark.parametrize("kind", [torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float32])
def test_beams_take_all_states_of_a_step_with_them(kind: torch.dtype, tmp_path: Path) -> None:
    """What a compiled step writes to moves and is forgotten, of any type and rank, and nothing else."""
    step = OwnCodes(4, 32, kind).eval()
    if kind is torch.uint8:
        nn.init.uniform_(step.embed.weight, 0, 3)
    alone = GenerationLimits(4, 32, 4)
    built = compile_generation(step, max_length=32, max_batch=4, prefill_chunk=4, min_block_size=1)
    built.save(tmp_path / "model.trtp")
    ids = torch.randint(1, 40, (1, 6))
    expected = searched(copy.deepcopy(step), alone, ids, 4, 20)
    for generator in (built, TextGenerator.load(tmp_path / "model.trtp")):
        table = next((buffer for name, buffer in generator.step.named_buffers() if name == "table"), None)
        before = None if table is None else table.clone()
        assert torch.equal(generator.generate(ids, num_beams=4, max_new_tokens=20), expected)
        assert len(list(generator._caches())) == 2
        generator.reset()
        assert not any(cache.float().any() for cache in generator._caches())
        assert table is None or torch.equal(table, before)  # type: ignore[arg-type]


def searched(step: nn.Module, limits: GenerationLimits, ids: torch.Tensor, beams: int, new: int) -> torch.Tensor:
    """A beam search without an end that reads each text anew, of one prompt."""
    texts, totals = ids, torch.zeros(1)
    for _ in range(new):
        scores = []
        for text in texts:
            reader = TextGenerator(copy.deepcopy(step), limits)
            found: list[torch.Tensor] = []
            reader.generate(
                text[None], max_new_tokens=1, logits_processor=[lambda _, given, to=found: (to.append(given), given)[1]]
            )
            scores.append(found[0][0].log_softmax(-1))
        every = (totals[:, None] + torch.stack(scores)).flatten()
        totals, best = every.topk(beams)
        texts = torch.cat([texts[best // 40], best[:, None] % 40], 1)
    return texts[:1]


def test_isolated_generators_search_no_beams(own: Any) -> None:
    """Their caches are in another process, so beams could not change places: wrong tokens, before this was refused."""
    path, ids = own[2], torch.randint(1, 40, (1, 6))
    generator = TextGenerator.load(path, isolated=True)
    assert generator.device == torch.device("cpu")
    with pytest.raises(InputError, match="which an isolated process holds"):
        generator.generate(ids, num_beams=2, max_new_tokens=3)
    made = generator.generate(ids, max_new_tokens=6, keep_cache=True)
    assert torch.equal(made, TextGenerator.load(path).generate(ids, max_new_tokens=6))


def test_built_and_loaded_generators_refuse_what_does_not_fit_before_anything_is_written(own: Any) -> None:
    """Prompts and batches that are too large, caches of another type, and positions outside of a cache."""
    _, built, path = own
    for generator in (built, TextGenerator.load(path)):
        ids = torch.randint(1, 40, (2, 6))
        generator.generate(ids, max_new_tokens=4)
        caches = [buffer for buffer in generator.step.buffers() if buffer.dim() == 4]
        before = [cache.clone() for cache in caches]
        for given, said in (
            (torch.ones(1, 25, dtype=torch.int64), "longer than the caches"),
            (torch.ones(3, 4, dtype=torch.int64), "more than the 2 rows"),
        ):
            with pytest.raises(InputError, match=said):
                generator.generate(given, max_new_tokens=1)
        for start, said in ((-1, "hold 24 tokens"), (21, "hold 24 tokens"), (12, "9 tokens of each row were read")):
            with pytest.raises(InputError, match=said):
                generator.step(ids[:, :4], torch.tensor([start]), torch.zeros(2, dtype=torch.int64))
        assert len(caches) == 2
        assert all(torch.equal(*pair) for pair in zip(caches, before, strict=True))
        kept = {name: buffer for name, buffer in generator.step.named_buffers() if buffer.dim() == 4}
        for wrong in (torch.float16, torch.float64):
            path, _, leaf = next(iter(kept)).rpartition(".")
            owner = generator.step.get_submodule(path)
            setattr(owner, leaf, kept[f"{path}.{leaf}".lstrip(".")].to(wrong))
            with pytest.raises(TrtError, match="the engine was built for float32"):
                generator.generate(ids, max_new_tokens=2)
            setattr(owner, leaf, kept[f"{path}.{leaf}".lstrip(".")])
        assert all(torch.equal(*pair) for pair in zip(caches, before, strict=True))


@pytest.mark.parametrize("change", [lambda rows: rows.to("meta"), torch.Tensor.to_sparse])
def test_prompts_without_dense_values_are_refused(change: Any) -> None:
    """They ended in errors of PyTorch."""
    limits = GenerationLimits(2, 16, 4, vocabulary=300)
    generator = TextGenerator(_parts(model_of("Llama"), limits, 100, None).step, limits)
    ids = torch.ones(2, 3, dtype=torch.int64)
    for given in ((change(ids),), (ids, change(ids))):
        with pytest.raises(InputError, match=r"no values|layout"):
            generator.generate(*given, max_new_tokens=2)


@pytest.mark.parametrize("mask", [[2, 1, 1], [0.5, 1, 1], [float("nan"), 1, 1], [-1e9, 0, 0]])
def test_masks_that_say_neither_yes_nor_no_are_refused(mask: list[float], own: Any) -> None:
    for generator in (own[1], TextGenerator.load(own[2])):
        with pytest.raises(InputError, match="something else than 0 and 1"):
            generator.generate(torch.ones(1, 3, dtype=torch.int64), torch.tensor([mask]))


def test_tokens_of_other_types_and_options_of_other_names_are_told_what_to_be(own: Any) -> None:
    ids = torch.ones(1, 3, dtype=torch.int64)
    with pytest.raises(InputError, match=r"not a tensor of torch\.float32[\s\S]*return_tensors"):
        own[1].generate(ids.float())
    for name, said in (("eos", "eos_token_id"), ("seed", "generator=torch"), ("sampling", "do_sample=True")):
        with pytest.raises(InputError, match=rf"takes no {name} here[\s\S]*{said}"):
            own[1].generate(ids, **{name: 1})


@pytest.mark.parametrize("kept", [[2], [-1], [0, 5]])
def test_logits_of_tokens_that_a_call_does_not_have_are_refused(kept: list[int]) -> None:
    limits = GenerationLimits(1, 16, 4, assisted_tokens=2, vocabulary=300)
    generator = TextGenerator(_parts(model_of("Llama", short=True), limits, 100, None).step, limits)
    told = torch.ones(1, 2, dtype=torch.int64), torch.tensor([0]), torch.tensor([0])
    with pytest.raises(InputError, match="of the tokens 0 to 1"):
        generator.step(*told, torch.tensor(kept))
    assert not any(cache.any() for cache in generator.step.buffers(recurse=False))


def test_other_programs_generate_nothing(tmp_path: Path) -> None:
    path = tmp_path / "relu.trtp"
    save(compile(nn.ReLU().eval(), arg_inputs=[torch.ones(2)], min_block_size=1), path)
    with pytest.raises(PlanError, match="generates no text"):
        TextGenerator.load(path)


@pytest.mark.parametrize(
    ("kind", "other", "said"),
    [
        ("RwkvForCausalLM", {}, "takes no past_key_values: it keeps state in state"),
        (
            "LlamaForCausalLM",
            {"layer_types": ["full_attention", "heavily_compressed_attention"]},
            "layers of kind heavily",
        ),
        ("BertModel", {"hidden_size": 48}, "it gives no logits for tokens alone"),
        # local layers look back from the end of the cache, not from a token: wrong tokens, before this was compared
        (
            "GPTNeoForCausalLM",
            {"attention_types": [[["global", "local"], 1]], "window_size": 4},
            "static cache are not those",
        ),
    ],
)
def test_models_without_such_caches_are_refused(kind: str, other: dict[str, Any], said: str) -> None:
    sizes = {"vocab_size": 300, "hidden_size": 64, "num_hidden_layers": 2, "num_layers": 2, "num_heads": 4}
    taken: Any = getattr(transformers, kind).config_class
    known = {name: size for name, size in sizes.items() if hasattr(taken(), name)}
    model = getattr(transformers, kind)(taken(**{**known, **other})).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.08)
    with pytest.raises(InputError, match=said):
        compile_generation(model, max_length=16)


_WITHOUT_STATIC_CACHES: Final[dict[str, tuple[str, str, dict[str, Any]]]] = {
    # what a language model keeps of prompts, what the error says, and its sizes
    "CpmAntForCausalLM": (
        "CpmAntAttention",
        "loop of transformers",
        {"vocab_size": 64, "hidden_size": 32, "num_attention_heads": 4, "dim_head": 8, "dim_ff": 64}
        | {"num_hidden_layers": 2, "prompt_types": 4, "prompt_length": 4, "segment_types": 4},
    ),
    "GitForCausalLM": (
        "GitModel",
        "loop of transformers",
        {name: size for name, size in WHOLE.items() if not name.endswith("_id")}
        | {
            "vision_config": {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "image_size": 32}
            | {"num_attention_heads": 4, "patch_size": 16}
        },
    ),
    "xLSTMForCausalLM": (
        "a class of its own, xLSTMCache",
        "",
        {"vocab_size": 64, "hidden_size": 32, "num_blocks": 2, "num_heads": 4}
        | {"chunkwise_kernel": "chunkwise--native_autograd", "step_kernel": "native"}
        | {"sequence_kernel": "native_sequence__native"},
    ),
    "FSMTForConditionalGeneration": (
        "FSMTDecoder",
        "loop of transformers",
        {
            "langs": ["en", "de"],
            "src_vocab_size": 64,
            "tgt_vocab_size": 64,
            "d_model": 32,
            "max_position_embeddings": 64,
        }
        | {f"{kind}_{name}": 2 for kind in ("encoder", "decoder") for name in ("layers", "attention_heads")}
        | {f"{kind}_ffn_dim": 64 for kind in ("encoder", "decoder")},
    ),
}


@pytest.mark.parametrize("kind", _WITHOUT_STATIC_CACHES)
def test_refusals_say_what_cannot_be_and_what_to_do_and_not_what_somebody_elses_line_raised(kind: str) -> None:
    part, advice, sizes = _WITHOUT_STATIC_CACHES[kind]
    model = getattr(transformers, kind)(getattr(transformers, kind).config_class(**sizes)).eval()
    with pytest.raises(InputError, match=r"static cache|class of its own") as refused:
        compile_generation(model, max_length=16)
    said = str(refused.value)
    assert part in said
    assert advice in said
    assert "what to do" in said
    assert "Error" not in said  # the exception of the model's own code is the cause, and not the text
    assert advice == "" or refused.value.__cause__ is not None


_SMALL_VISION: Final = {"hidden_size": 32, "intermediate_size": 48, "image_size": 28, "patch_size": 14}
_OF_BARK: Final = {"block_size": 64, "num_layers": 1, "num_heads": 2, "hidden_size": 32}
_OF_CODES: Final = {"vocab_size": 64, "hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 1, "num_codebooks": 2} | {
    "num_attention_heads": 2
}
_WITH_LOOPS_OF_THEIR_OWN: Final[dict[str, tuple[str, str, dict[str, Any]]]] = {
    # what they do, what is compiled instead, and sizes
    "MllamaForConditionalGeneration": (
        "look at pictures instead of the text",
        "(model.forward,",
        {
            "vision_config": {**_SMALL_VISION, "num_hidden_layers": 1, "num_global_layers": 1, "attention_heads": 4}
            | {"vision_output_dim": 64, "intermediate_layers_indices": [0]},
            "text_config": {**SIZES, "cross_attention_layers": [1]},
        },
    ),
    "IdeficsForVisionText2Text": (
        "look at pictures instead of the text",
        "(model.forward,",
        {
            **{name: size for name, size in WHOLE.items() if not name.endswith("_id")},
            "vision_config": {**_SMALL_VISION, "embed_dim": 32, "num_hidden_layers": 1, "num_attention_heads": 4},
        },
    ),
    "MusicgenForCausalLM": ("codes of sounds", "(model.forward,", _OF_CODES),
    "MusicgenMelodyForCausalLM": ("codes of sounds", "(model.forward,", _OF_CODES),
    "BarkModel": (
        "codes of sounds",
        "(model.semantic.forward,",
        {f"{part}_config": _OF_BARK for part in ("semantic", "coarse_acoustics", "fine_acoustics")},
    ),
    "BarkSemanticModel": ("codes of sounds", "(model.forward,", _OF_BARK),
}


@pytest.mark.parametrize("kind", _WITH_LOOPS_OF_THEIR_OWN)
def test_models_whose_tokens_are_no_text_after_text_say_what_to_compile(kind: str) -> None:
    why, instead, sizes = _WITH_LOOPS_OF_THEIR_OWN[kind]
    model = getattr(transformers, kind)(getattr(transformers, kind).config_class(**sizes)).eval()
    for source in (None, {"pixel_values": torch.ones(1, 3, 28, 28)}):
        with pytest.raises(InputError, match=why) as refused:
            compile_generation(model, max_length=16, source_inputs=source)
        assert f'torch.compile{instead} backend="torch_tensorrt") runs in the model' in str(refused.value)


@pytest.mark.parametrize("name", ["GPT2", "GPTJ", "OPT", "Bart", "Whisper"])
def test_caches_longer_than_a_table_of_positions_are_refused(name: str) -> None:
    """Engines look up positions beyond it without a word."""
    model = encoder_decoder_of(name)[0] if name in ENCODER_DECODERS else model_of(name)
    most = 128 if name in ENCODER_DECODERS else 512
    with pytest.raises(InputError, match=f"knows {most} positions, and the caches would hold {most + 1}"):
        _parts(model, GenerationLimits(1, most + 1, 4), 100, None)
    _parts(model, GenerationLimits(1, most, 4), 100, None)


@pytest.mark.parametrize(
    ("name", "value"), [("max_length", 0), ("max_batch", 1.5), ("prefill_chunk", -1), ("max_batch", 2**31)]
)
def test_numbers_that_make_no_sense_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=name):
        compile_generation(model_of("Llama"), **{"max_length": 8, name: value})
