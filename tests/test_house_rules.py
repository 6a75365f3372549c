"""Rules of the house that no linter holds: what tracked files may contain, and what they are called."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

ROOT = Path(__file__).resolve().parent.parent
THIS_FILE = Path(__file__).resolve().relative_to(ROOT).as_posix()

NOT_IN_TEXT: Final = {
    "a path of somebody's machine": r"(?<![\w.$}])/(?:home|root|Users|work|opt|mnt|srv)/\w",
    "a package index": r"--(?:extra-)?index-url|--find-links[ =]\S*:|https?://\S+/simple\b|\bpy"
    r"pi\.|pythonhos"
    r"ted",
    "an unfinished thought": r"\b(?:TODO|FIXME|XXX|HACK)\b",
    "a merge conflict": r"^(?:<{7}|>{7}) ",
}
"""What no tracked text file contains, and the pattern that finds it."""

MAXIMUM_BYTES: Final = 1 << 20
EMPTY_NAMES: Final = re.compile(r"(?:^|/)_?(?:utils?|common|helpers?|misc)\.py$")


def _tracked() -> list[str]:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("needs a git checkout")
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, text=True, capture_output=True, check=True)
    return [name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


@pytest.mark.parametrize("kind", NOT_IN_TEXT)
def test_tracked_files_hold_nothing_that_belongs_elsewhere(kind: str) -> None:
    pattern = re.compile(NOT_IN_TEXT[kind], re.MULTILINE)
    found = []
    for name in _tracked():
        if name == THIS_FILE:
            continue
        try:
            text = (ROOT / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for match in pattern.finditer(text):
            found.append(f"{name}:{text.count(chr(10), 0, match.start()) + 1}: {match.group()!r}")
    assert not found, f"{kind}:\n" + "\n".join(found)


def test_tracked_files_are_small() -> None:
    large = [name for name in _tracked() if (ROOT / name).stat().st_size > MAXIMUM_BYTES]
    assert not large


def test_modules_are_named_for_their_concept() -> None:
    assert not [name for name in _tracked() if EMPTY_NAMES.search(name)]


def test_test_files_have_names_of_their_own() -> None:
    names = [path.name for path in [*ROOT.glob("packages/*/tests/**/test_*.py"), *ROOT.glob("tests/**/test_*.py")]]
    assert sorted(names) == sorted(set(names))


FACTORIES: Final = re.compile(
    "arange|as_?(?:tensor|array)|empty(?:_permuted|_strided)?|eye|full|(?:lin|log)space|ones|rand(?:int|n|perm)?|"
    "(?:scalar_)?tensor|tri[lu]_indices|zeros"
)
ON_HOST: Final = ("trt-converters", "trt-lowering", "trt-partition")
"""Packages whose functions run inside `trt_core.device.on_host`."""


def test_tensors_are_made_on_a_device_that_is_named() -> None:
    """Without one they lie on the default device of whoever calls, which is a GPU, or meta, where somebody said so."""
    found = []
    for package in ROOT.glob("packages/*"):
        for path in package.rglob("src/**/*.py") if package.name not in ON_HOST else ():
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                match node:
                    case ast.Call(func=ast.Attribute(value=ast.Name("torch"), attr=name)) if FACTORIES.fullmatch(name):
                        if not any(keyword.arg in ("device", None) for keyword in node.keywords):
                            found.append(f"{path.relative_to(ROOT)}:{node.lineno}: torch.{name}")
    assert not found, "\n".join(found)


def test_pages_name_files_that_exist() -> None:
    """A path such as `trt_core/settings.py` or `trt_lowering/passes/` in a page is one of the sources.

    In the page of a package it may begin inside of that package.
    """
    sources = {path.relative_to(root).as_posix() for root in ROOT.glob("packages/*/src") for path in root.rglob("*")}
    missing = []
    for page in (*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md"), *ROOT.glob("packages/*/README.md")):
        text, package = page.read_text(encoding="utf-8"), f"trt_{page.stem}"
        paths = re.findall(r"\b(trt_[a-z]+/[\w/]*(?:\.py|/)?)(?![\w<])", text)
        if package in sources:
            inside = re.findall(r"`((?!trt_)\w+/[\w/]+\.py)`", text)
            paths += [f"{package}/{path}" for path in inside if not (ROOT / path).exists()]
        missing += [f"{page.relative_to(ROOT)}: {path}" for path in paths if path.rstrip("/") not in sources]
    assert not missing, "\n".join(missing)


def test_design_pages_name_modules_that_exist() -> None:
    """`passes/cleanup` in a page is a module, or a folder, of a folder of that name."""
    paths = [path.relative_to(root) for root in ROOT.glob("packages/*/src") for path in root.rglob("*")]
    sources = [path.with_suffix("") for path in paths]
    known, folders = {"/".join(path.parts[-2:]) for path in sources}, {path.parent.name for path in sources} - {""}
    missing = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in ROOT.glob("docs/design/*.md")
        for name in re.findall(r"`(\w+/\w+)`", page.read_text(encoding="utf-8"))
        if name.partition("/")[0] in folders and name not in known
    ]
    assert not missing, "\n".join(missing)


OWN_LOCKS: Final = {
    "packages/trt-core/src/trt_core/forked_lock.py": "it is what all others have",
    "packages/trt-core/src/trt_core/internals.py": "PyTorch's own, which a forked process has anew",
    "packages/trt-core/src/trt_core/device.py": "held where a GPU is recorded, which no forked process may use",
    "packages/trt-portable/src/trt_portable/execution/launcher.py": "a forked process has it anew, with what it guards",
    "packages/trt-core/src/trt_core/cached_property.py": "it is the property without a lock",
    "packages/trt-runtime/src/trt_runtime/command_line/commands.py": "its threads begin and end in one function",
}
"""Modules that make locks of Python's own, and why."""

LOCKS: Final = re.compile(
    r"\bthreading\.(?:R?Lock|Condition|Event|Barrier|(?:Bounded)?Semaphore)\(|\bfunctools\b.*\bcached_property\b"
)


def test_no_forked_process_waits_for_a_thread_that_is_gone() -> None:
    """Locks are `ForkedLock`, and properties that are computed once have none."""
    sources = [name for name in _tracked() if name.startswith("packages/") and "/src/" in name and name.endswith(".py")]
    found = {name for name in sources if LOCKS.search((ROOT / name).read_text(encoding="utf-8"))}
    assert found == set(OWN_LOCKS)
