"""Keywords of settings as type checkers know them are those that are read."""

from __future__ import annotations

from typing import Final, get_type_hints

from trt_core.setting_keywords import RetiredKeywords, SettingKeywords
from trt_core.settings import setting_names
from trt_core.settings_reader import RETIRED_SETTINGS, Renamed

ARGUMENTS: Final = {"autocast_calibration_dataloader", "custom_engine_cache", "dynamic", "fullgraph", "mode"}
"""Retired settings that are arguments of a function which takes settings beside them, or of `torch.compile`."""


def test_every_setting_has_a_keyword_and_nothing_else_has() -> None:
    own = SettingKeywords.__annotations__.keys() - RetiredKeywords.__annotations__.keys()
    assert own == {*setting_names(), "settings"}


def test_every_retired_setting_has_a_keyword_and_nothing_else_has() -> None:
    assert RetiredKeywords.__annotations__.keys() == RETIRED_SETTINGS.keys() - ARGUMENTS


def test_renamed_settings_take_what_they_stand_for_takes() -> None:
    hints = get_type_hints(SettingKeywords)
    for name, fate in RETIRED_SETTINGS.items():
        if isinstance(fate, Renamed):
            assert hints[name] == hints[fate.target], name
