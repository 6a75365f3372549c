"""The real TensorRT bindings as data: names, signatures and enumerations of two versions."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "data" / "tensorrt"
VERSIONS = ("10.16", "11.4")


@dataclass(frozen=True)
class Api:
    """What one version of the bindings offers."""

    version: str
    data: dict[str, Any]

    def has_name(self, name: str) -> bool:
        """Whether the module has an attribute of that name."""
        return any(name in self.data[kind] for kind in ("classes", "enums", "functions", "dtypes"))

    def has_member(self, enum: str, member: str) -> bool:
        """Whether an enumeration has a member."""
        return member in self.data["enums"].get(enum, {})

    def attributes(self, class_name: str) -> set[str]:
        """Methods, properties and constants of a class and its bases."""
        found: set[str] = set()
        described = self.data["classes"].get(class_name)
        if described is None:
            return found
        for base in described["bases"]:
            found |= self.attributes(base)
        return found | set(described["methods"]) | set(described["properties"]) | set(described["constants"])

    def all_names(self) -> set[str]:
        """Every name in the API: classes, enumerations, functions, methods, properties."""
        found = {name for kind in ("classes", "enums", "functions", "dtypes") for name in self.data[kind]}
        return found.union(*(self.attributes(name) for name in self.data["classes"]))

    def parameters(self, class_name: str, method: str) -> list[list[tuple[str, bool]]]:
        """Overloads of a method: (parameter, whether it has a default), without self."""
        return [
            [(name, has_default) for name, _, has_default in overload]
            for overload in self.overloads(class_name, method)
        ]

    def overloads(self, class_name: str, method: str) -> list[list[tuple[str, str, bool]]]:
        """Overloads of a method: (parameter, its type, whether it has a default), without self."""
        described = self.data["classes"].get(class_name, {"methods": {}})
        return [_parse(signature) for signature in described["methods"].get(method, [])]


@functools.cache
def load(version: str) -> Api:
    """Reads one version."""
    return Api(version, json.loads((DATA / f"api_{version}.json").read_text()))


def _parse(signature: str) -> list[tuple[str, str, bool]]:
    inside = signature[signature.index("(") + 1 : signature.rindex(") ->")]
    inside = re.sub(r"<[^>]*>", "DEFAULT", inside)
    depth, parts, current = 0, [], ""
    for character in inside + ",":
        depth += (character in "[(") - (character in "])")
        if character == "," and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += character
    found = []
    for part in parts:
        name, _, kind = part.partition(":")
        if name.strip() and name.strip() != "self":
            found.append((name.strip(), kind.partition("=")[0].strip(), "=" in part))
    return found
