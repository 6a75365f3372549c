"""Files that are sealed again and lie: of signatures, of ranks, of generators, of inputs, and programs that loop.

Each function yields names and acts; `hostile_corpus` runs them. An act ends, or raises an error of the project; all
else is harm, an assertion that fails among it.
"""

from __future__ import annotations

import atexit
import copy
import functools
import hashlib
import io
import itertools
import json
import os
import pickle
import shutil
import struct
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from guarded_memory import guarded
from program_files import ProgramFile

from trt_core import TrtError
from trt_core.dtypes import dtype_name
from trt_runtime import load, sharded, signatures
from trt_runtime.command_line import main
from trt_runtime.command_line.tensor_files import read_tensors
from trt_runtime.generation import GenerationLimits, TextGenerator
from trt_runtime.generation.limits import METADATA
from trt_runtime.program.fields import DTYPES
from trt_runtime.program.loading import program_from_memory
from trt_runtime.program_file import PROGRAM, SectionKind, read_sections

Act = Callable[[], object]
NO_FIELDS: Final = ([], {}, "x", 1, None, True, [[1]], [None], {"a": 1}, "a" * 100_000)
NUMBERS: Final = (-(1 << 63), -(1 << 31) - 1, -1, 0, 1, 2, 3, 7, 700, 1 << 31, 1 << 40, (1 << 63) - 1)


@functools.cache
def folder() -> Path:
    """A folder of this process."""
    made = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    os.environ["TRT_KEY_DIR"] = str(made / "keys")
    return made


def tensor_type(dtype: torch.dtype, *shape: Any) -> dict[str, Any]:
    """What a program declares of a tensor."""
    return {"tensor": dtype_name(dtype), "shape": list(shape)}


def operator(name: str, args: list[Any], result: Any, overload: str = "") -> dict[str, Any]:
    """A step that calls one."""
    base, _, more = name.partition(".")
    return {
        "do": "operator",
        "name": f"aten::{base}",
        "overload": overload or more,
        "args": args,
        "kwargs": {},
        "result": result,
    }


def value(number: int) -> dict[str, int]:
    """One of the values so far."""
    return {"value": number}


def program(
    given: list[tuple[torch.dtype, tuple[int, ...]]],
    steps: list[dict[str, Any]],
    output: Any,
    held: dict[str, torch.Tensor] | None = None,
    metadata: dict[str, str] | None = None,
    names: tuple[str, ...] = (),
) -> ProgramFile:
    """A program of operators; extents below 0 vary, from 1 to so many."""
    symbols: dict[str, list[int]] = {}
    leaves = []
    for at, (dtype, shape) in enumerate(given):
        extents: list[list[Any]] = []
        for axis, extent in enumerate(shape):
            if extent >= 0:
                extents.append([extent] * 3)
                continue
            name = f"s{at}_{axis}"
            symbols[name] = [1, 1, -extent]
            extents.append([name, 1, -extent])
        leaves.append({"tensor": dtype_name(dtype), "shape": extents, "device": "cpu"})
    names = names or tuple(f"x{at}" for at in range(len(given)))
    weights, tensors, storages = b"", [], []
    for name, tensor in (held or {}).items():
        weights += bytes(-len(weights) % 64)
        content = bytes(tensor.contiguous().view(torch.uint8).reshape(-1).tolist())
        storages.append([len(weights), len(content)])
        tensors.append(
            {
                "names": [name],
                "parameter": False,
                "dtype": dtype_name(tensor.dtype),
                "storage": len(storages) - 1,
                "offset": 0,
                "shape": list(tensor.shape),
                "strides": list(tensor.contiguous().stride()),
                "device": "cpu",
            }
        )
        weights += content
    graph = {
        "torch_version": torch.__version__,
        "writer_version": "0.1.0",
        "libraries": [],
        "symbols": symbols,
        "profiles": [],
        "signature": {
            "names": list(names),
            "positional": len(given),
            "structure": [value(at) for at in range(len(given))],
            "leaves": leaves,
            "conditions": [],
        },
        "storages": storages,
        "tensors": tensors,
        "engines": [],
        "steps": steps,
        "output": output,
        "refit": None,
        "metadata": metadata or {},
    }
    return ProgramFile(graph, weights, [], [])


def of_rows(least: int, usual: int, most: int) -> ProgramFile:
    """A program of rows of four numbers, which says how many it takes."""
    parts = program(
        [(torch.float32, (-4, 4))], [operator("relu", [value(0)], tensor_type(torch.float32, "s0_0", 4))], value(1)
    )
    parts.graph["symbols"] = {"s0_0": [least, usual, most]}
    parts.graph["signature"]["leaves"][0]["shape"][0] = ["s0_0", least, most]
    return parts


def run(parts: ProgramFile, *inputs: torch.Tensor) -> None:
    """Loads a program and calls it twice."""
    module = program_from_memory(bytearray(parts.to_bytes()))
    operands = [guarded(tensor) for tensor in inputs]
    for _ in range(2):
        module(*operands)


def soil(filler: int) -> None:
    """Leaves memory behind that was written to, for whatever is made without being written."""
    for size in (16, 64, 256, 1024, 4096, 65536):
        [torch.full((size,), filler, dtype=torch.uint8) for _ in range(8)]


def bytes_of(result: Any) -> list[bytes]:
    """What tensors of a result hold, of those that are not large."""
    leaves = torch.utils._pytree.tree_leaves(result)
    return [
        bytes(leaf.detach().resolve_conj().resolve_neg().reshape(-1).clone().view(torch.uint8).tolist())
        if leaf.numel() > 1
        else repr(leaf).encode()
        for leaf in leaves
        if isinstance(leaf, torch.Tensor) and leaf.numel() < 1 << 16
    ]


# Branches and loops -------------------------------------------------------------------------------------------------

_ROW: Final = tensor_type(torch.float32, 4)
_COUNT: Final = tensor_type(torch.int64)
_LOOSE: Final = tensor_type(torch.float32, None)


def loops() -> Iterator[tuple[str, Act]]:
    """Programs whose branches and loops grow, never end, lie inside of one another, or carry what they do not say."""
    for name, steps in _loops().items():
        for end, output in {"what it makes": value(len(steps)), "nothing": {"tuple": []}}.items():
            parts = program([(torch.float32, (4,))], steps, output)
            yield f"{name}, returns {end}", functools.partial(run, parts, torch.arange(4.0))


