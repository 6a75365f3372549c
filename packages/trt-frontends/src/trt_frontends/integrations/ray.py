"""Saved programs on Ray: a class for `ray.data.Dataset.map_batches`, and a deployment for Ray Serve.

Ray starts processes, moves rows, and begins again what was lost with a process. What is here loads a program once in
each of them and fits batches into the sizes that it was compiled for.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from trt_core import InputError, PlanError
from trt_core.dtypes import dtype_name
from trt_core.held_arguments import held_to_signature, require_arguments
from trt_core.internals import pytree
from trt_core.wording import did_you_mean, kind_of
from trt_runtime import LoadedProgram, load
from trt_runtime.command_line.inspection import inspect_file, require_one_process
from trt_runtime.program.graph import TensorInput
from trt_runtime.program.loaded_program import captured_from, require_room_for_made_up
from trt_runtime.program.loading import LoadKeywords, require_whole
from trt_runtime.sharded import holds_manifest

if TYPE_CHECKING:
    from ray.serve import Application
    from typing_extensions import Unpack

_MOST_ROWS: Final = 1 << 31
_FLOATS: Final = (torch.float16, torch.float32, torch.float64)


class BatchKeywords(LoadKeywords, total=False):
    """Keywords of `BatchInference`, for type checkers."""

    columns: Mapping[str, str] | None
    outputs: Sequence[str]


class ServerKeywords(BatchKeywords, total=False):
    """Keywords of `ProgramServer`, for type checkers."""

    max_batch_size: int
    batch_wait_seconds: float


class BatchInference:
    """Runs a saved program on batches of columns: the class that `ray.data.Dataset.map_batches` makes actors of.

    A batch of more rows than the program takes is split, one of fewer is filled up with copies of its last row, whose
    results are dropped. Columns that are no inputs are kept.

    Args:
        path: A file that `trt_runtime.save` wrote, which every machine sees.
        columns: Column of each of the program's inputs, by name of the input; by default the column of that name.
        outputs: Columns for the results, in their order; by default `output`, or `output_0`, `output_1`, and so on.
        options: Further arguments of `trt_runtime.load`.

    Raises:
        InputError: The program's inputs are not tensors whose first dimension counts rows.
        PlanError: The program cannot be loaded.

    Example:
        >>> import tempfile, pathlib, torch, trt_runtime
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.trtp"
        >>> trt_runtime.save(torch.export.export(torch.nn.ReLU(), (torch.ones(2, 2),)), path)
        >>> infer = BatchInference(path, columns={"input": "x"})
        >>> infer({"x": np.array([[-1.0, 1.0]] * 3), "id": np.arange(3)})["output"].shape
        (3, 2)
    """

    @held_to_signature
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        columns: Mapping[str, str] | None = None,
        outputs: Sequence[str] = (),
        **options: Unpack[LoadKeywords],
    ) -> None:
        _require_own_process(options)
        program = load(path, **options)
        if not isinstance(program, LoadedProgram):
            raise InputError(f"{os.fspath(path)!s} is no program of one process", hint="save it with trt_runtime.save")
        self._program = program
        self._outputs = tuple(outputs)
        signature = captured_from(program).program.signature
        self._inputs: dict[str, TensorInput] = {}
        for name, leaf in zip(signature.names, signature.leaves, strict=False):
            if not isinstance(leaf, TensorInput) or not leaf.shape:
                raise InputError(
                    f"the input {name!r} of the program is no tensor with a dimension of rows",
                    where=os.fspath(path),
                    hint="compile a module that takes tensors, one row for each row of the data",
                )
            self._inputs[name] = leaf
        if len(signature.leaves) != len(signature.names):
            raise InputError("the program takes nested inputs", hint="compile a module that takes plain tensors")
        given = dict(columns or {})
        _require_inputs(given, self._inputs)
        self._columns = {name: given.get(name, name) for name in self._inputs}
        self._positional = signature.positional
        self.least_rows = max((leaf.shape[0].low for leaf in self._inputs.values()), default=1)
        self.most_rows = min((leaf.shape[0].high for leaf in self._inputs.values()), default=_MOST_ROWS)
        if self.most_rows < 1:
            raise InputError("the program takes no rows", where=os.fspath(path))

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a batch with the results as further columns.

        Args:
            batch: Arrays by column, rows in their first dimension.

        Raises:
            InputError: A column is missing or does not fit, or a result has not one row for each row.
        """
        if not isinstance(batch, Mapping):
            raise InputError(
                f"a batch has arrays by column, and this is {kind_of(batch)}", hint='leave batch_format at "numpy"'
            )
        tensors = {name: self._tensor(name, batch) for name in self._inputs}
        rows = {len(tensor) for tensor in tensors.values()}
        if len(rows) != 1:
            raise InputError(f"the columns have {sorted(rows)} rows")
        (count,) = rows
        parts = [self._run(tensors, start, count) for start in range(0, count, self.most_rows)]
        results = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}
        taken = set(self._columns.values())
        return {**{name: column for name, column in batch.items() if name not in taken}, **results}

    def check(self) -> None:
        """Runs the program once, on zeros of the least sizes.

        Raises:
            InputError: The least sizes are more than a program asks for that nobody trusts.
            ExecutionError: It does not run.
        """
        rows = max(self.least_rows, 1)
        shapes = {name: (rows, *(max(item.low, 1) for item in leaf.shape[1:])) for name, leaf in self._inputs.items()}
        size = sum(math.prod(shapes[name]) * leaf.dtype.itemsize for name, leaf in self._inputs.items())
        require_room_for_made_up(self._program, size)
        given = {
            name: torch.zeros(shapes[name], dtype=leaf.dtype, device=leaf.device) for name, leaf in self._inputs.items()
        }
        with contextlib.suppress(InputError):  # the least sizes need not go together
            self._run(given, 0, rows)

    def row(self, given: Any) -> dict[str, np.ndarray]:
        """Returns one row of each input, checked on its own, so that it spoils no batch.

        Args:
            given: Values by column, without the dimension of rows.

        Raises:
            InputError: A column is missing or does not fit.
        """
        if not isinstance(given, Mapping):
            raise InputError(f"a request is an object with a value for each column, not {kind_of(given)}")
        found: dict[str, np.ndarray] = {}
        for name, leaf in self._inputs.items():
            column = self._columns[name]
            if column in given:
                _refuse_text(given[column], column)
            tensor = self._tensor(name, {key: np.asarray(given[key])[None] for key in given if key == column})[0]
            wanted = leaf.shape[1:]
            fits = len(wanted) == tensor.dim() and all(
                item.low <= size <= item.high for size, item in zip(tensor.shape, wanted, strict=True)
            )
            if not fits:
                sizes = ", ".join(f"{item.low} to {item.high}" for item in wanted)
                raise InputError(f"a row of {column!r} has shape {tuple(tensor.shape)}, not ({sizes})")
            found[column] = _as_array(tensor)
        return found

    def _tensor(self, name: str, batch: Mapping[str, Any]) -> torch.Tensor:
        column = self._columns[name]
        if column not in batch:
            raise InputError(
                f"the batch has no column {column!r} for the input {name!r}",
                why=f"its columns are {', '.join(map(str, batch)) or 'none':.300}",
                hint=f"name the column: columns={{{name!r}: ...}}",
            )
        array = batch[column]
        rows = array.tolist() if isinstance(array, np.ndarray) and array.dtype == object else None  # rows of lists
        _refuse_text(rows, column)
        leaf = self._inputs[name]
        try:
            stacked = array if rows is None else np.stack(rows) if rows else np.empty(0)
            own = np.require(stacked, requirements=("C", "W"))  # Ray's arrays may not be written to
            found = torch.as_tensor(own, device="cpu")
        except (TypeError, ValueError) as error:
            is_array = isinstance(array, np.ndarray)
            held = f"an array of {array.dtype.name.rstrip('0123456789')}" if is_array else kind_of(array)
            raise InputError(f"the column {column!r} is {held}, not numbers", why=str(error)) from error
        if not found.dim():
            raise InputError(f"the column {column!r} is one number, not one for each row")
        if found.is_complex() and not leaf.dtype.is_complex:
            raise InputError(f"the column {column!r} is complex, and the input {name!r} is {dtype_name(leaf.dtype)}")
        tensor = found.to(leaf.device, leaf.dtype)
        is_whole = not tensor.is_floating_point() and not tensor.is_complex()
        if is_whole and found.dtype is not leaf.dtype and not np.array_equal(tensor.cpu().numpy(), own):
            what = "fractions" if found.is_floating_point() else "other numbers"
            raise InputError(
                f"the column {column!r} holds {what}, and the input {name!r} is {dtype_name(leaf.dtype)}",
                hint="round the column, where that is meant" if found.is_floating_point() else "give what fits it",
            )
        return tensor

    def _run(self, tensors: Mapping[str, torch.Tensor], start: int, count: int) -> dict[str, np.ndarray]:
        """Runs rows from a first one on, as many as the program takes."""
        rows = min(self.most_rows, count - start)
        filled = max(rows, self.least_rows)
        missing = (filled - rows) * sum(tensor[:1].nbytes for tensor in tensors.values())
        require_room_for_made_up(self._program, missing)
        given = [_filled(tensor[start : start + rows], filled) for tensor in tensors.values()]
        named = dict(zip(list(tensors)[self._positional :], given[self._positional :], strict=True))
        with torch.inference_mode():
            result = self._program(*given[: self._positional], **named)
        found = _named(result, self._outputs)
        for name, tensor in found.items():
            if not tensor.dim() or tensor.shape[0] != filled:
                raise InputError(
                    f"the result {name!r} has shape {tuple(tensor.shape)} for {filled} rows",
                    hint="compile a module that returns one row for each row",
                )
        return {name: _as_array(tensor[:rows]) for name, tensor in found.items()}


