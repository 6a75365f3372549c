"""What Triton Inference Server's Python backend runs for a saved program.

A model of a repository is `model.trtp` beside a `model.py` that imports `TritonPythonModel` from here. Requests that
come together are rows of one call, where the model batches; a request that does not fit is answered with its error and
spoils no other one. Programs that generate text are served by `TritonTextModel`, which sends tokens as they come.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, Final

import torch

from trt_core.errors import InputError
from trt_runtime.generation import TextGenerator
from trt_runtime.program.graph import FixedInput, NumberInput, TensorInput
from trt_runtime.program.interface import walk
from trt_runtime.program.literals import replace_values
from trt_runtime.program.loaded_program import LoadedProgram, captured_from, require_room_for_made_up
from trt_runtime.program.loading import load

PROGRAM_FILE: Final = "model.trtp"
"""Name of the program in the folder of a version."""


TEXT_INPUTS: Final = {"input_ids": "int64", "attention_mask": "int64"}
"""What a generator is asked with, (rows, length) each, by name to type. The mask may be left out."""

TEXT_OPTIONS: Final = {
    "max_new_tokens": "int32",
    "do_sample": "bool",
    "temperature": "float32",
    "top_k": "int32",
    "top_p": "float32",
    "seed": "int64",
}
"""What else a request may say, one number each, by name to type; as for `TextGenerator.generate`, but `seed`."""


class TritonPythonModel:
    """Serves one saved program; Triton makes one of these for each instance of the model."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Loads the program.

        Args:
            args: What Triton says of the model and of this instance.

        Raises:
            PlanError: The program cannot be loaded.
        """
        config = json.loads(args["model_config"])
        program = load(**_place(args))
        assert isinstance(program, LoadedProgram)
        self._program = program
        self._signature = captured_from(program).program.signature
        self._inputs = [entry["name"] for entry in config["input"]]
        self._outputs = [entry["name"] for entry in config["output"]]
        self._batches = config["max_batch_size"] > 0
        leaves = [leaf for leaf in self._signature.leaves if isinstance(leaf, TensorInput) and leaf.shape]
        self._least = max((leaf.shape[0].low for leaf in leaves), default=1)
        self._most = min((leaf.shape[0].high for leaf in leaves), default=1)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answers requests, one response for each.

        Args:
            requests: What the server has put together.
        """
        given: dict[int, list[torch.Tensor]] = {}
        answers: list[Any] = [None] * len(requests)
        for index, request in enumerate(requests):
            try:
                given[index] = self._tensors_of(request)
            except Exception as error:  # what leaves here fails all requests
                answers[index] = _failed(error)
        for members in self._groups(given):
            try:
                found = self._call([given[index] for index in members])
                made = [self._response(results) for results in found]
            except Exception:  # one of them does not fit: each by itself says which
                made = [self._alone(given[index]) for index in members]
            for index, answer in zip(members, made, strict=True):
                answers[index] = answer
        return answers

    def _alone(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Answers one request by itself, with its error where it has one."""
        try:
            (results,) = self._call([tensors])
            return self._response(results)
        except Exception as error:
            return _failed(error)

    def _groups(self, given: Mapping[int, Sequence[torch.Tensor]]) -> Iterator[list[int]]:
        """Numbers of requests that make one call: the same sizes but for rows, and no more rows than it takes."""
        if not self._batches:
            yield from ([index] for index in given)
            return
        by_sizes: dict[Any, list[int]] = {}
        for index, tensors in given.items():
            if len({tensor.shape[:1] for tensor in tensors}) != 1:
                yield [index]  # it fits no call, and rows of one beside it would take the place of others
                continue
            by_sizes.setdefault(tuple((tensor.shape[1:], tensor.dtype) for tensor in tensors), []).append(index)
        for members in by_sizes.values():
            group: list[int] = []
            rows = 0
            for index in members:
                count = len(given[index][0])
                if group and rows + count > self._most:
                    yield group
                    group, rows = [], 0
                group.append(index)
                rows += count
            yield group

    def _call(self, requests: Sequence[Sequence[torch.Tensor]]) -> list[list[torch.Tensor]]:
        """Calls the program once, and returns the results of each request."""
        if not self._batches:
            return [self._run(requests[0])]
        counts = [len(tensors[0]) for tensors in requests]
        rows = [torch.cat(columns) if len(columns) > 1 else columns[0] for columns in zip(*requests, strict=True)]
        missing = self._least - sum(counts)
        if missing > 0:  # rows that nobody asked for; their results are dropped
            require_room_for_made_up(self._program, missing * sum(column[-1:].nbytes for column in rows))
            rows = [torch.cat([column, column[-1:].expand(missing, *column.shape[1:])]) for column in rows]
        results = self._run(rows)
        if missing > 0:
            counts = [*counts, missing]
        split = [result.split(counts) for result in results]
        return [[parts[index] for parts in split] for index in range(len(requests))]

    def _run(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        left = zip(self._inputs, tensors, strict=True)
        flat: list[Any] = []
        for leaf in self._signature.leaves:
            if isinstance(leaf, FixedInput):
                flat.append(leaf.value)
                continue
            name, tensor = next(left)
            if isinstance(leaf, NumberInput):
                flat.append(leaf.kind(_number(name, tensor)))
            else:
                flat.append(tensor.to(leaf.device if leaf.device == "cpu" else self._program.device))
        values = [replace_values(tree, flat.__getitem__) for tree in self._signature.structure]
        positional = self._signature.positional
        keywords = dict(zip(self._signature.names[positional:], values[positional:], strict=True))
        with torch.inference_mode():
            result = self._program(*values[:positional], **keywords)
        leaves = [leaf for _, leaf in walk(result, "output") if leaf is not None]
        return [leaf if isinstance(leaf, torch.Tensor) else torch.tensor(leaf, device="cpu") for leaf in leaves]

    def _tensors_of(self, request: Any) -> list[torch.Tensor]:
        given = {name: _backend().get_input_tensor_by_name(request, name) for name in self._inputs}
        if missing := [name for name, tensor in given.items() if tensor is None]:
            raise InputError(f"the request has no {missing[0]}", hint=f"its inputs are {', '.join(self._inputs)}")
        return [_to_torch(name, tensor) for name, tensor in given.items()]

    def _response(self, results: Sequence[torch.Tensor]) -> Any:
        backend = _backend()
        made = [_from_torch(name, result) for name, result in zip(self._outputs, results, strict=True)]
        return backend.InferenceResponse(output_tensors=made)


class TritonTextModel:
    """Serves one saved program that generates text: each request has a response for each token."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Loads the program.

        Args:
            args: What Triton says of the model and of this instance.

        Raises:
            PlanError: The program cannot be loaded, or generates no text.
        """
        self._generator = TextGenerator.load(**_place(args))

    def execute(self, requests: Sequence[Any]) -> None:
        """Answers requests one after the other; they share the generator's caches.

        Args:
            requests: What the server has put together. Each gets responses with `tokens`, (rows,) int64, and a last
                one without, which has the error where there is one.
        """
        backend = _backend()
        for request in requests:
            sender = request.get_response_sender()
            try:
                self._answer(request, sender)
                sender.send(flags=backend.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            except Exception as error:  # what leaves here ends no request
                sender.send(_failed(error), flags=backend.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _answer(self, request: Any, sender: Any) -> None:
        backend = _backend()
        given = {name: backend.get_input_tensor_by_name(request, name) for name in (*TEXT_INPUTS, *TEXT_OPTIONS)}
        read = {name: _to_torch(name, tensor) for name, tensor in given.items() if tensor is not None}
        options: dict[str, Any] = {name: _number(name, read.pop(name)) for name in TEXT_OPTIONS if name in read}
        if (seed := options.pop("seed", None)) is not None:
            options["generator"] = torch.Generator(self._generator.device).manual_seed(seed)
        options |= {name: tensor.to(self._generator.device) for name, tensor in read.items()}
        self._generator.generate(
            **options, streamer=_Sender(sender), stopping_criteria=[lambda *_: bool(sender.is_cancelled())]
        )


class _Sender:
    """A streamer that sends tokens to the client."""

    def __init__(self, sender: Any) -> None:
        self._sender, self._has_prompt = sender, False

    def put(self, value: torch.Tensor) -> None:
        if self._has_prompt:
            self._sender.send(_backend().InferenceResponse(output_tensors=[_from_torch("tokens", value)]))
        self._has_prompt = True

    def end(self) -> None:
        """The last response says so."""


def _place(args: Mapping[str, str]) -> dict[str, Any]:
    """Where the program of an instance lies, and the device that it runs on, as `load` takes them."""
    path = os.path.join(args["model_repository"], args["model_version"], PROGRAM_FILE)
    is_gpu = args["model_instance_kind"] == "GPU"
    return {"path": path, "device": f"cuda:{args['model_instance_device_id']}" if is_gpu else None}


def _backend() -> Any:
    return import_module("triton_python_backend_utils")  # of no distribution: the server shows it to its models


def _failed(error: Exception) -> Any:
    """The answer to a request that has an error."""
    backend = _backend()
    return backend.InferenceResponse(output_tensors=[], error=backend.TritonError(str(error)))


def _to_torch(name: str, tensor: Any) -> torch.Tensor:
    try:
        found: torch.Tensor = torch.utils.dlpack.from_dlpack(tensor.to_dlpack())
        return found
    except Exception:  # DLPack has bool in new servers only, and errors of theirs have many types
        array = tensor.as_numpy()
    try:
        return torch.from_numpy(array.copy())
    except TypeError as error:
        held = "text" if array.dtype.kind in "OSU" else str(array.dtype)
        raise InputError(f"{name} holds {held}, not numbers", hint=f"send {name} with the type that it has") from error


def _number(name: str, tensor: torch.Tensor) -> Any:
    if tensor.numel() != 1:
        raise InputError(
            f"{name} has {tensor.numel()} values", why="it is one number", hint=f"send {name} with the sizes [1]"
        )
    return tensor.item()


def _from_torch(name: str, result: torch.Tensor) -> Any:
    backend = _backend()
    result = result.detach().contiguous()
    if result.dtype is torch.bool:
        return backend.Tensor(name, result.cpu().numpy())
    if result.is_cuda:
        torch.cuda.current_stream(result.device).synchronize()  # the server reads on a stream of its own
    # by DLPack, since servers that were built for NumPy 1 take arrays of NumPy 2 for empty ones
    return backend.Tensor.from_dlpack(name, torch.utils.dlpack.to_dlpack(result))  # type: ignore[attr-defined]
