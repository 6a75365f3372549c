"""The error hierarchy. Every error says what happened, where, why, and what to do next."""

from __future__ import annotations

from trt_core.wording import message_of


class TrtError(RuntimeError):
    """Base of every error that this project raises on purpose.

    Args:
        what: What failed, as one sentence.
        where: The place it failed at: a node, an input, a file. Left out when it is obvious.
        why: The cause.
        hint: What the reader can do about it.

    Attributes:
        what, where, why, hint: The parts as they are, for programs that present errors themselves.
    """

    def __init__(self, what: str, *, where: str = "", why: str = "", hint: str = "") -> None:
        self.what = what
        self.where = where
        self.why = why
        self.hint = hint
        super().__init__(message_of(self._render()))

    def _render(self) -> str:
        lines = [self.what]
        for label, text in (("where", self.where), ("why", self.why), ("what to do", self.hint)):
            if text:
                lines.append(f"  {label}: {text}")
        return "\n".join(lines)


class SettingsError(TrtError, ValueError):
    """A compilation setting has an unknown name or a value that makes no sense."""


class InputError(TrtError, ValueError):
    """An example input, an `Input` range or a tensor given to an engine does not fit."""


class ProviderError(TrtError):
    """The provider of TensorRT's API that was asked for cannot be used here."""


class ExportError(TrtError):
    """`torch.export` could not capture the model."""


class LoweringError(TrtError):
    """A lowering pass broke its contract."""


class PartitionError(TrtError):
    """A partition plan is not valid for its graph."""


class IncompleteCompilationError(TrtError):
    """`require_full_compilation` was asked for, and some nodes cannot run in an engine."""


class ConversionError(TrtError):
    """A node could not be converted to TensorRT layers.

    Args:
        what, where, why, hint: See `TrtError`.
        node_name: Name of the node; empty when the failure belongs to no single node.
    """

    def __init__(self, what: str, *, where: str = "", why: str = "", hint: str = "", node_name: str = "") -> None:
        self.node_name = node_name
        super().__init__(what, where=where, why=why, hint=hint)


class BuildError(TrtError):
    """The provider refused to build an engine."""


class PlanError(TrtError):
    """A plan or a saved program cannot be loaded: truncated, foreign, corrupt or for another target."""


class CacheError(TrtError):
    """The engine cache cannot be used: its directory is not private, it is locked, or an entry is damaged."""


class RefitError(TrtError):
    """The weights of a compiled model cannot be replaced."""


class FileError(TrtError, OSError):
    """A file cannot be written, since there is no room or the disk fails, or it is no regular file.

    Args:
        what, where, why, hint: See `TrtError`.
        number: The system's error number, for `errno`.
    """

    def __init__(self, what: str, *, where: str = "", why: str = "", hint: str = "", number: int = 0) -> None:
        super().__init__(what, where=where, why=why, hint=hint)
        self.errno = number


class ExecutionError(TrtError):
    """An engine failed while running."""


class InternalError(TrtError):
    """Something failed that must not fail whatever the model is: a defect of this project."""


class Uncacheable(Exception):
    """Something that an engine depends on cannot be described, so the engine is built and not cached.

    Args:
        why: What cannot be described.
        where: The node, function or setting.
    """

    def __init__(self, why: str, where: str = "") -> None:
        self.why = why
        self.where = where
        super().__init__(f"{why} ({where})" if where else why)