def _while(body: list[Any], made: list[Any], carried: list[Any], types: list[Any], until: Any = True) -> dict[str, Any]:
    goes_on = {"inputs": types, "steps": [], "output": [until]}
    turn = {"inputs": types, "steps": body, "output": made}
    return {
        "do": "control_flow",
        "operator": "while_loop",
        "bodies": [goes_on, turn],
        "operands": [carried, []],
        "result": types,
    }


def _loops() -> dict[str, list[dict[str, Any]]]:
    x, one = value(0), value(1)
    found: dict[str, list[dict[str, Any]]] = {"endless": [_while([], [x], [x], [_ROW])]}
    for function in (
        "add",
        "mul",
        "pow",
        "lshift",
        "sub",
        "truediv",
        "floordiv",
        "mod",
        "neg",
        "float",
        "round",
        "choose",
    ):
        for start in (3, -7, 0, (1 << 62) - 1, True, 1.5, 1e308):
            kind = type(start).__name__
            count = {"neg": 1, "float": 1, "choose": 3}.get(function, 2)
            step = {"do": "number", "function": function, "args": [value(0)] * count}
            found[f"numbers: {function} of {start}"] = [_while([step], [one], [start], [kind])]
            if type(start) is int and start in (0, 3):
                made = operator("full", [[one], 1.0], _LOOSE)
                found[f"numbers: {function} of {start}, as a size"] = [_while([step, made], [one], [start], [kind])]
    doubled = operator("cat", [[x, x]], _LOOSE)
    found["a state that doubles"] = [_while([doubled], [one], [x], [_LOOSE])]
    found["a state that doubles, and says a size"] = [_while([doubled], [one], [x], [_ROW])]
    viewed = operator("expand", [x, [1 << 20, 4]], tensor_type(torch.float32, 1 << 20, 4))
    found["views that are carried"] = [_while([viewed], [one], [x], [_LOOSE])]
    for until in (0.5, -1, float(1 << 60), 0, 1, False, value(0)):
        found[f"until {until}"] = [_while([], [x], [x], [_ROW], until)]
    for depth in (2, 5, 12, 24):
        step = _while([], [x], [x], [_ROW])
        for _ in range(depth):
            step = _while([copy.deepcopy(step), {"do": "item", "sequence": 1, "index": 0}], [value(2)], [x], [_ROW])
        found[f"{depth} loops in a loop"] = [step]
        branch: dict[str, Any] = {"inputs": [_ROW], "steps": [], "output": [x]}
        for _ in range(depth):
            chosen = {
                "do": "control_flow",
                "operator": "cond",
                "bodies": [branch, branch],
                "operands": [[True], [x]],
                "result": [_ROW],
            }
            branch = {
                "inputs": [_ROW],
                "steps": [chosen, {"do": "item", "sequence": 1, "index": 0}],
                "output": [value(2)],
            }
            if depth > 12:
                branch["steps"][0]["bodies"] = [
                    branch["steps"][0]["bodies"][0],
                    {"inputs": [_ROW], "steps": [], "output": [x]},
                ]
            if depth == 12 and len(json.dumps(branch)) > 1 << 20:
                break
        found[f"branches {depth} deep"] = [{**chosen, "bodies": [branch, branch]}]
    for kind in ("map", "scan"):
        lists: list[list[Any]] = [[x], []] if kind == "map" else [[], [x], []]
        for rows in (0, 1, 1 << 10, 1 << 20, 1 << 40):
            wide = operator("expand", [x, [rows, 4]], tensor_type(torch.float32, rows, 4))
            over = [[one], []] if kind == "map" else [[], [one], []]
            body = {"inputs": [_ROW], "steps": [], "output": [x]}
            made = [tensor_type(torch.float32, None, 4)]
            call = {"do": "control_flow", "operator": kind, "bodies": [body], "operands": over, "result": made}
            found[f"{kind} over {rows} rows"] = [wide, call]
            large = operator("expand", [x, [1 << 14, 4]], tensor_type(torch.float32, 1 << 14, 4))
            grown = {"inputs": [_ROW], "steps": [large], "output": [one]}
            shown = [tensor_type(torch.float32, None, None, None)]
            found[f"{kind} over {rows} rows that grow"] = [wide, {**call, "bodies": [grown], "result": shown}]
        for output in (1, 1.5, True, value(0)):
            body = {"inputs": [tensor_type(torch.float32)], "steps": [], "output": [output]}
            for result in ("int", "float", _LOOSE, tensor_type(torch.int64, None)):
                call = {"do": "control_flow", "operator": kind, "bodies": [body], "operands": lists, "result": [result]}
                found[f"{kind} makes {output} for {result}"] = [call]
    for predicate in (0.0, 1e300, -1, (1 << 63) - 1, True, value(0)):
        for operands, types in (([x], [_ROW]), ([7], ["int"]), ([7.5], [_ROW]), ([x], ["float"]), ([True], ["int"])):
            body = {"inputs": types, "steps": [], "output": [x]}
            call = {
                "do": "control_flow",
                "operator": "cond",
                "bodies": [body, body],
                "operands": [[predicate], operands],
                "result": types,
            }
            found[f"cond by {predicate} of {operands} as {types}"] = [call]
    for name, args in {
        "full": [[value(2)], 1.0],
        "repeat": [x, [value(2)]],
        "narrow": [x, 0, 0, value(2)],
        "select.int": [x, 0, value(2)],
        "slice.Tensor": [x, 0, value(2)],
        "arange": [value(2)],
        "split.Tensor": [x, value(2)],
    }.items():
        for grow in ("mul", "add"):
            step = {"do": "number", "function": grow, "args": [x, 3]}
            inner = [
                step,
                operator(
                    name,
                    [{"value": 2} if item == value(2) else (value(1) if item == x else item) for item in args],
                    _LOOSE,
                ),
            ]
            found[f"{name} by a number that grows: {grow}"] = [
                _while(inner, [value(2), value(1)], [1, x], ["int", _LOOSE])
            ]
    return found


