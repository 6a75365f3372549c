"""Where plugin creators are found by name."""

from __future__ import annotations

from typing import Any, NoReturn

from trt_portable.enums import EngineCapability
from trt_portable.plugin.interfaces import IPluginCreatorInterface, IPluginResource
from trt_portable.pybind import Sealed, instance_of, optional_of, to_text
from trt_portable.reporting import IErrorRecorder


class IPluginRegistry(Sealed):
    """Creators by name, version and namespace, and resources that plugins share."""

    parent_search_enabled: bool = True
    """Whether what is not found here is looked for in the parent."""
    error_recorder = optional_of(IErrorRecorder, "Receives errors.")

    def __init__(self, parent: IPluginRegistry | None = None) -> None:
        self._parent = parent
        self._creators: dict[tuple[str, str, str], Any] = {}
        self._resources: dict[str, tuple[IPluginResource, int]] = {}

    @property
    def all_creators(self) -> list[Any]:
        """The creators registered here."""
        return list(self._creators.values())

    @property
    def all_creators_recursive(self) -> list[Any]:
        """The creators registered here and in the parents."""
        inherited = []
        if self._parent is not None and self.parent_search_enabled:
            inherited = self._parent.all_creators_recursive
        return [*self.all_creators, *inherited]

    def register_creator(self, creator: IPluginCreatorInterface, plugin_namespace: str = "") -> bool:
        """Registers a creator; False if its name, version and namespace are taken.

        Raises:
            TypeError: It is no `IPluginCreatorInterface`.
        """
        if not isinstance(creator, IPluginCreatorInterface):
            raise TypeError(f"a creator is IPluginCreatorInterface, not {type(creator).__name__}")
        space = to_text(plugin_namespace)
        key = (creator.name, creator.plugin_version, space)  # type: ignore[attr-defined]
        if key in self._creators:
            return False
        if space:
            creator.plugin_namespace = space  # type: ignore[attr-defined]
        self._creators[key] = creator
        return True

    def deregister_creator(self, creator: IPluginCreatorInterface) -> bool:
        """Removes a creator; False if it is not registered."""
        instance_of(IPluginCreatorInterface, creator, "creator")
        for key, known in self._creators.items():
            if known is creator:
                del self._creators[key]
                return True
        return False

    def get_creator(self, type: str, version: str, plugin_namespace: str = "") -> Any:
        """The creator of a name, version and namespace; None if there is none."""
        found = self._creators.get((to_text(type), to_text(version), to_text(plugin_namespace)))
        if found is None and self._parent is not None and self.parent_search_enabled:
            return self._parent.get_creator(type, version, plugin_namespace)
        return found

    def acquire_plugin_resource(self, key: str, resource: IPluginResource) -> IPluginResource:
        """The shared resource of a key; the first caller's is cloned."""
        instance_of(IPluginResource, resource, "resource")
        known, users = self._resources.get(to_text(key), (None, 0))
        shared = resource.clone() if known is None else known
        self._resources[key] = (shared, users + 1)
        return shared

    def release_plugin_resource(self, key: str) -> int:
        """Gives a shared resource back: 0, or -1 if nobody holds it."""
        known, users = self._resources.get(to_text(key), (None, 0))
        if known is None:
            return -1
        if users > 1:
            self._resources[key] = (known, users - 1)
        else:
            del self._resources[key]
            known.release()
        return 0

    def load_library(self, plugin_path: str) -> NoReturn:
        """Refused: libraries of compiled plugins hold CUDA code for TensorRT.

        Raises:
            RuntimeError: Always.
        """
        raise RuntimeError(
            f"{to_text(plugin_path)!r} holds plugins compiled for TensorRT; write IPluginV3 in Python instead"
        )

    def deregister_library(self, handle: Any) -> None:
        """Removes the creators of a library; there are none here."""


_registry = IPluginRegistry()


def get_plugin_registry() -> IPluginRegistry:
    """The registry of the process."""
    return _registry


def get_builder_plugin_registry(arg0: EngineCapability) -> IPluginRegistry:
    """The registry that builds with a capability use: that of the process.

    Raises:
        TypeError: It is no `EngineCapability`.
    """
    if not isinstance(arg0, EngineCapability):
        raise TypeError(f"expected EngineCapability, not {type(arg0).__name__}")
    return _registry


def init_libnvinfer_plugins(logger: Any, namespace: str) -> bool:
    """Accepted for compatibility: no bundled plugins exist here."""
    to_text(namespace)
    return True
