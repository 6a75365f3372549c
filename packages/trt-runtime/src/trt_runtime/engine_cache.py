"""The engine cache: plans on disk by key, shared by processes, bounded in size."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from trt_core.cached_property import cached_property
from trt_core.errors import CacheError, TrtError
from trt_core.files import typed
from trt_core.files.folder import PrivateFolder, user_folder
from trt_core.files.strict_json import parse_json
from trt_core.log import logger
from trt_runtime.engine_file import plan_from_memory, replacing, write_plan
from trt_runtime.header import PlanHeader

_ENTRY_VERSION: Final = 1
_PLAN: Final = ".plan"
_KEY: Final = ".key"
_NAME: Final = re.compile(r"[0-9a-f]{64}\.(?:plan|key)")
_LOCK: Final = ".lock"
_LOCK_SECONDS: Final = 60.0
_MOST_AHEAD: Final = 86_400.0
_VARIABLE: Final = "TRT_ENGINE_CACHE_DIR"
_MOST_KEY_BYTES: Final = 64 << 20
_FIELDS: Final = ("version", "payload_sha256", "components", "built")


@dataclass(frozen=True)
class CacheEntry:
    """One cached engine.

    Attributes:
        digest: Digest of its key.
        key: The key.
        bytes: What it takes on disk.
        used: When it was stored or loaded last, in seconds since the epoch.
        built: Facts about the engine for people: name, provider, layers, seconds of the build.
    """

    digest: str
    key: EngineKey
    bytes: int
    used: float
    built: dict[str, Any]


class EngineCache:
    """Engines in a directory.

    Each engine is two files: `<digest>.key`, the components of its key as JSON, and `<digest>.plan`, a plan container.
    The key file is written first and both appear whole or not at all, so an entry exists when its plan does. Writers
    and evictions exclude each other by a lock file; readers need no lock, since files are replaced and never changed.
    An entry's time of modification says when it was used last, in all processes.

    Args:
        directory: Made with mode 0700 when it is missing.
        limit_bytes: Size that entries may take together; None for no limit.

    Raises:
        CacheError: The directory is not private, or cannot be used.
    """

    def __init__(self, directory: str | os.PathLike[str], limit_bytes: int | None = None) -> None:
        self._folder = PrivateFolder.open(directory)
        self.directory = Path(self._folder.path)
        self.limit_bytes = limit_bytes

    def find(self, key: EngineKey) -> tuple[PlanHeader, torch.Tensor] | None:
        """Returns the engine of a key, or None when there is none.

        A damaged entry is removed with a warning, and counts as none; a folder in its place is renamed.

        Returns:
            The header, and the plan: (bytes,), uint8, mapped from the file.
        """
        try:
            return self._load(key)
        except (TrtError, OSError):
            pass  # damaged, or being replaced at this moment: nobody writes while the lock is held
        try:
            with self._locked():
                try:
                    return self._load(key)
                except (TrtError, OSError) as error:
                    self._remove(key.digest)
                    moved = self._make_room(key.digest)
                    if moved:
                        _warn(f"a folder lay in the place of an entry of the engine cache; it is {moved} from now on")
                    else:
                        _warn(f"an entry of the engine cache was damaged and is removed: {error}")
        except (TrtError, OSError) as error:
            _warn(f"the engine cache cannot be used: {error}")
        return None

    def _load(self, key: EngineKey) -> tuple[PlanHeader, torch.Tensor] | None:
        plan_name = f"{key.digest}{_PLAN}"
        plan_path = self.directory / plan_name
        try:
            record = self._record(key.digest)
            header, plan = plan_from_memory(self._folder.map(plan_name), where=str(plan_path), check=False)
        except FileNotFoundError:
            return None
        if record.key.text != key.text:
            raise CacheError("the entry holds the key of another engine", where=str(plan_path))
        if header.payload_sha256 != record.payload_sha256:
            raise CacheError("the plan is not the one that was stored with the key", where=str(plan_path))
        with contextlib.suppress(OSError):
            self._folder.touch(plan_name)
        return header, plan

    def insert(self, key: EngineKey, header: PlanHeader, plan: torch.Tensor) -> bool:
        """Stores an engine, and evicts those that were unused for longest when there is no room.

        Storing is a favour to later compilations: what goes wrong is a warning, and nothing else.

        Args:
            key: What the engine depends on.
            header: Its header.
            plan: (bytes,), uint8: the serialized engine.

        Returns:
            Whether it was stored.
        """
        if self.limit_bytes is not None and plan.numel() > self.limit_bytes:
            _warn(f"{header.title} is not cached: it has {plan.numel()} bytes, the cache may hold {self.limit_bytes}")
            return False
        record = {
            "version": _ENTRY_VERSION,
            "payload_sha256": header.payload_sha256,
            "components": dict(key.components),
            "built": {
                "name": header.name,
                "provider": f"{header.provider} {header.provider_version}",
                "layers": header.layer_count,
                "build_seconds": round(header.build_seconds, 3),
            },
        }
        try:
            with self._locked():
                self._remove_leftovers()
                self._make_room(key.digest)
                with replacing(f"{key.digest}{_KEY}", self._folder) as file:
                    file.write(json.dumps(record, sort_keys=True).encode())
                write_plan(f"{key.digest}{_PLAN}", header, plan, self._folder)
                self._evict(self.limit_bytes, keep=key.digest)
        except (TrtError, OSError) as error:
            _warn(f"{header.title} is not cached: {error}")
            return False
        return True

    def discard(self, key: EngineKey) -> None:
        """Removes an engine, if it is there."""
        with self._locked():
            self._remove(key.digest)

    def entries(self) -> list[CacheEntry]:
        """Returns what is stored, the most recently used first. Damaged entries are left out."""
        found = []
        for digest, used, size in self._files():
            with contextlib.suppress(TrtError, OSError):
                record = self._record(digest)
                found.append(CacheEntry(digest, record.key, size, used, record.built))
        return sorted(found, key=lambda entry: -entry.used)

    def clear(self) -> int:
        """Removes every entry, and returns how many there were."""
        with self._locked():
            digests = [digest for digest, _, _ in self._files()]
            for digest in digests:
                self._remove(digest)
            self._remove_leftovers()
        return len(digests)

    def prune(self, limit_bytes: int | None = None) -> int:
        """Removes the entries unused for longest until the others fit, and returns how many went.

        Args:
            limit_bytes: Size that may remain; the cache's own limit by default.
        """
        with self._locked():
            self._remove_leftovers()
            return self._evict(self.limit_bytes if limit_bytes is None else limit_bytes)

    def why_miss(self, key: EngineKey) -> tuple[CacheEntry, tuple[Difference, ...]] | None:
        """Returns the entry nearest to a key and in what it differs, None when the cache is empty.

        An entry is nearer when fewer components differ; the differences of the entry of the key itself are none.
        """
        compared = [(entry, key.differences(entry.key)) for entry in self.entries()]
        return min(compared, key=lambda pair: len(pair[1]), default=None)

    # files

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            with self._folder.locked(_LOCK, _LOCK_SECONDS):
                yield
        except TimeoutError as error:
            raise CacheError(
                f"the engine cache was in use for {_LOCK_SECONDS:.0f} seconds",
                where=str(self.directory),
                hint="wait for the process that writes to it, or end it",
            ) from error
        except (IsADirectoryError, PermissionError) as error:
            raise CacheError(
                "the engine cache has no lock",
                where=str(self.directory / _LOCK),
                why=error.strerror or "",
                hint="move what lies there away; it should be an empty file of yours",
            ) from error

    def _files(self) -> list[tuple[str, float, int]]:
        """Digest, time of use and size of every entry that has a plan."""
        found = []
        for name in self._folder.names():
            if not name.endswith(_PLAN) or not _NAME.fullmatch(name):
                continue
            digest = name.removesuffix(_PLAN)
            with contextlib.suppress(OSError):
                status = self._folder.status(name)
                if stat.S_ISDIR(status.st_mode):
                    continue  # nobody's entry
                size = status.st_size
                with contextlib.suppress(OSError):
                    size += self._folder.status(f"{digest}{_KEY}").st_size
                found.append((digest, status.st_mtime_ns / 1e9, size))
        return found

    def _record(self, digest: str) -> _Record:
        return _Record(self._folder.read(f"{digest}{_KEY}", _MOST_KEY_BYTES))

    def _evict(self, limit: int | None, keep: str = "") -> int:
        if limit is None:
            return 0
        ahead = time.time() + _MOST_AHEAD
        # one that was used tomorrow was so by a clock that was wrong, and would never leave
        files = sorted(self._files(), key=lambda item: item[1] if item[1] < ahead else 0)
        total = sum(size for _, _, size in files)
        removed = 0
        for digest, _, size in files:
            if total <= limit:
                break
            if digest != keep:
                self._remove(digest)
                total -= size
                removed += 1
        if removed:
            logger.debug("%d engines left the cache in %s", removed, self.directory)
        return removed

    def _remove(self, digest: str) -> None:
        for ending in (_PLAN, _KEY):  # the plan first: an entry without one does not exist
            with contextlib.suppress(IsADirectoryError):  # what is in a folder, the cache has not made
                self._folder.remove(f"{digest}{ending}")

    def _make_room(self, digest: str) -> str:
        """Removes what is no file in the place of an entry; renames folders, and returns where the last of them is."""
        moved = ""
        for name in (f"{digest}{_PLAN}", f"{digest}{_KEY}"):
            with contextlib.suppress(FileNotFoundError):
                mode = self._folder.status(name).st_mode
                if stat.S_ISDIR(mode):
                    moved = f"{name}.{time.time_ns():x}"
                    self._folder.replace(name, moved)
                elif not stat.S_ISREG(mode):
                    self._folder.remove(name)
        return moved and str(self.directory / moved)

    def _remove_leftovers(self) -> None:
        """Removes what killed writers left: whoever holds the lock is the only writer."""
        names = set(self._folder.names())
        for name in names:
            temporary = name.startswith(".") and name.endswith((_PLAN, _KEY))
            orphan = _NAME.fullmatch(name) and name.endswith(_KEY) and f"{name.removesuffix(_KEY)}{_PLAN}" not in names
            if temporary or orphan:
                with contextlib.suppress(OSError):
                    self._folder.remove(name)


class _Record:
    """The key file of an entry, read strictly."""

    def __init__(self, text: bytes) -> None:
        try:
            value = typed.fields(parse_json(text, max_bytes=_MOST_KEY_BYTES), "the entry", _FIELDS)
            if value["version"] != _ENTRY_VERSION:
                raise CacheError(f"the entry has version {value['version']!r}, this trt-runtime reads {_ENTRY_VERSION}")
            self.key = EngineKey.from_json(value["components"])
            self.payload_sha256 = typed.text(value["payload_sha256"], "payload_sha256")
            self.built = dict(typed.mapping(value["built"], "built"))
            typed.number(self.built.get("build_seconds", 0), "build_seconds")
        except ValueError as error:
            raise CacheError("the key of the entry cannot be read", why=str(error)) from error


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=4)


@dataclass(frozen=True)
class Difference:
    """One thing in which two keys differ.

    Attributes:
        component: Where, such as `"weights"` or `"settings.workspace_size"`.
        wanted: What the one key has; None where it has nothing.
        found: What the other has.
    """

    component: str
    wanted: str | None
    found: str | None

    def __str__(self) -> str:
        return f"{self.component}: {_shorten(self.wanted)} is wanted, {_shorten(self.found)} is there"


@dataclass(frozen=True)
class EngineKey:
    """What an engine depends on; known before anything is converted or built.

    Attributes:
        components: Texts by dotted name, such as `{"graph": "...", "settings.refit": "False"}`. A text is a value
            that a reader understands, or a digest of what would be too long.

    Raises:
        CacheError: There are no components, or they are not texts.
    """

    components: Mapping[str, str]

    def __post_init__(self) -> None:
        values = self.components.items() if isinstance(self.components, Mapping) else ()
        if not values or not all(isinstance(name, str) and isinstance(text, str) for name, text in values):
            raise CacheError("the components of an engine's key are texts by name, at least one")

    @cached_property
    def text(self) -> str:
        """The key as canonical JSON: equal keys have equal texts."""
        return json.dumps(dict(self.components), sort_keys=True, separators=(",", ":"))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the key in hexadecimal: the name of its entry."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @classmethod
    def from_json(cls, value: Any) -> EngineKey:
        """Reads the components back.

        Raises:
            CacheError: They are not texts by name.
        """
        return cls(value)

    def differences(self, other: EngineKey) -> tuple[Difference, ...]:
        """Returns in what another key differs, in the order of the components' names."""
        names = sorted({*self.components, *other.components})
        pairs = ((name, self.components.get(name), other.components.get(name)) for name in names)
        return tuple(Difference(name, wanted, found) for name, wanted, found in pairs if wanted != found)


def _shorten(text: str | None) -> str:
    if text is None:
        return "nothing"
    return text if len(text) <= 60 else f"{text[:57]}..."


def default_directory() -> Path:
    """Returns the engine cache directory of this user; `TRT_ENGINE_CACHE_DIR` overrides it."""
    return user_folder("engines", _VARIABLE, is_cache=True)


def directory_is_configured() -> bool:
    """Whether `TRT_ENGINE_CACHE_DIR` names a directory."""
    return bool(os.environ.get(_VARIABLE))