def numbers_from_data() -> Iterator[tuple[str, Act]]:
    """Programs whose sizes are read from tensors: small in the first call, and others in the next ones."""
    sized: dict[str, tuple[list[Any], Any]] = {
        "full": ([[value(1)], 1.0], _LOOSE),
        "full, told": ([[value(1)], 1.0], _ROW),
        "arange": ([value(1)], tensor_type(torch.int64, None)),
        "zeros": ([[value(1), value(1)]], tensor_type(torch.float32, None, None)),
        "eye": ([value(1)], tensor_type(torch.float32, None, None)),
        "tril_indices": ([value(1), value(1)], tensor_type(torch.int64, 2, None)),
        "hann_window": ([value(1)], _LOOSE),
        "linspace": ([0.0, 1.0, value(1)], _LOOSE),
        "linspace, told": ([0.0, 1.0, value(1)], _ROW),
    }
    for (name, (args, result)), number, more in itertools.product(sized.items(), NUMBERS, (False, True)):
        read = operator("_local_scalar_dense", [value(0)], "int")
        made = operator(name.partition(",")[0], args, result)
        steps = [read, made]
        if more:
            steps.append(operator("add.Tensor", [value(2), value(2)], result))
        parts = program([(torch.int64, ())], steps, value(len(steps)))
        yield (
            f"{name} of {number} after 4{', added up' if more else ''}",
            functools.partial(_in_turn, parts, [4, 4, number, number]),
        )


def _in_turn(parts: ProgramFile, numbers: list[int]) -> None:
    module = program_from_memory(bytearray(parts.to_bytes()))
    for number in numbers:
        module(guarded(torch.tensor(number)))


# Signatures ---------------------------------------------------------------------------------------------------------

_ORDER: Final = (1 << 252) + 27742317777372353535851937790883648493
"""How many signatures there would be of one message, if they were not reduced."""

_PRIME: Final = (1 << 255) - 19


@functools.cache
def _signed() -> tuple[bytes, list[tuple[int, bytes]], bytes]:
    """A signed program of this user with a tensor: its bytes, its sections and its signature."""
    path = folder() / "signed.trtp"
    path.write_bytes(_plain().to_bytes())
    signatures.sign(path)
    content = path.read_bytes()
    data = memoryview(content)
    found = [(int(section.kind), bytes(section.of(data))) for section in read_sections(data)]
    return content, found[:-1], found[-1][1]


def _plain() -> ProgramFile:
    steps = [operator("add.Tensor", [value(0), value(1)], _ROW)]
    return program([(torch.float32, (4,))], steps, value(2), {"w": torch.ones(4)})


def sealed(sections: list[tuple[int, bytes]]) -> bytes:
    """A file of sections with right checksums."""
    file = io.BytesIO()
    PROGRAM.write(file, [(SectionKind(kind), [content]) for kind, content in sections])
    return file.getvalue()


