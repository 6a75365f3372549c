"""The stages from a captured model to its engines, with the choice of precision between where that is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trt_frontends.pipeline import BuiltModel, CapturedModel, GiveUp, LoweredModel, visible_log

if TYPE_CHECKING:
    from trt_frontends.precision.automatic import AutomaticPrecision


def lower(captured: CapturedModel) -> LoweredModel:
    """Lowers a captured model, and chooses precision where that is asked for; builds nothing.

    Raises:
        InputError, LoweringError, SettingsError: See `CapturedModel.lower`.
    """
    return captured.lower() if captured.settings.max_error is None else _automatic(captured).lower()


def build(captured: CapturedModel, give_up: GiveUp | None = None) -> BuiltModel:
    """Builds the engines of a captured model; none for a dry run, which announces its report.

    Args:
        captured: The model.
        give_up: Moves the model's weights off the device as soon as nothing is measured on them any more.

    Raises:
        TrtError: See `lower` and `LoweredModel.build`.
    """
    dryrun = bool(captured.settings.dryrun)
    with visible_log(captured.settings):
        if captured.settings.max_error is None:
            lowered = captured.lower()
            return lowered.leave_in_pytorch() if dryrun else lowered.build(give_up)
        automatic = _automatic(captured)
        built = automatic.lower().leave_in_pytorch() if dryrun else automatic.build()
        built.module.meta["precision_report"] = automatic.report(built=not dryrun)
        if give_up is not None:
            give_up(built.module)
        return built


def _automatic(captured: CapturedModel) -> AutomaticPrecision:
    from trt_frontends.precision.automatic import AutomaticPrecision  # it runs models, which few calls ask for

    return AutomaticPrecision(captured)
