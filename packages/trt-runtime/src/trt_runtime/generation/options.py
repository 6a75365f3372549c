"""What a `GenerationConfig` of transformers says: what is done here, what changes no token, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from trt_core.errors import InputError
from trt_core.wording import kind_of
from trt_runtime.token_choice import RULE_OPTIONS


def options_of(config: Any) -> dict[str, Any]:
    """Returns what a configuration of transformers says, as arguments of `generate`.

    Raises:
        InputError: It is none, or says something that is not done.
    """
    if not hasattr(config, "to_dict"):
        raise InputError(
            f"a GenerationConfig of transformers is needed, not {kind_of(config)}", where="generation_config"
        )
    said = {name: value for name, value in config.to_dict().items() if value is not None}
    if said.get("cache_implementation") == "quantized":
        raise unknown_argument("cache_implementation", ())  # of which tokens follow
    for name, value in said.items():
        if name not in (*_CONFIGURED, *_LEFT) and not _says_nothing(name, value):
            raise unknown_argument(name, ())
    return {name: said[name] for name in _CONFIGURED if name in said}


def _says_nothing(name: str, value: Any) -> bool:
    """Whether a value of an option of transformers that is not done here asks for nothing."""
    return value is None or value is False or (name in NOT_DONE and value is not True and value in NOT_DONE[name][0])


def not_done(config: Any) -> dict[str, Any]:
    """Returns what a configuration of transformers says that `TextGenerator` does not do, by name."""
    said = vars(config).items()
    known = (*_CONFIGURED, *_LEFT)
    return {
        name: value
        for name, value in said
        if name not in known and not name.startswith("_") and not _says_nothing(name, value)
    }


TOKEN_OPTIONS: Final = (
    *RULE_OPTIONS,
    *("min_length", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff", "encoder_repetition_penalty"),
    *("encoder_no_repeat_ngram_size", "renormalize_logits"),
)
"""Options of a `GenerationConfig` that `generate` takes beside those of its signature."""

_CONFIGURED: Final = (
    *("max_new_tokens", "max_length", "eos_token_id", "pad_token_id"),
    *("do_sample", "temperature", "top_k", "top_p", "min_p"),
    *("repetition_penalty", "no_repeat_ngram_size", "min_new_tokens", "num_beams", "length_penalty"),
    *("early_stopping", "num_return_sequences", "prompt_lookup_num_tokens", "decoder_start_token_id"),
    *TOKEN_OPTIONS,
)
_LEFT: Final = (
    *("transformers_version", "_from_model_config", "_commit_hash", "bos_token_id"),
    *("use_cache", "cache_implementation", "cache_config", "max_cache_len", "compile_config", "disable_compile"),
    *("max_matching_ngram_size", "target_lookbehind", "prefill_chunk_size", "continuous_batching_config"),
    *("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold"),
    *("assistant_lookbehind", "low_memory"),
)
"""What a configuration of transformers says that changes no token here."""

_PROCESSOR: Final = "give logits_processor the processor of transformers that does it"
_GUESSES: Final = "give prompt_lookup_num_tokens or an assistant_model for guesses"
_DEPRECATED: Final = "transformers itself does it with code from its hub alone"
_RESULTS: Final = "tokens are returned alone; logits_processor sees all scores"
_CRITERIA: Final = "give stopping_criteria=[transformers.{}]"

NOT_DONE: Final[dict[str, tuple[tuple[Any, ...], str]]] = {
    "max_time": ((), _CRITERIA.format("MaxTimeCriteria(seconds)")),
    "stop_strings": (([], ()), _CRITERIA.format("StopStringCriteria(tokenizer, stop_strings)")),
    "guidance_scale": ((1,), "it takes scores of a second prompt: generate with transformers"),
    "watermarking_config": ((), _PROCESSOR),
    "token_healing": ((), "it changes prompts: heal them before, with the model of transformers"),
    **dict.fromkeys(("use_mtp", "speculation_type", "is_assistant", "assistant_early_exit"), ((), _GUESSES)),
    "assistant_ensemble_weight": ((1,), "guesses are taken where the model itself would have chosen them"),
    **dict.fromkeys(("num_beam_groups", "dola_layers", "constraints", "force_words_ids"), ((1, [], ()), _DEPRECATED)),
    **dict.fromkeys(("diversity_penalty", "penalty_alpha"), ((0,), _DEPRECATED)),
    **dict.fromkeys(("output_attentions", "output_hidden_states", "output_scores", "output_logits"), ((), _RESULTS)),
    **dict.fromkeys(("return_dict_in_generate", "return_legacy_cache"), ((), _RESULTS)),
    **dict.fromkeys(("generation_kwargs", "encoder_kwargs"), (({},), _PROCESSOR)),
    **dict.fromkeys(
        ("language", "task", "forced_decoder_ids", "prompt_ids", "lang_to_id", "task_to_id"),
        (([], {}), "decoder_input_ids say what a text begins with: start token, language and task of Whisper"),
    ),
    "return_timestamps": (
        (),
        "decoder_input_ids without the token for no timestamps, and logits_processor "
        "with transformers' WhisperTimeStampLogitsProcessor",
    ),
}
"""Options of transformers that are refused: values that ask for nothing, and what to do instead."""


def unknown_argument(name: str, names: Sequence[str]) -> InputError:
    """The error that says that an option is not done, and what to do instead."""
    hint = _INSTEAD.get(name, f"beside tokens it takes {', '.join(names)}" if names else "see TextGenerator.generate")
    return InputError(f"generate takes no {name} here", where=name, hint=hint)


_INSTEAD: Final = {
    **dict.fromkeys(("eos", "eos_id", "eos_token", "eos_token_ids"), "give eos_token_id, one or several"),
    **dict.fromkeys(("sampling", "sample"), "give do_sample=True, and temperature, top_k, top_p or min_p"),
    **dict.fromkeys(("seed", "random_seed"), "give generator=torch.Generator(device).manual_seed(seed)"),
    **dict.fromkeys(("logits_processors", "processors"), "give logits_processor, a list"),
    **dict.fromkeys(("decoder_input_ids", "inputs"), "the model continues prompts: give input_ids"),
    "decoder_attention_mask": "texts of encoder-decoders begin without padding",
    **dict.fromkeys(("past_key_values", "cache"), "the generator keeps keys and values itself"),
    "prefix_allowed_tokens_fn": "give logits_processor=[transformers.PrefixConstrainedLogitsProcessor(it, beams)]",
    **dict.fromkeys(("negative_prompt_ids", "negative_prompt_attention_mask"), NOT_DONE["guidance_scale"][1]),
    "inputs_embeds": "a step reads tokens: torch.compile(model.forward) runs in transformers' loop",
    **dict.fromkeys(
        ("custom_generate", "trust_remote_code"), "the loop is this one: torch.compile(model.forward) runs in any other"
    ),
    **dict.fromkeys(("position_ids", "cache_position"), "places follow from attention_mask: leave it out"),
    **dict.fromkeys(("tokenizer", "assistant_tokenizer"), "what needs one takes it itself: leave it out"),
    **dict.fromkeys((*_LEFT, "synced_gpus", "logits_to_keep"), "no token follows from it: leave it out"),
    "cache_implementation": "the caches are static; compile_generation(..., cache_dtype=torch.int8) keeps codes",
    **{name: hint for name, (_, hint) in NOT_DONE.items()},
}
