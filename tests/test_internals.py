"""One seam a package to PyTorch's private parts: `internals.py` names them all, and each of them is there.

Where a new release of PyTorch moves something, the test that is named for it fails here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pytest
import torch
import torch.distributed as dist
from fresh_process import run_python
from torch import fx, nn
from torch.autograd import forward_ad, profiler

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCES: Final = {path.parent.name: path.parent for path in sorted(ROOT.glob("packages/*/src/*/internals.py"))}
"""Package to its sources; the command `trtc` takes nothing from PyTorch."""


def _fully_sharded() -> Any:
    """A module that `fully_shard` has wrapped, in a group of which this process is all."""
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
    try:
        return fully_shard(nn.Linear(2, 2))
    finally:
        dist.destroy_process_group()


def _trace() -> Any:
    proxy_tensor = torch.fx.experimental.proxy_tensor
    return proxy_tensor.ProxyTorchDispatchMode(proxy_tensor.PythonKeyTracer(), "real")


OBJECTS: Final[dict[str, Callable[[], Any]]] = {
    "_buffers": nn.Module,
    "_allow_fake_constant": _trace,
    "_autograd_grad": lambda: import_module("torch._functorch.eager_transforms"),
    "_build_proxy_for_sym_expr": lambda: torch.fx.experimental.proxy_tensor,
    "_cdata": lambda: torch.empty(1).untyped_storage(),
    "_comm_ptr": lambda: dist.ProcessGroupNCCL,
    "_check_frozen": lambda: import_module("torch.fx.experimental.symbolic_shapes").ShapeEnv(),
    "_codegen": fx.Graph,
    "_current_level": lambda: forward_ad,
    "_erased": lambda: fx.Graph().placeholder("x"),
    "_forward_hooks": nn.Module,
    "_forward_pre_hooks": nn.Module,
    "_fsdp_param_group": lambda: _fully_sharded()._get_fsdp_state(),
    "_error_on_data_dependent_ops": _trace,
    "_extract_symbolized_tb": lambda: import_module("torch.utils._traceback"),
    "_expr": lambda: import_module("torch.fx.experimental.symbolic_shapes").ShapeEnv().create_unbacked_symint().node,
    "_detect_is_causal_mask": lambda: torch.nn.modules.transformer,
    "_get_fsdp_state": _fully_sharded,
    "_get_backend": lambda: dist.ProcessGroup,
    "_get_name": nn.Module,
    "_guards_code": lambda: torch.export.export(nn.ReLU(), (torch.ones(2),)),
    "_is_compiling_flag": lambda: torch.compiler,
    "_simplify_with_ranges": lambda: import_module("torch._inductor.sizevars").SizeVarAllocator,
    "_is_profiler_enabled": lambda: profiler,
    "_modules": nn.Module,
    "_mp_policy": lambda: _fully_sharded()._get_fsdp_state(),
    "_op_dk": lambda: torch.ops.aten.relu.default,
    "_op_dispatcher": lambda: torch.distributed.tensor.DTensor,
    "_orig_mod": lambda: torch.compile(nn.ReLU()),
    "_compute_local_shape_and_global_offset": lambda: import_module("torch.distributed.tensor._utils"),
    "_dispatch_cache": lambda: torch.ops.aten.relu.default,
    "_overloadname": lambda: torch.ops.aten.relu.default,
    "_parameters": nn.Module,
    "_schema": lambda: torch.ops.aten.relu.default,
    "_sym_register": lambda: torch.fx.experimental.proxy_tensor,
    "_temp_remove_pre_dispatch_torch_function_mode": lambda: torch.fx.experimental.proxy_tensor,
    "_timeout": lambda: import_module("torch._C._distributed_c10d").Backend.Options,
}
"""What has each private attribute that our packages read."""

LACKING: Final = frozenset() if dist.is_nccl_available() else frozenset({"_comm_ptr"})
"""What builds of PyTorch without NCCL do not have."""


def taken(source: str) -> Iterator[tuple[str, str, str]]:
    """Yields (module, name there, name here) of what an `internals.py` takes from PyTorch's modules."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("torch."):
            yield from ((node.module, alias.name, alias.asname or alias.name) for alias in node.names)


TAKEN: Final = [
    (package, *name)
    for package, folder in SOURCES.items()
    for name in taken((folder / "internals.py").read_text(encoding="utf-8"))
]


@pytest.mark.parametrize(("package", "home", "there", "here"), TAKEN, ids=lambda text: text)
def test_pytorch_has_what_a_package_takes(package: str, home: str, there: str, here: str) -> None:
    """Asked without the packages, whose import ends at the first name that is gone."""
    assert hasattr(__import__(home, fromlist=(there,)), there), f"{package}/internals.py takes {there} from {home}"


@pytest.mark.parametrize("package", SOURCES)
def test_what_a_package_takes_is_where_it_says(package: str) -> None:
    internals = import_module(f"{package}.internals")
    for _, home, there, here in (name for name in TAKEN if name[0] == package):
        assert getattr(internals, here) is getattr(import_module(home), there), here


@pytest.mark.parametrize("package", SOURCES)
def test_the_table_of_a_package_is_what_it_takes(package: str) -> None:
    source = (SOURCES[package] / "internals.py").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(torch[\w.]*)` \|", ast.get_docstring(ast.parse(source)) or "", flags=re.MULTILINE)
    private = ("._", ".experimental")
    homes = {home if any(part in home for part in private) else f"{home}.{there}" for home, there, _ in taken(source)}
    assert rows == sorted(homes | ({"torch._C"} & set(rows)))  # some builds of PyTorch lack parts of this one


@pytest.mark.parametrize("package", SOURCES)
def test_what_is_imported_late_is_what_type_checkers_see(package: str) -> None:
    source = (SOURCES[package] / "internals.py").read_text(encoding="utf-8")
    for_checkers = (node for node in ast.parse(source).body if isinstance(node, ast.If))
    seen = {here: (home, there) for node in for_checkers for home, there, here in taken(ast.unparse(node))}
    late = getattr(import_module(f"{package}.internals"), "LATE", {})
    told = "\n".join(f"from {home} import {names}" for home, names in late.items())
    assert seen == {here: (home, there) for home, there, here in taken(told)}


@pytest.mark.parametrize("package", SOURCES)
def test_private_attributes_are_there(package: str) -> None:
    missing = [
        name
        for name in getattr(import_module(f"{package}.internals"), "ATTRIBUTES", {})
        if name not in LACKING and not hasattr(OBJECTS[name](), name)
    ]
    assert not missing


def test_costly_parts_are_imported_at_first_use() -> None:
    script = f"""
import sys
from importlib import import_module
for package in {sorted(SOURCES)}:
    import_module(package + ".internals")
assert not [name for name in ("sympy", "torch._dynamo", "torch._inductor") if name in sys.modules]
"""
    done = run_python(script, bare=True)
    assert done.returncode == 0, done.stderr


def test_the_newest_release_that_is_tested_is_the_last_one_of_the_matrix() -> None:
    from trt_core.internals import NEWEST_TORCH

    listed = re.search(r"^TORCHES = (.*)$", (ROOT / "noxfile.py").read_text(), re.MULTILINE)
    assert listed is not None
    assert ast.literal_eval(listed.group(1))[-1] == ".".join(map(str, NEWEST_TORCH))
