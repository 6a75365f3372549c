"""Builds every distribution as it would be published, and looks at it as a registry and its users would.

Checked are the metadata (by twine), the licence, the files inside, the version in every place that repeats it, and that
a type checker follows our annotations in a program that uses the installed wheels.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_UV = [sys.executable, "-m", "uv"]

_CONSUMER = """
from trt_core import CompilationSettings, Input
from trt_runtime import PlanHeader
import trt_converters, trt_frontends, trt_lowering, trt_partition, trt_portable

settings: CompilationSettings = CompilationSettings(min_block_size=1)
size: int = Input(shape=(1, 3)).shape  # a mistake that only a typed package reveals
"""


def build(folder: Path) -> list[Path]:
    """Builds every source distribution, and every wheel from it."""
    subprocess.run([*_UV, "build", "--all-packages", "--quiet", "--out-dir", str(folder)], cwd=ROOT, check=True)
    return sorted([*folder.glob("*.whl"), *folder.glob("*.tar.gz")])


def complaints_about(path: Path, version: str) -> Iterator[str]:
    """Yields what is wrong with one wheel or source distribution."""
    files = _read(path)
    package = path.name.split("-")[0]
    metadata = next((text for name, text in files.items() if name.endswith(("METADATA", "PKG-INFO"))), "")
    fields = Parser().parsestr(metadata)
    if fields["Version"] != version:
        yield f"its version is {fields['Version']}, VERSION says {version}"
    if fields["License-Expression"] != "BSD-3-Clause" or "trt developers" not in (fields["Author"] or ""):
        yield "its licence or its authors are missing"
    siblings = [item for item in fields.get_all("Requires-Dist", []) if item.startswith("trt-")]
    yield from (f"it requires {item}" for item in siblings if not re.match(rf"trt-[a-z]+=={re.escape(version)}", item))
    for needed in (f"{package}/py.typed", "LICENSE"):
        if not any(name.endswith(needed) for name in files):
            yield f"{needed} is missing"
    unexpected = [name for name in files if name.endswith((".pyc", ".orig")) or "/." in name.replace("/.gitignore", "")]
    yield from (f"{name} does not belong into it" for name in unexpected)
    own = (package, "trtc/") if package == "trt_frontends" else (package,)  # with the command line
    if path.suffix == ".whl" and (foreign := [name for name in files if not name.startswith(own)]):
        yield f"it installs {foreign[0]} outside its package"


def follows_annotations(wheels: list[Path], folder: Path) -> str:
    """Type-checks a program that uses the installed wheels; returns what is wrong, or nothing."""
    python = str(folder / "consumer" / "bin" / "python")
    script = folder / "program.py"
    script.write_text(_CONSUMER, encoding="utf-8")
    subprocess.run([*_UV, "venv", "--quiet", "--no-project", str(folder / "consumer")], cwd=folder, check=True)
    install = [*_UV, "pip", "install", "--quiet", "--python", python, "--no-deps", *map(str, wheels)]
    subprocess.run(install, cwd=folder, check=True)
    command = [sys.executable, "-m", "mypy", "--python-executable", python, "--ignore-missing-imports"]
    command += ["--follow-imports=silent", "--cache-dir", str(folder / "cache"), str(script)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    found = re.findall(r"program\.py:(\d+): error: (.*)", done.stdout)
    wrong_line = str(_CONSUMER.count("\n"))
    if [line for line, _ in found] == [wrong_line] and "Incompatible types" in found[0][1]:
        return ""
    return done.stdout + done.stderr


def main() -> int:
    """Checks all distributions; returns the exit status."""
    version = (ROOT / "VERSION").read_text(encoding="utf-8").strip()
    failures = []
    if f"\n## {version}\n" not in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"):
        failures.append(f"CHANGELOG.md has no section {version}")
    with tempfile.TemporaryDirectory(prefix="trt-release-") as name:
        folder = Path(name)
        built = build(folder / "dist")
        expected = 2 * len(list(ROOT.glob("packages/*/pyproject.toml")))
        if len(built) != expected:
            failures.append(f"{len(built)} files were built, not {expected}")
        for path in built:
            failures += [f"{path.name}: {complaint}" for complaint in complaints_about(path, version)]
        if subprocess.run(
            [sys.executable, "-m", "twine", "check", "--strict", *map(str, built)], check=False
        ).returncode:
            failures.append("twine refuses the metadata")
        if complaint := follows_annotations([path for path in built if path.suffix == ".whl"], folder):
            failures.append(f"a type checker does not follow the installed packages:\n{complaint}")
    for failure in failures:
        sys.stdout.write(f"{failure}\n")
    sys.stdout.write(f"{len(built)} files of version {version}, {len(failures)} faults\n")
    return int(bool(failures))


def _read(path: Path) -> dict[str, str]:
    """Names of the files in an archive, with the text of the metadata."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            return {
                name: archive.read(name).decode() if name.endswith("METADATA") else "" for name in archive.namelist()
            }
    with tarfile.open(path) as archive:
        files = {}
        for member in archive.getmembers():
            content = archive.extractfile(member) if member.name.endswith("PKG-INFO") else None
            files[member.name] = content.read().decode() if content else ""
        return files


if __name__ == "__main__":
    raise SystemExit(main())