def forged_signatures() -> Iterator[tuple[str, Act]]:
    """Signatures that nobody made: cut, twice, of other keys, of small order, not reduced, and of other sections."""
    _, parts, signature = _signed()
    magic, key, seal = signature[:8], signature[8:40], signature[40:]
    own, told = SectionKind.SIGNATURE, b"".join(content for _, content in parts)

    def case(name: str, *more: tuple[int, bytes], of: list[tuple[int, bytes]] | None = None) -> tuple[str, Act]:
        return name, functools.partial(_is_no_signature, (*(parts if of is None else of), *more))

    for length in range(0, len(signature), 3):
        yield case(f"cut off after {length} bytes", (own, signature[:length]))
        yield case(f"{length} bytes more", (own, signature + bytes(length + 1)))
    for bit in range(0, len(signature) * 8, 5):
        flipped = bytearray(signature)
        flipped[bit // 8] ^= 1 << bit % 8
        yield case(f"bit {bit} is another one", (own, bytes(flipped)))
    for others in ([(own, signature)], [(own, bytes(104))], [(own, b"")]):
        yield case(f"two, the last of {len(others[0][1])} bytes {others[0][1][:2]!r}", (own, signature), *others)
        yield case(f"two, the first of {len(others[0][1])} bytes {others[0][1][:2]!r}", *others, (own, signature))
    for name, of in {
        "in front": [(own, signature), *parts],
        "in front and behind": [(own, signature), *parts, (own, signature)],
    }.items():
        yield case(name, of=of)
    for scheme in (
        b"ED25519 ",
        b"ed25519\n",
        b"RSA-SHA\n",
        b"HMACSHA2",
        b"NONE\0\0\0\0",
        bytes(8),
        b"ED448\n\0\0",
        b"SHA256\n\0",
    ):
        yield case(f"by {scheme!r}", (own, scheme + key + seal))
        yield case(f"by {scheme!r}, the digest", (own, scheme + key + hashlib.sha512(told).digest()))
    large = int.from_bytes(seal[32:], "little")
    for turn in range(1, 16):
        if large + turn * _ORDER < 1 << 256:
            other = (large + turn * _ORDER).to_bytes(32, "little")
            yield case(f"not reduced, {turn}", (own, magic + key + seal[:32] + other))
    for at, point in enumerate(_small_points()):
        for other in (bytes(32), seal[32:], (1).to_bytes(32, "little")):
            for first in (point, key, bytes([1]) + bytes(31)):
                yield case(f"small order {at}, {other[:2]!r}, {first[:2]!r}", (own, magic + point + first + other))
                yield case(f"small R {at}, {other[:2]!r}, {first[:2]!r}", (own, magic + key + point + other))
    for at, (kind, content) in enumerate(parts):
        for name, changed in {
            "cut": content[:-1],
            "longer": content + b"\0",
            "another": bytes([content[0] ^ 1]) + content[1:],
            "nothing": b"",
        }.items():
            yield case(f"section {at} is {name}", (own, signature), of=[*parts[:at], (kind, changed), *parts[at + 1 :]])
        yield case(f"section {at} is gone", (own, signature), of=[*parts[:at], *parts[at + 1 :]])
        yield case(f"section {at} twice", (own, signature), of=[*parts[: at + 1], *parts[at:]])
        for other in SectionKind:
            if other not in (kind, own):
                yield case(
                    f"section {at} is of kind {other.name}",
                    (own, signature),
                    of=[*parts[:at], (other, content), *parts[at + 1 :]],
                )
                yield case(
                    f"{other.name} behind section {at}",
                    (own, signature),
                    of=[*parts[: at + 1], (other, content), *parts[at + 1 :]],
                )
    yield case("sections in another order", (own, signature), of=parts[::-1])
    joined = [(parts[0][0], parts[0][1] + parts[1][1]), (parts[1][0], b"")]
    yield case("what is one section, and the rest of it nothing", (own, signature), of=joined)
    yield case("nothing else", (own, signature), of=[])
    inner = sealed([*parts, (own, signature)])
    yield case("around a signed program", (own, signature), of=[*parts, (SectionKind.PROGRAM, inner)])
    yield case("inside alone", of=[*parts, (SectionKind.PROGRAM, inner)])


def _small_points() -> list[bytes]:
    """Points of small order, in every way to write them."""
    found = []
    for y in (0, 1, _PRIME - 1, _PRIME, _PRIME + 1):
        found += [(y | sign << 255).to_bytes(32, "little") for sign in (0, 1)]
    eighth = 2707385501144840649318225287225658788936804267575313519463743609750303021022
    for y in (eighth, _PRIME - eighth):
        found += [(y | sign << 255).to_bytes(32, "little") for sign in (0, 1)]
    return found


def _is_no_signature(sections: tuple[tuple[int, bytes], ...]) -> None:
    """Loads a file; whoever says that it is this user's is wrong."""
    content = sealed(list(sections))
    path = folder() / "forged.trtp"
    path.write_bytes(content)
    data = memoryview(content)
    found = read_sections(data)
    *rest, last = found
    if last.kind is SectionKind.SIGNATURE:
        try:
            for key in {str(signatures.signer(path)), str(signatures.own_public_key())}:
                told = folder() / "key"
                told.write_text(f"{key}\n", encoding="utf-8")
                assert signatures.why_not_trusted(data, rest, last, [told]), "a signature that nobody made"
        except TrtError:
            pass
        try:
            signatures.verified_signer(path)
        except TrtError:
            pass
        else:
            raise AssertionError("a signature that nobody made")
    load(path)(torch.ones(4))


# Folders of ranks ---------------------------------------------------------------------------------------------------


def forged_manifests() -> Iterator[tuple[str, Act]]:
    """Manifests that name other files, other ranks and other sizes, and files that are none."""
    content = _plain().to_bytes()
    honest: dict[str, Any] = {
        "format": 1,
        "world_size": 1,
        "mesh": {"shape": [1], "names": ["tp"], "ranks": [0]},
        "groups": {"0": [0]},
        "programs": [
            {
                "file": "rank-0.trtp",
                "bytes": len(content),
                "sha256": hashlib.sha256(content).hexdigest(),
                "collectives": [],
            }
        ],
    }
    yield "honest", functools.partial(_load_folder, json.dumps(honest))
    changes: list[tuple[str, dict[str, Any]]] = []
    for key in honest:
        changes += [(f"{key} is {other!r:.40}", {**honest, key: other}) for other in (*NO_FIELDS, *NUMBERS)]
        changes.append((f"{key} is missing", {name: other for name, other in honest.items() if name != key}))
    (told,) = honest["programs"]
    for key in told:
        for other in (*NO_FIELDS, *NUMBERS):
            changes.append((f"{key} of a program is {other!r:.40}", {**honest, "programs": [{**told, key: other}]}))
    for file in (
        *(
            "../rank-0.trtp",
            "/etc/passwd",
            "rank-0.trtp/../../x",
            "rank-00.trtp",
            "rank-1.trtp",
            "rank-0.trtp\0",
            "./rank-0.trtp",
        ),
        *(
            "rank-0.trtp\n",
            "rank-\u0660.trtp",
            "RANK-0.TRTP",
            "rank-.trtp",
            "rank--1.trtp",
            "manifest.json",
            "",
            ".",
            "..",
            "rank-0",
        ),
        *("link", "pipe", "folder", "rank-2.trtp", "rank-3.trtp", "rank-4.trtp", "rank-5.trtp", "rank-999999999.trtp"),
    ):
        changes.append((f"the file is {file!r}", {**honest, "programs": [{**told, "file": file}]}))
    for digest in ("", "0" * 64, told["sha256"].upper(), told["sha256"][:-1], told["sha256"] + "0", "é" * 64):
        changes.append(
            (f"the digest is {digest[:8]!r} of {len(digest)}", {**honest, "programs": [{**told, "sha256": digest}]})
        )
    for size in NUMBERS:
        changes.append((f"it has {size} bytes", {**honest, "programs": [{**told, "bytes": size}]}))
    for ranks in (
        [0],
        [1],
        [-1],
        [0, 0],
        [0, 1],
        [],
        list(range(10_000)),
        [1 << 40],
        [0] * 300_000,
        [1 << 62] * 300_000,
    ):
        changes.append((f"groups {ranks!r:.40}", {**honest, "groups": {"0": ranks, "x" * 5000: ranks}}))
        changes.append(
            (f"collectives of {ranks!r:.40}", {**honest, "programs": [{**told, "collectives": [[ranks, "0" * 64]]}]})
        )
        changes.append(
            (f"a mesh of ranks {ranks!r:.40}", {**honest, "mesh": {"shape": [1], "names": [], "ranks": ranks}})
        )
        changes.append(
            (f"a mesh of shape {ranks!r:.40}", {**honest, "mesh": {"shape": ranks, "names": [], "ranks": [0]}})
        )
    for world in (2, 1000, 1 << 31):
        changes.append((f"{world} ranks", {**honest, "world_size": world, "programs": [told] * min(world, 1000)}))
    changes.append(("two programs", {**honest, "programs": [told, told]}))
    changes.append(("many groups", {**honest, "groups": {str(number): [0] for number in range(100_000)}}))
    for name, manifest in changes:
        yield name, functools.partial(_load_folder, json.dumps(manifest))
    for name, text in {
        "nothing": "",
        "depth": "[" * 100_000 + "]" * 100_000,
        "a key twice": '{"format":1,"format":1}',
        "numbers": "[" + "9" * 100_000 + "]",
        "half of a character": '{"format":"\\ud800"}',
        "NaN": '{"format":NaN}',
    }.items():
        yield f"the manifest is {name}", functools.partial(_load_folder, text)


def _load_folder(manifest: str) -> None:
    """Loads a folder beside which lie a pipe, links and files of others."""
    where = folder() / "ranks"
    if not where.exists():
        where.mkdir()
        content = _plain().to_bytes()
        (where / "rank-0.trtp").write_bytes(content)
        (folder() / "other.trtp").write_bytes(content)
        (where / "link").symlink_to("../other.trtp")
        (where / "rank-2.trtp").symlink_to("../other.trtp")
        (where / "rank-3.trtp").symlink_to("rank-3.trtp")
        (where / "rank-4.trtp").mkdir()
        os.mkfifo(where / "rank-5.trtp")
        os.mkfifo(where / "pipe")
        (where / "folder").mkdir()
    (where / sharded.MANIFEST).write_text(manifest, encoding="utf-8", errors="surrogatepass")
    module = load(where)
    module(torch.ones(4))


# Generators ---------------------------------------------------------------------------------------------------------

_WORDS: Final = 16


def _step(logits: list[dict[str, Any]] | None = None, **changes: Any) -> ProgramFile:
    """A step that likes the token after the last one, and keeps its number in a cache."""
    rows, room, piece = (changes.get(name, least) for name, least in (("rows", 2), ("room", 16), ("piece", 4)))
    words = changes.get("words", _WORDS)
    liked = torch.eye(_WORDS).roll(1, 1)[:, :1].expand(-1, words) if words != _WORDS else torch.eye(_WORDS).roll(1, 1)
    given = [(torch.int64, (rows, -piece)), (torch.int64, (1,)), (torch.int64, (rows,))]
    last = operator("select.int", [value(0), 1, -1], tensor_type(torch.int64, rows))
    steps = [
        last,
        operator("embedding", [value(3), value(5)], tensor_type(torch.float32, rows, words)),
        operator("add.Scalar", [value(4), 1.0], tensor_type(torch.float32, rows, 1, room, 4)),
        {"do": "write", "target": 4, "source": 7},
        *(logits or []),
    ]
    held = {"liked": liked.contiguous(), "cache": changes.get("cache", torch.zeros(rows, 1, room, 4))}
    output = changes.get("output", value(6) if not logits else value(4 + len(steps)))
    metadata = {METADATA: changes.get("limits", GenerationLimits(2, 16, 4, (3,)).to_text())}
    return program(given, steps, output, held, metadata, ("input_ids", "start", "padding"))


def _step_with(limits: dict[str, Any], cache: torch.Tensor, context: Sequence[torch.Tensor] = ()) -> ProgramFile:
    """A step that keeps what it has of a cache of any type, and is given what an encoder makes, too."""
    liked = torch.eye(_WORDS).roll(1, 1)
    told = [(torch.int64, (-4,))] if limits["assisted_tokens"] > 1 else []
    given = [(torch.int64, (2, -4)), (torch.int64, (1,)), (torch.int64, (2,)), *told]
    given += [(one.dtype, tuple(one.shape)) for one in context]
    held, first = len(given), len(given) + 2
    steps = [
        operator("select.int", [value(0), 1, -1], tensor_type(torch.int64, 2)),
        operator("embedding", [value(held), value(first)], tensor_type(torch.float32, 2, _WORDS)),
        operator("clone", [value(held + 1)], tensor_type(cache.dtype, *cache.shape)),
        {"do": "write", "target": held + 1, "source": first + 2},
        operator("unsqueeze", [value(first + 1), 1], tensor_type(torch.float32, 2, 1, _WORDS)),
    ]
    output = value(first + 4 if told else first + 1)
    tensors, metadata = {"liked": liked.contiguous(), "cache": cache}, {METADATA: json.dumps(limits)}
    return program(given, steps, output, tensors, metadata, tuple(f"x{at}" for at in range(len(given))))


def _encoder(made: Sequence[torch.Tensor], given: list[tuple[torch.dtype, tuple[int, ...]]]) -> bytes:
    """What returns copies of tensors that it holds; a scalar is the sum of one."""
    held = {f"held{at}": one if one.dim() else one.reshape(1) for at, one in enumerate(made)}
    steps = [
        operator("clone" if one.dim() else "sum", [value(len(given) + at)], tensor_type(one.dtype, *one.shape))
        for at, one in enumerate(made)
    ]
    first = len(given) + len(made)
    return program(given, steps, {"tuple": [value(first + at) for at in range(len(made))]}, held).to_bytes()


def forged_generators() -> Iterator[tuple[str, Act]]:
    """Generators whose limits, caches and logits are others than those of the step in the file."""
    plain = json.loads(GenerationLimits(2, 16, 4, (3,)).to_text())
    files: dict[str, ProgramFile] = {"honest": _step()}
    for name in ("max_batch", "max_length", "prefill_chunk", "assisted_tokens", "vocabulary", "pad_token_id"):
        for number in (*NUMBERS, 8, 15, 17, 64):
            files[f"{name} {number}"] = _step(limits=json.dumps({**plain, name: number}))
    for rows, room, piece in itertools.product((1, 2, 3, 8), (1, 8, 16, 64), (1, 2, 4, 8)):
        files[f"a step of {rows} rows, {room} places, pieces of {piece}"] = _step(rows=rows, room=room, piece=piece)
    for words in (1, 2, 15, 17, 1000):
        files[f"a step of {words} words"] = _step(words=words)
    source = {
        "inputs": ["input_ids", "attention_mask"],
        "max_length": 16,
        "start_token_id": 0,
        "image_token_id": None,
        **dict.fromkeys(("vocabulary", "rows", "width", "pictures", "picture_rows"), 0),
    }
    files["a source, and no encoder"] = _step(limits=json.dumps({**plain, "source": source}))
    for name, inner in {"a step": _step(), "a program": _plain(), "nothing": None, "no program": b"x" * 100}.items():
        for said in (
            source,
            None,
            {**source, "image_token_id": 3, "start_token_id": None},
            {**source, "max_length": 0},
        ):
            parts = _step(limits=json.dumps({**plain, "source": said}))
            if inner is not None:
                parts.others.append((SectionKind.PROGRAM, inner if isinstance(inner, bytes) else inner.to_bytes()))
            files[f"{name} for an encoder, {said!s:.90}"] = parts
    last, words = value(6), tensor_type(torch.float32, 2, _WORDS)
    shown: dict[str, tuple[Any, Any]] = {
        "one row": ("select.int", ([last, 0, 0], tensor_type(torch.float32, _WORDS))),
        "three axes": ("unsqueeze", ([last, 1], tensor_type(torch.float32, 2, 1, _WORDS))),
        "more rows": ("repeat", ([last, [3, 1]], tensor_type(torch.float32, 6, _WORDS))),
        "no rows": ("narrow", ([last, 0, 0, 0], tensor_type(torch.float32, 0, _WORDS))),
        "no words": ("narrow", ([last, 1, 0, 0], tensor_type(torch.float32, 2, 0))),
        "truths": ("gt.Scalar", ([last, 0.0], tensor_type(torch.bool, 2, _WORDS))),
        "what is no number": ("mul.Scalar", ([last, {"float": "nan"}], words)),
        "without an end": ("mul.Scalar", ([last, {"float": "-inf"}], words)),
        "integers": ("argmax", ([last, 1], tensor_type(torch.int64, 2))),
        "complex numbers": ("view_as_complex", ([last], tensor_type(torch.complex64, 2))),
        "wide": ("expand", ([last, [1 << 20, 2, _WORDS]], tensor_type(torch.float32, 1 << 20, 2, _WORDS))),
    }
    for name, (made, (args, result)) in shown.items():
        files[f"logits: {name}"] = _step([operator(made, args, result)])
    for name, output in {
        "nothing": None,
        "a number": 7,
        "a tuple": {"tuple": [last, last]},
        "a text": "x",
        "a list": [last],
    }.items():
        files[f"returns {name}"] = _step(output=output)
    for name, cache in {
        "of other rows": torch.zeros(3, 1, 16, 4),
        "of bytes": torch.zeros(2, 1, 16, 4, dtype=torch.int8),
        "of doubles": torch.zeros(2, 1, 16, 4, dtype=torch.float64),
        "flat": torch.zeros(128),
        "of truths that are neither": torch.full((2, 1, 16, 4), 2, dtype=torch.uint8).view(torch.bool),
    }.items():
        files[f"a cache {name}"] = _step(cache=cache)
    calls: dict[str, dict[str, Any]] = {
        "as it is": {},
        "beams": {"num_beams": 2},
        "drawn": {"do_sample": True, "top_k": 3},
        "kept": {"keep_cache": True},
        "looked up": {"prompt_lookup_num_tokens": 2},
        "long": {"max_new_tokens": 1 << 40},
        "no repeats": {"no_repeat_ngram_size": 2, "repetition_penalty": 1.3},
    }
    for (name, parts), (way, call), rows in itertools.product(files.items(), calls.items(), (1, 2)):
        yield f"{name}: {way}, {rows} rows", functools.partial(_generate_by, parts, call, rows)


def _generate_by(parts: ProgramFile, call: dict[str, Any], rows: int) -> None:
    path = parts.write(folder() / "generator.trtp")
    generator = TextGenerator.load(path)
    call = {"max_new_tokens": 6, "input_ids": torch.tensor([[1, 5, 2, 7, 3]] * rows), **call}
    for _ in range(2):
        tokens = generator.generate(**call)
        assert tokens.shape[0] == rows * call.get("num_return_sequences", 1), "rows that nobody asked for"
    generator.reset()


def forged_encoders() -> Iterator[tuple[str, Act]]:
    """Generators with caches of any type, and with encoders that take and make something else than is said."""
    calls: dict[str, dict[str, Any]] = {
        "as it is": {},
        "beams": {"num_beams": 2},
        "drawn": {"do_sample": True, "num_return_sequences": 2},
        "kept": {"keep_cache": True},
        "looked up": {"prompt_lookup_num_tokens": 2},
    }
    plain = json.loads(GenerationLimits(2, 16, 4, (3,)).to_text())
    files: dict[str, tuple[ProgramFile, dict[str, Any], int]] = {}
    cache = torch.zeros(2, 1, 16, 4)
    for way, call in calls.items():
        said = {**plain, "assisted_tokens": 3 if way == "looked up" else 1}
        for dtype, has_states in itertools.product(DTYPES.values(), (False, True)):
            parts = _step_with({**said, "has_states": has_states}, torch.zeros(cache.shape, dtype=dtype))
            files[f"a cache of {dtype}, states {has_states}: {way}"] = parts, call, 1
        for kind, (name, made), fits, rows in itertools.product(("features", "text"), _MADE.items(), (0, 1), (1, 2)):
            mask = [torch.ones(2, 3, dtype=torch.bool)] if kind == "text" else []
            parts = _step_with(
                {**said, "source": _SOURCES[kind]}, cache, [*mask, *(made if fits else [torch.zeros(2, 3)])]
            )
            if kind == "text":
                given, taken = [(torch.int64, (2, 3)), (torch.bool, (2, 3))], {"input_ids": torch.ones(rows, 3).long()}
            else:
                given, taken = [(torch.float32, (2, 3))], {"input_ids": None, "features": torch.zeros(rows, 3)}
            parts.others.append((SectionKind.PROGRAM, _encoder(made, given)))
            files[f"an encoder of {kind} that makes {name}, {fits}: {way}, {rows} rows"] = (
                parts,
                {**call, **taken},
                rows,
            )
    numbers = (1, 2, 1 << 24)
    for table in itertools.product(*[numbers] * 4, (None, [1, 2]), ("", "pictures", "prompts")):
        rows, width, pictures, filled, grid, ahead = table
        size = [2, 2] if grid else []
        extents = dict(zip(("rows", "width", "pictures", "picture_rows"), table[:4], strict=True))
        source = {**_SOURCES["pictures"], **extents, "size": size, "grid": grid or [], "ahead": ahead}
        source["inputs"] = ["pixels", "sizes"] if grid else ["pixels"]
        layout = [torch.zeros(3 if grid else 1, 2, 16, dtype=torch.int64)] if grid or ahead else []
        parts = _step_with({**plain, "source": source}, cache, [torch.zeros(min(rows, 8), min(width, 8)), *layout])
        made = [torch.zeros(*(min(number, 8) for number in (pictures, filled, width)))]
        parts.others.append((SectionKind.PROGRAM, _encoder(made, [(torch.float32, (min(pictures, 8), 3, 2, 2))])))
        taken = {"pixels": torch.zeros(4, 3) if grid else torch.zeros(1, 3, 2, 2)}
        taken |= {"sizes": torch.tensor([size])} if grid else {}
        prompt = torch.tensor([[1, *[5] * min(filled, 4), 2]])
        files[f"pictures of {table}"] = parts, {"input_ids": prompt, **taken}, 1
    for name, (parts, call, rows) in files.items():
        yield name, functools.partial(_generate_by, parts, call, rows)


_MADE: Final = {
    "rows": [torch.zeros(2, 3)],
    "a number": [torch.zeros(())],
    "one row": [torch.zeros(1, 3)],
    "no rows": [torch.zeros(0, 3)],
    "three rows": [torch.zeros(3, 3)],
    "two": [torch.zeros(2, 3), torch.zeros(2)],
    "nothing": [],
}
_NO_TABLE: Final = dict.fromkeys(("vocabulary", "rows", "width", "pictures", "picture_rows"), 0)
_SOURCES: Final[dict[str, dict[str, Any]]] = {
    "features": {"inputs": ["features"], "max_length": 0, "start_token_id": 0, "image_token_id": None, **_NO_TABLE},
    "text": {"inputs": ["ids", "mask"], "max_length": 3, "start_token_id": 0, "image_token_id": None, **_NO_TABLE},
    "pictures": {"max_length": 0, "start_token_id": None, "image_token_id": 5, "vocabulary": _WORDS},
}


# Files of inputs ----------------------------------------------------------------------------------------------------


def forged_inputs() -> Iterator[tuple[str, Act]]:
    """Files of tensors that say something else than they hold, given to a program by the command line."""
    for name, content in _tables_of_tensors():
        yield f"safetensors: {name}", functools.partial(_run_by, ".safetensors", content)
    for name, content in _arrays():
        yield f"npy: {name}", functools.partial(_run_by, ".npy", content)
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("x0.npy", content)
        yield f"npz: {name}", functools.partial(_run_by, ".npz", file.getvalue())
    for name, content in _archives():
        yield f"npz: {name}", functools.partial(_run_by, ".npz", content)
    yield "npz: a bomb", lambda: _run_by(".npz", _bomb())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pickles = list(_pickles())
    for name, content in pickles:
        yield f"pt: {name}", functools.partial(_run_by, ".pt", content)


def _tables_of_tensors() -> Iterator[tuple[str, bytes]]:
    honest: dict[str, Any] = {"x0": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}

    def file(table: Any, data: bytes = bytes(16), length: int | None = None) -> bytes:
        text = table if isinstance(table, bytes) else json.dumps(table).encode()
        return struct.pack("<Q", len(text) if length is None else length) + text + data

    yield "honest", file(honest)
    for length in (0, 1, 1 << 20, 1 << 31, 1 << 40, (1 << 63) - 1, (1 << 64) - 1):
        yield f"a table of {length} bytes", file(honest, length=length)
    (entry,) = honest.values()
    for key, others in {
        "dtype": (*("F64", "I64", "BOOL", "F8_E4M3", "F4", "F6_E2M3", "C64", "X", "", "f32", "U64", "I8"), *NO_FIELDS),
        "shape": (
            *([number] for number in NUMBERS),
            [1 << 32, 1 << 32],
            [0, 1 << 62],
            [2, 2],
            [-1, -4],
            [4.0],
            *NO_FIELDS,
        ),
        "data_offsets": (
            *([0, number] for number in NUMBERS),
            *([number, 16] for number in NUMBERS),
            *([16, 0], [8, 24], [0], [0, 16, 32], [16, 32]),
            *NO_FIELDS,
        ),
    }.items():
        for other in others:
            yield f"{key} {other!r:.60}", file({"x0": {**entry, key: other}})
    yield "two on each other", file({**honest, "x1": entry})
    yield "a hole", file({"x0": {**entry, "data_offsets": [16, 32]}}, bytes(32))
    yield "depth", file(b"[" * 100_000 + b"]" * 100_000)
    yield "a key twice", file(b'{"x0":' + json.dumps(entry).encode() + b',"x0":' + json.dumps(entry).encode() + b"}")
    yield "no text", file(b"\xff" * 64)
    yield "many", file({f"x{at}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for at in range(20_000)}, b"")
    yield (
        "truths that are neither",
        file({"x0": {"dtype": "BOOL", "shape": [4], "data_offsets": [0, 4]}}, b"\2\3\xff\x80"),
    )
    yield "metadata", file({**honest, "__metadata__": {"a": 1}})


def _arrays() -> Iterator[tuple[str, bytes]]:
    def file(header: str, data: bytes = bytes(16), version: bytes = b"\1\0", length: int | None = None) -> bytes:
        text = header.encode("latin1") + b"\n"
        size = struct.pack("<H" if version == b"\1\0" else "<I", len(text) if length is None else length)
        return b"\x93NUMPY" + version + size + text + data

    plain = "{'descr': '<f4', 'fortran_order': False, 'shape': (4,), }"
    yield "honest", file(plain)
    for kind in (
        *(
            "O",
            "|O8",
            "V8",
            "<f2",
            "<f16",
            "<c16",
            "<U4",
            "S4",
            "<M8[ns]",
            "|b1",
            "<u8",
            ">f4",
            "f4,f4",
            "(4,)f4",
            "x",
            "",
            "2147483647V",
        ),
    ):
        yield f"of {kind!r}", file(plain.replace("<f4", kind))
    for shape in (
        *(
            "(-1,)",
            "(-4,)",
            "(0,)",
            "(1099511627776,)",
            "(1073741824,)",
            "(9223372036854775807,)",
            "(9223372036854775808,)",
        ),
        *(
            "(4294967296, 4294967296)",
            "(2, 2)",
            "(4)",
            "4",
            "()",
            "(4.0,)",
            "('4',)",
            "((4,),)",
            "(True,)",
            "(None,)",
            "(0, 9223372036854775807)",
        ),
        "(" + "1," * 70 + ")",
    ):
        yield f"of shape {shape:.40}", file(plain.replace("(4,)", shape))
    for header in (
        "",
        "{}",
        "[]",
        "__import__('os').abort()",
        plain + plain,
        "{" * 1000,
        "(" * 5000,
        plain.replace("False", "True"),
        plain.replace("False", "1"),
        plain[:-1],
        "{'descr': [('a', 'O')], 'fortran_order': False, 'shape': (1,), }",
        "{'descr': [('a', '<f4'), ('a', '<f4')], 'fortran_order': False, 'shape': (1,), }",
        "{'descr': " + "[" * 90 + "]" * 90 + ", 'fortran_order': False, 'shape': (1,), }",
    ):
        yield f"a header {header!r:.50}", file(header)
    for version in (b"\0\0", b"\2\0", b"\3\0", b"\4\0", b"\xff\xff"):
        yield f"of version {version!r}", file(plain, version=version)
        yield f"of version {version!r}, a long header", file(plain, version=version, length=(1 << 16) - 1)
    yield "nothing in it", file(plain, b"")
    yield "more in it", file(plain, bytes(64))


def _archives() -> Iterator[tuple[str, bytes]]:
    file = io.BytesIO()
    np.savez(file, x0=np.ones(4, np.float32))
    plain = file.getvalue()
    yield "honest", plain
    for at in range(0, len(plain), 7):
        yield f"cut off after {at}", plain[:at]
        yield f"byte {at} is another one", plain[:at] + bytes([plain[at] ^ 0xFF]) + plain[at + 1 :]
    for names in (("../x0.npy",), ("/x0.npy",), ("x0",), ("x0.txt",), ("x\0.npy",), ("x0.npy/",)):
        made = io.BytesIO()
        with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in names:
                archive.writestr(name, next(content for kind, content in _arrays() if kind == "honest"))
        yield f"named {names}", made.getvalue()


def _bomb() -> bytes:
    """An archive of an array of more than a gigabyte, of which it tells the truth."""
    bomb = io.BytesIO()
    with (
        zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("x0.npy", "w", force_zip64=True) as entry,
    ):
        entry.write(
            b"\x93NUMPY\1\0v\0{'descr': '|i1', 'fortran_order': False, 'shape': (1342177280,), }" + b" " * 52 + b"\n"
        )
        for _ in range(64):
            entry.write(bytes(20 << 20))
    return bomb.getvalue()


def _pickles() -> Iterator[tuple[str, bytes]]:
    file = io.BytesIO()
    torch.save({"x0": torch.ones(4)}, file)
    whole = zipfile.ZipFile(file)
    data = next(whole.read(name) for name in whole.namelist() if name.endswith("data.pkl"))

    def forged(changed: bytes) -> bytes:
        made = io.BytesIO()
        with zipfile.ZipFile(made, "w") as archive:
            for name in whole.namelist():
                archive.writestr(name, changed if name.endswith("data.pkl") else whole.read(name))
        return made.getvalue()

    def long(number: int) -> bytes:
        return b"\x8a\x09" + number.to_bytes(9, "little", signed=True)

    yield "honest", file.getvalue()
    for number in NUMBERS:
        for what, old, new in (
            ("size", b"K\x04\x85", long(number) + b"\x85"),
            ("offset", b"QK\x00K\x04\x85", b"Q" + long(number) + b"K\x04\x85"),
            ("stride", b"K\x01\x85", long(number) + b"\x85"),
            ("elements", b"K\x04tq", long(number) + b"tq"),
            ("a repeated size", b"K\x04\x85q\x08K\x01\x85", long(number) + b"\x85q\x08K\x00\x85"),
        ):
            assert old in data
            yield f"{what} {number}", forged(data.replace(old, new, 1))
    for name in (
        "os system",
        "builtins eval",
        "torch _utils._rebuild_tensor_v3",
        "torch.storage _load_from_bytes",
        "subprocess Popen",
    ):
        module, _, function = name.partition(" ")
        yield (
            f"calls {name}",
            forged(data.replace(b"ctorch._utils\n_rebuild_tensor_v2\n", f"c{module}\n{function}\n".encode(), 1)),
        )
    for name, tensor in {
        "sparse": torch.sparse_coo_tensor(torch.tensor([[1 << 40, -1]]), torch.ones(2), (4,), check_invariants=False),
        "sparse rows": torch.sparse_csr_tensor(
            torch.tensor([0, 1 << 40]), torch.tensor([1 << 40]), torch.ones(1), (1, 4), check_invariants=False
        ),
        "without data": torch.ones(4, device="meta"),
        "complex": torch.ones(4, dtype=torch.complex64),
        "conjugated": torch.ones(4, dtype=torch.complex64).conj(),
        "negated": torch._neg_view(torch.ones(4)),
        "a parameter": torch.nn.Parameter(torch.ones(4)),
        "repeated": torch.ones(1).expand(1 << 40),
        "turned": torch.ones(8)[::2],
        "quantized": torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8),
    }.items():
        made = io.BytesIO()
        torch.save({"x0": tensor}, made)
        yield name, made.getvalue()
    for name, tree in {
        "a list": [torch.ones(4)],
        "a tensor": torch.ones(4),
        "numbers": {1: torch.ones(4)},
        "deep": {"x0": {}},
    }.items():
        made = io.BytesIO()
        torch.save(tree, made)
        yield name, made.getvalue()
    doubled = (
        b"(" + b")q\xc8" + b"h\xc8h\xc8\x86q\xc8" * 40 + b"tb"
    )  # tuples of tuples, one in the place of each other part
    for part in (b"X\x07\x00\x00\x00storage", b"X\x03\x00\x00\x00cpu", b"X\x01\x00\x00\x000"):
        assert part in data
        at = data.index(b"}") + 1
        yield f"doubled: {part!r}", forged(data[:at] + doubled + data[at:].replace(part, b"h\xc8", 1))
    for step in (b"N", b"(", b"}", b"h\0", b"ctorch\nTensor\n"):
        made = io.BytesIO()
        with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            archive.writestr("a/data.pkl", b"\x80\x02}q\0" + step * ((1 << 23) // len(step)) + b".")
        yield f"many of {step!r}", made.getvalue()
    for name, content in {
        "a pickle": pickle.dumps({"x0": 1}),
        "nothing": b"",
        "an old file": b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19." * 3,
    }.items():
        yield name, content


def _run_by(ending: str, content: bytes) -> None:
    path = folder() / f"inputs{ending}"
    path.write_bytes(content)
    held = folder() / "model.trtp"
    if not held.exists():
        _plain().write(held)
    status = main(["run", str(held), "--inputs", str(path)])
    assert isinstance(status, int), "a command without an end"
    for tensor in read_tensors(path).values():
        assert tensor.layout is not torch.strided or tensor.is_meta or tensor.untyped_storage().nbytes() < 1 << 31
        program_from_memory(bytearray(_plain().to_bytes()))(tensor)
