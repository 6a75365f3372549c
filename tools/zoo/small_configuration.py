"""Small configurations of Hugging Face models: two layers, four heads, a hundred words."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from tools.zoo.inputs import VOCABULARY

SIZES: Final[Mapping[str, Any]] = {
    # widths
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embed_dim", "embedding_size", "dim", "emb_dim"), 32),
    **dict.fromkeys(("word_embed_proj_dim", "projection_dim", "decoder_hidden_size", "projector_dim"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "n_inner", "feed_forward_size", "hidden_dim"), 64),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "ffn_hidden_size", "dim_feedforward"), 64),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "decoder_intermediate_size"), 48),
    **dict.fromkeys(("head_dim", "d_kv", "kv_channels"), 8),
    # depths
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("decoder_num_hidden_layers", "num_decoder_layers", "num_encoder_layers"), 2),
    # heads
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "decoder_num_attention_heads"), 4),
    "num_key_value_heads": 2,
    # experts
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "experts_per_token", "moe_k"), 2),
    # vocabularies and positions
    **dict.fromkeys(("vocab_size", "n_vocab"), VOCABULARY),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_source_positions", "max_seq_len"), 64),
    **dict.fromkeys(("max_target_positions", "max_sequence_length"), 64),
    # pictures
    "image_size": 32,
    "patch_size": 8,
}
"""Values by field name, for fields whose default is larger."""

QUIET: Final[Mapping[str, Any]] = {"use_cache": False, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
"""Fields that have nothing to do with size: no key-value cache among the results, special tokens in the vocabulary."""


def small_configuration(kind: type[Any], **given: Any) -> Any:
    """Makes a configuration with small values.

    Args:
        kind: A configuration class of transformers.
        given: Fields by name, as they are; a dict for a nested configuration is read in the same way.
    """
    chosen: dict[str, Any] = {}
    for item in dataclasses.fields(kind):
        if item.name in SIZES and isinstance(item.default, int):
            chosen[item.name] = SIZES[item.name]
        elif item.name in QUIET:
            chosen[item.name] = QUIET[item.name]
    for name, nested in getattr(kind, "sub_configs", {}).items():
        values = given.pop(name, {})
        if values is not None and isinstance(nested, type) and dataclasses.is_dataclass(nested):
            chosen[name] = small_configuration(nested, **values).to_dict()
    return kind(**{**chosen, **given})
