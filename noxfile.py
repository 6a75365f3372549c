"""Development sessions. Run them through the workspace's environment: `uv run nox -s tests`.

Sessions without a Python version use the environment that `uv run` has made, so they start at once. The cells of the
test matrix and the wheels get fresh environments.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path

import nox
from nox.command import CommandFailed

nox.needs_version = ">=2025.2"
nox.options.default_venv_backend = "uv"
nox.options.error_on_external_run = False
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = True  # a cell that was skipped has proved nothing
nox.options.sessions = ["tests", "lint", "typecheck", "docs"]

ROOT = Path(__file__).parent
PACKAGES = sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
TORCHES = ("2.11", "2.13", "2.15")
NO_CELLS = {("3.10", "2.15")}  # PyTorch publishes no wheels for these
INSTRUCTION_SETS = {
    # each the highest that kernels of ATen, oneDNN and MKL may use, with the threads that compute
    "sse": ({"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"}, 1),
    "avx2": ({"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}, 2),
    "avx512": ({"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}, 1),
    "best": ({}, 2),
}
NUMERIC_TESTS = (
    "packages/trt-converters/tests",
    "packages/trt-portable/tests",
    *(f"packages/trt-frontends/tests/{name}" for name in ("accuracy", "precision", "quantization")),
)
TEST_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONDONTWRITEBYTECODE": "",  # where an image sets it, every process would compile PyTorch's sources anew
}


def require_workspace(session: nox.Session) -> None:
    """Stops a session that needs the workspace's environment and runs outside it."""
    if importlib.util.find_spec("trt_core") is None:
        session.error("the packages are not installed here: run `uv run nox` in place of `nox`")


def workers() -> list[str]:
    """Returns the pytest options that spread tests over the processors, at most four.

    There is one worker more than processors: a fifth of the suite's time is waiting, for processes that tests start.
    """
    count = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, 4)
    return ["-n", str(count + 1), "--dist", "worksteal"] if count > 1 else []


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """Run the test suite in the default cell: the workspace's environment.

    Arguments after `--` go to pytest. Other cells: `nox -s tests-3.10-torch2.11`; all of them: `nox -t matrix`, and
    `nox -t matrix -- quick` for the first case of every test.
    """
    require_workspace(session)
    arguments = session.posargs or ["-q", *workers()]
    session.run(sys.executable, "-m", "pytest", *arguments, env=TEST_ENVIRONMENT)


def add_cell(python: str, torch: str) -> None:
    """Adds the session that runs the test suite with one Python and one PyTorch release."""

    def cell(session: nox.Session) -> None:
        session.env.update(TEST_ENVIRONMENT)
        with session.chdir(tempfile.gettempdir()):  # away from the workspace, whose constraints pin the default cell
            session.install(
                *(argument for path in PACKAGES for argument in ("-e", str(path))),
                f"torch=={torch}.*",
                "torchvision>=0.26",
                "transformers",
                "--group",
                f"{ROOT / 'pyproject.toml'}:test",
            )
        quick = ["-q", *workers(), "--first-cases", "-m", "not slow and not gpu"]
        arguments = quick if session.posargs == ["quick"] else session.posargs
        session.run("python", "-m", "pytest", *(arguments or ["-q", *workers()]))

    cell.__doc__ = f"Run the test suite on Python {python} with PyTorch {torch}; `-- quick` runs first cases only."
    nox.session(name=f"tests-{python}-torch{torch}", python=python, tags=["matrix"], default=False)(cell)


for _python in PYTHONS:
    for _torch in TORCHES:
        if (_python, _torch) not in NO_CELLS:
            add_cell(_python, _torch)


@nox.session(venv_backend="none")
def wheels(session: nox.Session) -> None:
    """Build every wheel, install each alone without the source tree, and run the first test of each of its files."""
    session.run(sys.executable, "tools/check_wheels.py", *session.posargs, env=TEST_ENVIRONMENT)


@nox.session(venv_backend="none", default=False)
def release(session: nox.Session) -> None:
    """Build what would be published, and check it as a registry and a type checker would."""
    session.run(sys.executable, "tools/check_release.py")


