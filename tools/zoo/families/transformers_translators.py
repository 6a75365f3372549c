"""Encoder-decoders of transformers."""

from __future__ import annotations

from typing import Final

from tools.zoo.entry import Entry
from tools.zoo.inputs import two_texts
from tools.zoo.pretrained import hugging_face, hugging_faces

_PLAIN: Final = (
    "BartModel", "BlenderbotModel", "BlenderbotSmallModel", "M2M100Model", "MBartModel", "MT5Model", "MarianModel",
    "PLBartModel", "PegasusModel", "T5Model", "UMT5Model",
)  # fmt: skip

ENTRIES: Final[tuple[Entry, ...]] = (
    *hugging_faces(_PLAIN, two_texts),
    hugging_face("FSMTModel", two_texts(), src_vocab_size=99, tgt_vocab_size=99, langs=["en", "de"]),
    hugging_face("LEDModel", two_texts(16), attention_window=8, max_encoder_position_embeddings=64,
                 max_decoder_position_embeddings=64),
    hugging_face("LongT5Model", two_texts(16), local_radius=4),
    hugging_face("PegasusXModel", two_texts(16), block_size=8, num_global_tokens=4),
    hugging_face("ProphetNetModel", two_texts(), num_encoder_attention_heads=4, num_decoder_attention_heads=4,
                 num_encoder_layers=2, num_decoder_layers=2, ngram=2, num_buckets=8),
)  # fmt: skip
