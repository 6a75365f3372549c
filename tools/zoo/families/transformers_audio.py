"""Speech, time-series and other sequence models of transformers."""

from __future__ import annotations

from typing import Any, Final

from tools.zoo.entry import Entry
from tools.zoo.inputs import BATCH, tensor, token_ids
from tools.zoo.pretrained import hugging_face

_SPEECH: Final[dict[str, Any]] = {
    "conv_dim": [16, 16, 16], "conv_stride": [5, 2, 2], "conv_kernel": [10, 3, 3], "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2,
}  # fmt: skip


def _wave(length: int = 1600) -> dict[str, Any]:
    return {"input_values": tensor(BATCH, length)}


ENTRIES: Final[tuple[Entry, ...]] = (
    hugging_face("Data2VecAudioModel", _wave(), **_SPEECH),
    hugging_face("EncodecModel", {"input_values": tensor(BATCH, 1, 640)}, hidden_size=16, num_filters=4,
                 codebook_size=16, upsampling_ratios=[4, 2], num_lstm_layers=1),
    hugging_face("HubertModel", _wave(), **_SPEECH),
    hugging_face("PatchTSTModel", {"past_values": tensor(BATCH, 32, 3)}, context_length=32, patch_length=4,
                 patch_stride=4, num_input_channels=3),
    hugging_face("PatchTSMixerModel", {"past_values": tensor(BATCH, 32, 3)}, context_length=32, patch_length=4,
                 patch_stride=4, num_input_channels=3),
    hugging_face("SEWModel", _wave(), **_SPEECH, squeeze_factor=2),
    hugging_face("Speech2TextModel", {"input_features": tensor(BATCH, 32, 16), "decoder_input_ids": token_ids()},
                 input_feat_per_channel=16, conv_channels=32),
    hugging_face("UniSpeechModel", _wave(), **_SPEECH, num_codevectors_per_group=8, codevector_dim=16,
                 proj_codevector_dim=16),
    hugging_face("Wav2Vec2Model", _wave(), **_SPEECH),
    hugging_face("Wav2Vec2ForCTC", _wave(), **_SPEECH),
    hugging_face("WavLMModel", _wave(), **_SPEECH),
    hugging_face("WhisperModel", {"input_features": tensor(BATCH, 16, 128), "decoder_input_ids": token_ids()},
                 num_mel_bins=16),
)  # fmt: skip
