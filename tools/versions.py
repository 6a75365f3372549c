"""Writes the version in the root file `VERSION` into every place that repeats it.

Each distribution carries its version and the `==` pins on its siblings literally, so that it builds from its own folder
and from a source distribution. Run `python tools/versions.py` after changing `VERSION`; `--check` only compares.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

_VERSION_LINE = re.compile(r'^version = "[^"]*"$', re.MULTILINE)
_SIBLING_PIN = re.compile(r'"(trt-[a-z]+)==[^"]*"')


def read_version(root: Path = ROOT) -> str:
    """Returns the version of the workspace."""
    return (root / "VERSION").read_text(encoding="utf-8").strip()


def with_version(text: str, version: str) -> str:
    """Returns the text of a `pyproject.toml` with its own version and every sibling pin set to `version`."""
    text = _VERSION_LINE.sub(f'version = "{version}"', text, count=1)
    return _SIBLING_PIN.sub(rf'"\1=={version}"', text)


def project_files(root: Path = ROOT) -> list[Path]:
    """Returns every `pyproject.toml` of the workspace."""
    return [root / "pyproject.toml", *sorted(root.glob("packages/*/pyproject.toml"))]


def main(arguments: list[str] | None = None) -> int:
    """Synchronizes the versions, or compares them; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 when a file would change")
    check = parser.parse_args(arguments).check
    version = read_version()
    stale = []
    for path in project_files():
        text = path.read_text(encoding="utf-8")
        updated = with_version(text, version)
        if updated != text:
            stale.append(path.relative_to(ROOT))
            if not check:
                path.write_text(updated, encoding="utf-8")
    for name in stale:
        sys.stdout.write(f"{name} {'does not match' if check else 'now has'} version {version}\n")
    return 1 if check and stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