@nox.session(venv_backend="none")
def lint(session: nox.Session) -> None:
    """Check formatting, style and the versions that are written in several places."""
    session.run(sys.executable, "-m", "ruff", "format", "--check", ".")
    session.run(sys.executable, "-m", "ruff", "check", ".")
    session.run(sys.executable, "tools/versions.py", "--check")


@nox.session(venv_backend="none")
def typecheck(session: nox.Session) -> None:
    """Check the types of every package and of the tools, strictly, and that wrong keywords of settings are found."""
    require_workspace(session)
    sources = [*(str(path / "src") for path in PACKAGES), "tests/typed", "tests/support/rank_programs.py"]
    session.run(sys.executable, "-m", "mypy", *sources, "tools", "noxfile.py", *session.posargs)


@nox.session(venv_backend="none")
def docs(session: nox.Session) -> None:
    """Build the documentation, with every warning an error, and run the examples in it."""
    require_workspace(session)
    output = ROOT / "docs" / "_build"
    shutil.rmtree(output, ignore_errors=True)
    for builder in ("html", "doctest"):
        session.run(
            sys.executable,
            *("-m", "sphinx", "-n", "-W", "--keep-going", "-q", "-b", builder),
            *("-d", str(output / "doctrees"), str(ROOT / "docs"), str(output / builder)),
            env=TEST_ENVIRONMENT,
        )


@nox.session(venv_backend="none", default=False)
def conformance(session: nox.Session) -> None:
    """Run every sample of PyTorch's operator database through the pipeline, and write the table of operators anew."""
    require_workspace(session)
    arguments = session.posargs or [
        *workers(),
        "--conformance-report",
        str(ROOT / "docs" / "data" / "conformance.json"),
    ]
    session.run(
        sys.executable,
        *("-m", "pytest", "tests/conformance", "-q", "-m", "conformance", *arguments),
        env=TEST_ENVIRONMENT,
    )


@nox.session(venv_backend="none", default=False)
def numerics(session: nox.Session) -> None:
    """Run the tests that compare numbers on every instruction set, in random order; `nox -s numerics -- SEED [OPTION]`.

    The seed is that of inputs, order and properties. Options go to pytest: `--first-cases` for the quick form.
    """
    require_workspace(session)
    seed, *options = session.posargs or ["1"]
    failed = []
    for name, (environment, threads) in INSTRUCTION_SETS.items():
        session.log(f"{name}: {threads} thread(s)")
        try:
            session.run(
                *(sys.executable, "-m", "pytest", "-q", *workers(), *NUMERIC_TESTS),
                *(f"--seed={seed}", f"--hypothesis-seed={seed}", f"--threads={threads}", *options),
                env={
                    **TEST_ENVIRONMENT,
                    **environment,
                    "OMP_NUM_THREADS": str(threads),
                    "HYPOTHESIS_PROFILE": "seeded",
                },
            )
        except CommandFailed:
            failed.append(name)  # the others say whether it is this instruction set, or the seed
    if failed:
        session.error(f"failed on {', '.join(failed)}")


@nox.session(venv_backend="none", default=False)
def zoo(session: nox.Session) -> None:
    """Run the model zoo, from where the last run stopped, and write its table anew; arguments after `--` go to it."""
    require_workspace(session)
    command = (sys.executable, "-m", "tools.zoo")
    session.run(*command, "run", "--jobs", workers()[1] if workers() else "1", *session.posargs, env=TEST_ENVIRONMENT)
    session.run(*command, "table", env=TEST_ENVIRONMENT)


@nox.session(venv_backend="none", default=False)
def fuzz(session: nox.Session) -> None:
    """Read 20,000 mutated programs and plans, and call operators wrongly; `nox -s fuzz -- SEED` begins elsewhere."""
    require_workspace(session)
    seed = session.posargs[0] if session.posargs else "1000000"
    environment = {**TEST_ENVIRONMENT, "TRT_FUZZ_MUTATIONS": "20000", "TRT_FUZZ_SEED": seed}
    tests = ("tests/test_fuzz.py", "packages/trt-runtime/tests/test_runtime_reviewed_operators.py")
    session.run(sys.executable, "-m", "pytest", "-q", *tests, env=environment)


