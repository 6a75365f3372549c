"""Text encoders of transformers."""

from __future__ import annotations

from typing import Final

from tools.zoo.entry import Entry
from tools.zoo.inputs import BATCH, VOCABULARY, integers, text, token_ids
from tools.zoo.pretrained import hugging_face, hugging_faces

_PLAIN: Final = (
    "AlbertModel", "BertModel", "BertForSequenceClassification", "BertForTokenClassification", "CamembertModel",
    "ConvBertModel", "Data2VecTextModel", "DebertaModel", "DebertaV2Model", "DistilBertModel", "ElectraModel",
    "ErnieModel", "EuroBertModel", "FlaubertModel", "LayoutLMModel", "MPNetModel", "MegatronBertModel",
    "ModernBertModel", "NomicBertModel", "RemBertModel", "RoCBertModel", "RoFormerModel", "RobertaModel",
    "RobertaForQuestionAnswering", "RobertaPreLayerNormModel", "SplinterModel", "TapasModel", "XLMModel",
    "XLMRobertaModel", "XLMRobertaXLModel",
)  # fmt: skip

ENTRIES: Final[tuple[Entry, ...]] = (
    *hugging_faces(_PLAIN, text),
    hugging_face("BertGenerationEncoder", text()),
    hugging_face("BigBirdModel", text(), attention_type="original_full"),
    hugging_face("CanineModel", text(32), num_hash_buckets=97, downsampling_rate=4, local_transformer_stride=8),
    hugging_face("EsmModel", text(), position_embedding_type="rotary", mask_token_id=3, token_dropout=False,
                 vocab_size=VOCABULARY),
    hugging_face("FNetModel", {"input_ids": token_ids()}),
    hugging_face("FunnelModel", text(8), block_sizes=[1, 1], n_head=4, d_head=8, d_inner=64),
    hugging_face("IBertModel", text()),
    hugging_face("LiltModel", text(8) | {"bbox": integers(BATCH, 8, 4, low=10, high=11)}, channel_shrink_ratio=2,
                 hidden_size=48),
    hugging_face("LongformerModel", text(16), attention_window=8),
    hugging_face("LukeModel", text(), entity_vocab_size=11, entity_emb_size=16),
    hugging_face("MarkupLMModel", text(), max_depth=5, xpath_unit_hidden_size=8, max_xpath_tag_unit_embeddings=12,
                 max_xpath_subs_unit_embeddings=12, tag_pad_id=11, subs_pad_id=11),
    hugging_face("MobileBertModel", text(), intra_bottleneck_size=16, embedding_size=16),
    hugging_face("NystromformerModel", text(16), num_landmarks=4, segment_means_seq_len=16),
    hugging_face("SqueezeBertModel", text(), embedding_size=32),
    hugging_face("XLNetModel", text(), d_head=8, d_inner=64),
    hugging_face("XmodModel", text(), languages=["en_XX", "de_DE"], default_language="en_XX"),
)  # fmt: skip
