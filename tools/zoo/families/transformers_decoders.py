"""Causal language models of transformers."""

from __future__ import annotations

from typing import Final

from tools.zoo.entry import Entry
from tools.zoo.inputs import text
from tools.zoo.pretrained import hugging_face, hugging_faces

_PLAIN: Final = (
    "ApertusForCausalLM", "ArceeForCausalLM", "BioGptForCausalLM", "BitNetForCausalLM", "BloomForCausalLM",
    "Cohere2ForCausalLM", "CohereForCausalLM", "CTRLLMHeadModel", "CwmForCausalLM", "DiffLlamaForCausalLM",
    "DogeForCausalLM", "Exaone4ForCausalLM", "FalconForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM",
    "GemmaForCausalLM", "Glm4ForCausalLM", "GlmForCausalLM", "GPT2LMHeadModel", "GPTBigCodeForCausalLM",
    "GPTNeoXForCausalLM", "GPTNeoXJapaneseForCausalLM", "GraniteForCausalLM", "HeliumForCausalLM",
    "Jais2ForCausalLM", "Lfm2ForCausalLM", "LlamaForCausalLM",
    "LlamaForSequenceClassification", "MistralForCausalLM", "MptForCausalLM",
    "NanoChatForCausalLM", "Olmo2ForCausalLM", "Olmo3ForCausalLM", "OlmoForCausalLM",
    "OPTForCausalLM", "OpenAIGPTLMHeadModel", "PersimmonForCausalLM", "PhiForCausalLM", "Phi3ForCausalLM",
    "Qwen2ForCausalLM", "Qwen3ForCausalLM", "SeedOssForCausalLM", "SmolLM3ForCausalLM", "StableLmForCausalLM",
    "Starcoder2ForCausalLM", "VaultGemmaForCausalLM", "XGLMForCausalLM",
)  # fmt: skip

ENTRIES: Final[tuple[Entry, ...]] = (
    *hugging_faces(_PLAIN, text),
    *(hugging_face(name, text(), head_dim=8) for name in ("HunYuanDenseV1ForCausalLM", "MinistralForCausalLM")),
    hugging_face("NemotronForCausalLM", text(), num_key_value_heads=2),
    hugging_face("CodeGenForCausalLM", text(), rotary_dim=4),
    hugging_face("GPTJForCausalLM", text(), rotary_dim=4),
    hugging_face("GPTNeoForCausalLM", text(), attention_types=[[["global", "local"], 1]], window_size=4),
)