@nox.session(venv_backend="none", default=False)
def programs(session: nox.Session) -> None:
    """Generate 500 small programs and hold torch.compile to aot_eager; `nox -s programs -- SEED COUNT` draws others."""
    require_workspace(session)
    seed, count = (*session.posargs, *("1", "500")[len(session.posargs) :])
    environment = {**TEST_ENVIRONMENT, "TRT_PROGRAMS": count, "HYPOTHESIS_PROFILE": "seeded"}
    tests = "tests/test_torch_compile_generated.py"
    session.run(sys.executable, "-m", "pytest", "-q", f"--hypothesis-seed={seed}", tests, env=environment)


@nox.session(venv_backend="none", default=False)
def stress(session: nox.Session) -> None:
    """Call, load, fork, compile, kill, write, read 100,000 forged plans; `nox -s stress -- 100 SEED --minutes 10`.

    The number is how many times as long as in the suite, 10 by default, the seed that of the plans; the minutes are
    those of mixed use by threads, 60 by default. Then all cases run of the tests of which the suite runs a sample, and
    properties are tried on all of their examples.
    """
    require_workspace(session)
    arguments = list(session.posargs)
    minutes = "60"
    if "--minutes" in arguments:
        at = arguments.index("--minutes")
        minutes = arguments[at + 1]
        del arguments[at : at + 2]
    factor, seed = (*arguments, *("10", "0")[len(arguments) :])
    environment = {
        **TEST_ENVIRONMENT,
        "TRT_STRESS": factor,
        "TRT_STRESS_MINUTES": minutes,
        "TRT_FUZZ_PLANS": "100000",
        "TRT_FUZZ_SEED": seed,
    }
    names = (
        "test_stress",
        "test_long_running",
        "test_hostile_corpus",
        "test_distributed",
        "test_ray",
        "test_hugging_face_page",
        "test_models_end_to_end",
        "test_torch_compile_models",
    )
    conformance = ("test_operator_counts", "test_first_samples")
    session.run(
        sys.executable,
        *("-m", "pytest", "-q"),
        *(f"tests/{name}.py" for name in (*names, *(f"conformance/{name}" for name in conformance))),
        *(
            f"packages/trt-portable/tests/test_portable_{name}.py"
            for name in ("decoding", "hostile_plans", "repetition")
        ),
        *(
            f"packages/trt-frontends/tests/{name}.py"
            for name in (
                *("test_frontends_bad_input", "test_frontends_diffusion", "test_frontends_generation"),
                *("test_frontends_generation_command", "test_frontends_halved_sizes", "test_frontends_pipelines"),
                *("test_frontends_open_sizes", "test_frontends_recurrent", "quantization/test_quantized_models"),
                "test_frontends_hugging_face",
            )
        ),
        "packages/trt-portable/tests/onnx_parser/test_onnx_backend.py",
        "packages/trt-lowering/tests/test_lowering_models.py",
        "packages/trt-partition/tests/test_make_plan.py",
        *(
            f"packages/trt-runtime/tests/test_runtime_{name}.py"
            for name in ("stress", "replacing", "engine_cache", "isolation", "reviewed_operators")
        ),
        env=environment,
    )
    session.run(sys.executable, "-m", "pytest", "-q", *workers(), "-m", "sampled or hypothesis", env=environment)


@nox.session(venv_backend="none", default=False)
def bench(session: nox.Session) -> None:
    """Run the benchmarks of `tools/bench`; arguments after `--` choose which."""
    require_workspace(session)
    session.run(sys.executable, "-m", "tools.bench", *session.posargs, env=TEST_ENVIRONMENT)


@nox.session(venv_backend="none", default=False)
def gpu(session: nox.Session) -> None:
    """Run the tests that need a CUDA device."""
    require_workspace(session)
    session.run(sys.executable, "-m", "pytest", "-m", "gpu", *session.posargs)
