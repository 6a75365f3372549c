"""Mixtures of experts, state-space models and linear attention of transformers."""

from __future__ import annotations

from typing import Any, Final

from tools.zoo.entry import Entry
from tools.zoo.inputs import text, two_texts
from tools.zoo.pretrained import hugging_face, hugging_faces

_EXPERTS: Final = (
    "Ernie4_5_MoeForCausalLM", "FlexOlmoForCausalLM", "GptOssForCausalLM",
    "GraniteMoeForCausalLM", "JetMoeForCausalLM", "MixtralForCausalLM", "OlmoeForCausalLM", "PhimoeForCausalLM",
    "Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM",
)  # fmt: skip

_LATENT: Final[dict[str, Any]] = {
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
    "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "num_experts_per_tok": 2, "num_key_value_heads": 4,
}  # fmt: skip

_SELECTIVE: Final[dict[str, Any]] = {"state_size": 4, "expand": 2, "conv_kernel": 4, "time_step_rank": 4}

ENTRIES: Final[tuple[Entry, ...]] = (
    *hugging_faces(_EXPERTS, text),
    hugging_face("DeepseekV2ForCausalLM", text(), **_LATENT),
    hugging_face("DeepseekV3ForCausalLM", text(), **_LATENT),
    hugging_face("Dots1ForCausalLM", text(), n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1,
                 first_k_dense_replace=1),
    hugging_face("SwitchTransformersModel", two_texts(), num_sparse_encoder_layers=1, num_sparse_decoder_layers=1,
                 encoder_sparse_step=1, decoder_sparse_step=1, expert_capacity=8),
    hugging_face("NllbMoeModel", two_texts(), encoder_sparse_step=1, decoder_sparse_step=1, expert_capacity=8),
    hugging_face("MambaForCausalLM", text(), **_SELECTIVE),
    hugging_face("FalconMambaForCausalLM", text(), **_SELECTIVE),
    hugging_face("Mamba2ForCausalLM", text(), state_size=4, head_dim=16, num_heads=4, n_groups=1, chunk_size=4),
    hugging_face("BambaForCausalLM", text(), mamba_n_heads=4, mamba_d_head=16, mamba_d_state=4, mamba_chunk_size=4,
                 mamba_n_groups=1, attn_layer_indices=[1]),
    hugging_face("JambaForCausalLM", text(), mamba_d_state=4, mamba_dt_rank=4, attn_layer_period=2,
                 attn_layer_offset=1, use_mamba_kernels=False),
    hugging_face("RecurrentGemmaForCausalLM", text(), lru_width=32, attention_window_size=8,
                 block_types=["recurrent", "attention"]),
    hugging_face("RwkvForCausalLM", text(), attention_hidden_size=32, context_length=64),
)  # fmt: skip