def _refuse_text(value: Any, column: str) -> None:
    """NumPy gives each text of an array as much room as the longest one has: a few kilobytes take gigabytes.

    Raises:
        InputError: There is one among lists of numbers.
    """
    level = [value]
    while level:
        if not {str, bytes}.isdisjoint(map(type, level)):
            raise InputError(f"the column {column!r} holds text, not numbers")
        level = [item for part in level if type(part) in (list, tuple) for item in part]


def _as_array(tensor: torch.Tensor) -> np.ndarray:
    """A tensor as NumPy has it, which knows no float of 8 bits and no bfloat16: float32 holds each of their numbers."""
    is_known = tensor.dtype in _FLOATS or not tensor.is_floating_point()
    found: np.ndarray = (tensor if is_known else tensor.float()).cpu().numpy()
    return found


def _filled(rows: torch.Tensor, count: int) -> torch.Tensor:
    missing = count - len(rows)
    return torch.cat([rows, rows[-1:].expand(missing, *rows.shape[1:])]) if missing > 0 else rows


def _named(result: Any, names: Sequence[str]) -> dict[str, torch.Tensor]:
    """Names of results: those given, keys of a dict, or numbers.

    Raises:
        InputError: There are more names than results, or fewer.
    """
    flat = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    if isinstance(result, dict) and not names and len(flat) == len(result):
        return dict(zip(result, flat, strict=True))
    found = list(names) or (["output"] if len(flat) == 1 else [f"output_{index}" for index in range(len(flat))])
    if len(found) != len(flat):
        raise InputError(f"{len(found)} columns are named for {len(flat)} results", hint="name one for each result")
    return dict(zip(found, flat, strict=True))


