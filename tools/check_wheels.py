"""Builds every distribution, installs each wheel alone in a fresh environment, and runs its own tests there.

What is looked for is what a wheel lacks: modules, data, entry points, dependencies. So every module of the wheel is
imported, every entry point loaded, every file of its tests collected, and of each the first test runs, in its first
case; `--first-cases` runs the first case of every test. The suite has run all of them in the workspace's environment.
The tests are copied to a folder that holds no source tree, so that only what the wheel brings can be imported.
Arguments name the distributions to check; without any, all are.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
_UV = [sys.executable, "-m", "uv"]
_NO_TESTS_COLLECTED = 5


class CheckError(RuntimeError):
    """A step failed; the message holds the command and its output."""


def projects() -> dict[str, dict[str, Any]]:
    """Returns the `pyproject.toml` of every distribution, by the distribution's name."""
    return {
        path.parent.name: tomllib.loads(path.read_text(encoding="utf-8"))
        for path in sorted(ROOT.glob("packages/*/pyproject.toml"))
    }


def closure(name: str, known: dict[str, dict[str, Any]]) -> set[str]:
    """Returns a distribution and all of ours that it depends on, directly or not."""
    found = {name}
    for requirement in known[name]["project"]["dependencies"]:
        match = re.match(r"trt-[a-z]+", requirement)
        if match:
            found |= closure(match.group(), known)
    return found


def run(command: list[str], cwd: Path, expected: tuple[int, ...] = (0,)) -> str:
    """Runs a command and returns its output.

    Raises:
        CheckError: It exited with another status than expected.
    """
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        command, cwd=cwd, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    if done.returncode not in expected:
        raise CheckError(f"{' '.join(command)} exited with {done.returncode}\n{done.stdout}")
    return done.stdout


def build(work: Path) -> dict[str, Path]:
    """Builds every source distribution, and every wheel from it; returns the wheels by distribution name."""
    dist = work / "dist"
    run([*_UV, "build", "--all-packages", "--quiet", "--out-dir", str(dist)], ROOT)
    return {path.name.split("-")[0].replace("_", "-"): path for path in dist.glob("*.whl")}


def check(
    name: str, known: dict[str, dict[str, Any]], wheels: dict[str, Path], work: Path, chosen: str = "--first-tests"
) -> str:
    """Installs one wheel with what it needs, proves that nothing else of ours is there, and runs its tests.

    Args:
        name: Distribution.
        known: Every distribution's `pyproject.toml`.
        wheels: The wheel of every distribution.
        work: Folder for the environment and the tests.
        chosen: The option that says which tests run.

    Returns:
        The last line that pytest printed.

    Raises:
        CheckError: Installation, imports or tests failed.
    """
    home = work / name
    python = str(home / "env" / ("Scripts" if os.name == "nt" else "bin") / "python")
    _copy_tests(name, home)
    members = sorted(closure(name, known))
    constraints = work / "constraints.txt"
    run([*_UV, "venv", "--quiet", "--no-project", "--python", sys.executable, str(home / "env")], work)
    run(
        [*_UV, "pip", "install", "--quiet", "--python", python, "--constraint", str(constraints)]
        + [str(wheels[member]) for member in members]
        + ["--group", f"{home / 'packages' / name / 'pyproject.toml'}:test"],
        work,
    )
    _lend_bytecode(home / "env")
    present = [member.replace("-", "_") for member in members]
    absent = [other.replace("-", "_") for other in known if other not in members]
    run([python, "-c", _IMPORT_CHECK, " ".join(present), " ".join(absent), str(ROOT), name], home)
    command = [
        python,
        "-m",
        "pytest",
        "-q",
        "--maxfail=10",
        "-p",
        "no:cacheprovider",
        "-m",
        "not slow and not gpu",
        chosen,
    ]
    output = run([*command, f"packages/{name}/tests"], home, expected=(0, _NO_TESTS_COLLECTED))
    return output.strip().splitlines()[-1]


_LENT = ("torch", "sympy", "numpy", "transformers", "_pytest", "hypothesis")


def _lend_bytecode(environment: Path) -> None:
    """Copies bytecode of large packages from this environment, or each would compile PyTorch's sources anew.

    Python looks at the time and size of a source file, and compiles it itself where they differ.
    """
    source = Path(sysconfig.get_path("purelib"))
    for target in environment.glob("lib/python*/site-packages"):
        for cache in (cache for package in _LENT for cache in (source / package).rglob("__pycache__")):
            place = target / cache.relative_to(source)
            if place.parent.is_dir() and not place.exists():
                shutil.copytree(cache, place)


_IMPORT_CHECK = """
import importlib, importlib.metadata, importlib.util, pkgutil, sys
present, absent, tree, distribution = sys.argv[1].split(), sys.argv[2].split(), sys.argv[3], sys.argv[4]
for name in present:
    module = importlib.import_module(name)
    assert module.__file__ and not module.__file__.startswith(tree + "/packages"), module.__file__
for name in absent:
    assert importlib.util.find_spec(name) is None, f"{name} is importable and should not be"
package = importlib.import_module(distribution.replace("-", "_"))
for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    if not found.name.endswith("__main__"):  # which would run
        importlib.import_module(found.name)
for entry in importlib.metadata.distribution(distribution).entry_points:
    assert callable(entry.load()), entry
"""


def _copy_tests(name: str, home: Path) -> None:
    """Copies what the tests of one distribution need: themselves, pytest's configuration, and shared data."""
    target = home / "packages" / name
    ignored = shutil.ignore_patterns("__pycache__", ".hypothesis")
    shutil.copytree(ROOT / "packages" / name / "tests", target / "tests", ignore=ignored)
    shutil.copy(ROOT / "packages" / name / "pyproject.toml", target)
    for shared in ("pyproject.toml", "conftest.py"):
        shutil.copy(ROOT / shared, home)
    shutil.copytree(ROOT / "tests" / "support", home / "tests" / "support", ignore=ignored)
    if (ROOT / "tests" / "data").is_dir():
        shutil.copytree(ROOT / "tests" / "data", home / "tests" / "data")


def main(arguments: list[str] | None = None) -> int:
    """Checks the distributions, two at a time; returns the exit status."""
    known = projects()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="distributions to check")
    more = "run the first case of every test, and not only of the first test of every file"
    parser.add_argument("--first-cases", action="store_true", help=more)
    options = parser.parse_args(arguments)
    chosen = "--first-cases" if options.first_cases else "--first-tests"
    names: list[str] = options.names or list(known)
    if unknown := set(names) - set(known):
        parser.error(f"no such distribution: {', '.join(sorted(unknown))}")
    workspace = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    failed = False
    with tempfile.TemporaryDirectory(prefix="trt-wheels-") as folder:
        work = Path(folder)
        wheels = build(work)
        pins = workspace["tool"]["uv"]["constraint-dependencies"]
        (work / "constraints.txt").write_text("\n".join(pins), encoding="utf-8")

        def timed(name: str) -> tuple[bool, str]:
            start = time.monotonic()
            try:
                line = check(name, known, wheels, work, chosen)
            except (CheckError, OSError) as error:
                return False, f"{name}: FAILED\n{error}"
            return True, f"{name}: {line} ({time.monotonic() - start:.0f} s with installation)"

        with ThreadPoolExecutor(max_workers=min(os.cpu_count() or 1, 2)) as pool:
            for passed, message in pool.map(timed, names):
                failed = failed or not passed
                sys.stdout.write(message + "\n")
                sys.stdout.flush()
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