class ProgramServer:
    """Serves a program: batches what comes at the same time, and takes a new program without stopping.

    Args:
        path: A file that `trt_runtime.save` wrote.
        max_batch_size: Most requests that one call of the program takes.
        batch_wait_seconds: How long a request waits for others.
        options: Further arguments of `BatchInference`.
    """

    @held_to_signature
    def __init__(
        self,
        path: str,
        *,
        max_batch_size: int = 8,
        batch_wait_seconds: float = 0.005,
        **options: Unpack[BatchKeywords],
    ) -> None:
        from ray import serve

        _require_batching(max_batch_size, batch_wait_seconds)
        self._options = options
        self._path = path
        self._infer = self._loaded(path)  # what does not run fails here, not in each replica that Ray starts anew
        size = min(max_batch_size, self._infer.most_rows)
        batching: Any = serve.batch(max_batch_size=size, batch_wait_timeout_s=batch_wait_seconds)

        async def together(requests: list[_Request]) -> list[dict[str, Any] | Exception]:
            return await asyncio.to_thread(_answers, requests)

        self._together: Callable[[_Request], Any] = batching(together)

    async def infer(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the results for one row; for callers that hold a handle of the deployment.

        Args:
            inputs: One row of each column, without the dimension of rows.
        """
        infer = self._infer  # another program may come while the request waits
        found: dict[str, Any] | Exception = await self._together((infer, infer.row(inputs)))
        if isinstance(found, Exception):
            raise found
        return found

    async def __call__(self, request: Any) -> Any:
        """Answers an HTTP request: a JSON object with a row for each column. Wrong requests are answered with 400.

        Numbers that are not finite are `NaN` and `Infinity`, as Python reads and writes them; complex ones are pairs.
        """
        from starlette.responses import JSONResponse, Response

        try:
            asked = await request.json()
        except (ValueError, RecursionError) as error:
            return JSONResponse({"error": f"a request is JSON: {error}"}, status_code=400)
        try:
            found = await self.infer(asked)
        except (InputError, ValueError, TypeError) as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        answer = json.dumps({name: _as_list(value) for name, value in found.items()})
        return Response(answer, media_type="application/json")

    async def reconfigure(self, config: Mapping[str, Any]) -> None:
        """Takes another program, `{"path": ...}`; the old one answers until the new one is loaded and has run once.

        Raises:
            InputError: The configuration says something else.
        """
        path = _path_in(config, self._path)
        if path != self._path:
            self._infer = await asyncio.to_thread(self._loaded, path)
            self._path = path

    def _loaded(self, path: str) -> BatchInference:
        infer = BatchInference(path, **self._options)
        infer.check()
        return infer

    async def check_health(self) -> None:
        """Runs the program once; where that fails, Ray starts another replica.

        Raises:
            ExecutionError: The program does not run.
        """
        await asyncio.to_thread(self._infer.check)


def _require_own_process(options: Mapping[str, Any]) -> None:
    """Refuses a process beside that of an actor or a replica, which is one of its own already.

    Raises:
        InputError: One is asked for.
    """
    if options.get("isolated"):
        raise InputError(
            "a program is not isolated once more",
            where="isolated",
            why="each actor and each replica of Ray is a process of its own",
            hint="leave it out",
        )


def _require_batching(max_batch_size: int, batch_wait_seconds: float) -> None:
    """Refuses numbers that Ray would.

    Raises:
        InputError: There are fewer requests than one, or a time is no time.
    """
    if max_batch_size < 1:
        raise InputError(f"max_batch_size is {max_batch_size}", hint="give 1 or more")
    if not 0 <= batch_wait_seconds < math.inf:
        raise InputError(f"batch_wait_seconds is {batch_wait_seconds}", hint="give seconds, 0 or more")


def _require_options(path: str, options: Mapping[str, Any]) -> None:
    """Refuses what no replica could be made with: Ray stops those that run once the new ones have failed.

    Raises:
        InputError: An argument of `ProgramServer` is of another kind.
        TypeError: There is none of that name.
    """
    require_arguments(ProgramServer.__init__, None, path, **options)
    _require_batching(options.get("max_batch_size", 1), options.get("batch_wait_seconds", 0))
    of_batches = {
        name: value for name, value in options.items() if name not in ("max_batch_size", "batch_wait_seconds")
    }
    require_arguments(BatchInference.__init__, None, path, **of_batches)
    _require_own_process(options)
    require_arguments(load, path, **{name: of_batches[name] for name in of_batches.keys() - {"columns", "outputs"}})


def _path_in(config: Any, path: str) -> str:
    """Returns the program that a `user_config` names, which is `path` where it names none.

    Raises:
        InputError: It says something else.
    """
    if not isinstance(config, Mapping) or not isinstance(config.get("path", path), str):
        raise InputError(f"user_config is {config!r:.200}", where="user_config", hint='give {"path": "model.trtp"}')
    if unknown := [name for name in config if name != "path"]:
        raise InputError(
            f"user_config says {unknown[0]!r}, and takes a path alone",
            where="user_config",
            hint=did_you_mean(str(unknown[0]), ["path"]),
        )
    found: str = config.get("path", path)
    return found


def _require_inputs(columns: Mapping[str, str], inputs: Collection[str]) -> None:
    """Refuses columns for inputs that a program does not have.

    Raises:
        InputError: There are some.
    """
    if unknown := sorted(set(columns) - set(inputs)):
        raise InputError(
            f"the program has no input {unknown[0]!r}", hint=f"its inputs are {', '.join(inputs) or 'none'}"
        )


def _require_program(path: str, columns: Mapping[str, str]) -> None:
    """Refuses what is no saved program, where this machine can see that: Ray stops the replicas that cannot load it.

    Raises:
        InputError: There is nothing, in a folder that is there, or a program without the inputs of the columns, or of
            one rank of several.
        PlanError: A file is damaged, or of another tool.
    """
    if os.path.isfile(path):
        require_whole(path)
        try:
            found = inspect_file(Path(path))
        except PlanError:  # one of PyTorch's own format says less
            return
        _require_inputs(columns, [entry["name"] for entry in found["inputs"]])
        require_one_process(found, path)
    elif os.path.isdir(path):
        raise InputError(
            "this is a folder, not a saved program",
            where=path,
            why="a replica is one process; it holds a program for each of several" if holds_manifest(path) else "",
            hint="compile the whole model, or a smaller one, and save it with trt_runtime.save",
        )
    elif not os.path.exists(path) and os.path.isdir(os.path.dirname(os.path.abspath(path))):
        raise InputError(
            "there is no such program", where=path, hint="save it with trt_runtime.save before it is served"
        )


def _as_list(value: Any) -> Any:
    row = np.asarray(value)
    return (np.stack([row.real, row.imag], -1) if np.iscomplexobj(row) else row).tolist()


_Request = tuple[BatchInference, Mapping[str, np.ndarray]]


def _answers(requests: Sequence[_Request]) -> list[dict[str, Any] | Exception]:
    """Runs requests as the rows of batches, those of one program and the same sizes together.

    Returns:
        What each request is answered with: results, or why it failed, which spoils no other one.
    """
    groups: dict[Any, list[int]] = {}
    for index, (infer, given) in enumerate(requests):
        groups.setdefault((id(infer), *(row.shape for row in given.values())), []).append(index)
    answers: list[dict[str, Any] | Exception] = [{} for _ in requests]
    for members in groups.values():
        infer, first = requests[members[0]]
        try:
            found = infer({name: np.stack([requests[index][1][name] for index in members]) for name in first})
        except Exception as error:
            if len(members) == 1:
                answers[members[0]] = error
                continue
            for index in members:  # one of them does not fit: each by itself says which
                (answers[index],) = _answers([requests[index]])
            continue
        for row, index in enumerate(members):
            answers[index] = {name: column[row] for name, column in found.items()}
    return answers


@held_to_signature
def deployment(
    path: str | os.PathLike[str],
    *,
    name: str = "model",
    deployment_options: Mapping[str, Any] | None = None,
    **options: Unpack[ServerKeywords],
) -> Application:
    """Returns an application for `ray.serve.run` that serves a program.

    Args:
        path: A file that `trt_runtime.save` wrote, which every machine sees. To serve another one without stopping, run
            the application again with `deployment_options={"user_config": {"path": new}}`.
        name: Name of the deployment.
        deployment_options: Arguments of `ray.serve.deployment`: replicas, resources, autoscaling.
        options: Arguments of `ProgramServer`.

    Raises:
        InputError: Ray does not take the deployment options, an option is of another kind, or the folder of the program
            is here, and the program not, or it is a folder itself.
        TypeError: There is no option of that name.
        PlanError: What is at a path is no saved program, or a damaged one.
    """
    from ray import serve

    _require_options(os.fspath(path), options)
    config, paths = (deployment_options or {}).get("user_config"), {os.fspath(path)}
    if config is not None:
        paths.add(_path_in(config, os.fspath(path)))
    for each in paths:
        _require_program(each, options.get("columns") or {})
    try:
        made: Any = serve.deployment(name=name, **dict(deployment_options or {}))(ProgramServer)
    except (TypeError, ValueError) as error:
        raise InputError(
            "Ray does not take the deployment options", where="deployment_options", why=str(error).partition("\n")[0]
        ) from error
    application: Application = made.bind(os.fspath(path), **options)
    return application
