"""Caches that a compiled step writes to: its engines update them where they lie, as those of compiled programs do."""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
import transformers
from torch import nn
from torch.profiler import ProfilerActivity, profile

from trt_frontends import model_report
from trt_frontends.backend import torch_tensorrt_backend

pytestmark = [pytest.mark.usefixtures("fresh_dynamo"), pytest.mark.filterwarnings("ignore")]

SIZES: Final = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 256,
    "eos_token_id": None,
}
CACHE: Final = (2, 3, 8, 4)


def copies_of(shape: tuple[int, ...], call: Any) -> int:
    """How many tensors of a shape are copied by PyTorch while something is called."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
        call()
    events = [event for event in profiled.events() if event.name in ("aten::copy_", "aten::clone")]
    return sum(list(shape) in event.input_shapes[:2] for event in events)


class ByIndexCopy(nn.Module):
    """A plain module with a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(CACHE))

    def forward(self, rows: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        self.cache.index_copy_(2, start + torch.arange(rows.shape[2]), rows.sin())
        return self.cache.cos().sum(2)


class ByIndices(ByIndexCopy):
    """The form of gpt-fast: one index for each row."""

    def forward(self, rows: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        self.cache[:, :, start] = rows.sin()
        return self.cache.cos().sum(2)


@pytest.mark.parametrize("kind", [ByIndexCopy, ByIndices])
def test_a_buffer_is_updated_in_place(kind: type[ByIndexCopy]) -> None:
    model = kind().eval()
    eager, address = copy.deepcopy(model), model.cache.data_ptr()
    optimized = torch.compile(model, backend=torch_tensorrt_backend, options={"min_block_size": 1})
    with torch.no_grad():
        for start in (1, 6, 0, 7):
            given = torch.randn(2, 3, 1, 4), torch.tensor([start])
            torch.testing.assert_close(optimized(*given), eager(*given))
            assert torch.equal(model.cache, eager.cache)
        assert copies_of(CACHE, lambda: optimized(*given)) == 0
    assert model.cache.data_ptr() == address
    (graph,) = model_report(optimized).graphs
    assert len(graph.builds) == 1
    assert graph.builds[-1].partition.coverage == 1.0


def test_a_cache_that_is_an_argument_is_updated_in_place() -> None:
    def step(cache: torch.Tensor, rows: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        return cache.index_copy_(2, start, rows * 2).sum(2)

    optimized = torch.compile(step, backend=torch_tensorrt_backend, options={"min_block_size": 1})
    for start in (0, 5):
        cache, rows, place = torch.randn(CACHE), torch.randn(2, 3, 1, 4), torch.tensor([start])
        wanted = cache.clone()
        torch.testing.assert_close(optimized(cache, rows, place), step(wanted, rows, place))
        assert torch.equal(cache, wanted)
    assert copies_of(CACHE, lambda: optimized(cache, rows, place)) == 0


def test_counters_of_caches_are_counted_up_where_they_are() -> None:
    def step(rows: torch.Tensor, *counters: torch.Tensor) -> torch.Tensor:
        made = rows.sin() + sum(counters)  # read before, and again after
        for counter in counters:
            counter.add_(2)
        return made * counters[0]

    optimized = torch.compile(step, backend=torch_tensorrt_backend, options={"min_block_size": 1})
    sets = [[torch.tensor(start), torch.tensor(start + 1)] for start in (0, 5)]
    with torch.no_grad():
        for turn in (0, 1, 0, 1):
            wanted, rows = [counter.clone() for counter in sets[turn]], torch.randn(3, 4)
            torch.testing.assert_close(optimized(rows, *sets[turn]), step(rows, *wanted))
            assert sets[turn] == wanted
        for counter in sets[0]:
            counter.zero_()
        optimized(rows, *sets[0])
    assert sets == [[torch.tensor(2), torch.tensor(2)], [torch.tensor(9), torch.tensor(10)]]
    (graph,) = model_report(optimized).graphs
    assert [build.partition.coverage for build in graph.builds] == [1.0]


def test_a_cache_of_a_length_that_varies_is_updated_in_place() -> None:
    def step(cache: torch.Tensor, rows: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(2, start, rows * 2)
        return cache.sum(2) + torch.arange(cache.shape[2]).sum()

    optimized = torch.compile(step, backend=torch_tensorrt_backend, options={"min_block_size": 1})
    for length in (8, 9, 12):
        cache, rows, place = torch.randn(2, 3, length, 4), torch.randn(2, 3, 1, 4), torch.tensor([length - 1])
        wanted = cache.clone()
        torch.testing.assert_close(optimized(cache, rows, place), step(wanted, rows, place))
        assert torch.equal(cache, wanted)
    assert copies_of((2, 3, length, 4), lambda: optimized(cache, rows, place)) == 0


def by_batch(cache: torch.Tensor, rows: torch.Tensor, places: torch.Tensor) -> None:
    cache[torch.arange(2)[:, None], :, places] = rows.transpose(1, 2)


def by_elements(cache: torch.Tensor, rows: torch.Tensor, places: torch.Tensor) -> None:
    cache.scatter_(2, places[None, None, :, None].expand(2, 3, -1, 4), rows)


WRITES: Final[dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]]] = {
    "index_copy": lambda cache, rows, places: cache.index_copy_(2, places, rows),
    "index_put": lambda cache, rows, places: cache.__setitem__((slice(None), slice(None), places), rows),
    "index_put of two axes": by_batch,
    "scatter": by_elements,
    "index_add": lambda cache, rows, places: cache.index_add_(2, places, rows),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", WRITES)
def test_what_aot_eager_refuses_to_write_is_refused_before_anything_is_written(name: str) -> None:
    """Places out of order are fine, and so are those that count from the end where PyTorch counts."""

    def step(cache: torch.Tensor, rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        WRITES[name](cache, rows.sin(), places)
        return cache.cos().sum(2)

    def called(run: Any, *given: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor]:
        cache = given[0].clone()
        try:
            with torch._dynamo.config.patch(recompile_limit=16):
                found: torch.Tensor | None = run(cache, *given[1:])
        except Exception:
            found = None
        return found, cache

    own = torch.compile(step, backend="aot_eager")
    ours = torch.compile(step, backend=torch_tensorrt_backend, options={"min_block_size": 1})
    cache, rows = torch.randn(CACHE), torch.randn(2, 3, 2, 4)
    places = [[1, 2], [5, 2], [-2, -1], [7, 8], [-9, -8], [2**32, 1]]
    cases = [(cache, rows, torch.tensor(at)) for at in (places[:3] if name == "index_add" else places)]
    cases += [(cache.to(kind), rows, torch.tensor([1, 2])) for kind in (torch.float16, torch.float64)]
    cases += [(cache[:1], rows, torch.tensor([0, 1])), (cache, rows, torch.tensor([1.0, 2.0]))]
    if name == "index_add":
        cases.pop(2)  # an engine adds nothing there
    for case in cases:
        (wanted, kept), (found, left) = called(own, *case), called(ours, *case)
        assert (found is None) == (wanted is None), case[2]
        if wanted is not None:
            torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(left, kept)


def test_other_writes_stay_those_of_eager_calls() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("cache", torch.zeros(CACHE))
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

        def forward(self, rows: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
            before = self.cache.mean()
            self.cache[:, :, start] = rows + before
            self.calls += 1
            return self.cache.sum(2) * self.calls

    model = Counts().eval()
    eager = copy.deepcopy(model)
    optimized = torch.compile(model, backend=torch_tensorrt_backend, options={"min_block_size": 1})
    with torch.no_grad():
        for start in (3, 1):
            given = torch.randn(2, 3, 1, 4), torch.tensor([start])
            torch.testing.assert_close(optimized(*given), eager(*given))
            torch.testing.assert_close(dict(model.named_buffers()), dict(eager.named_buffers()))


def model_of(name: str) -> Any:
    torch.manual_seed(0)
    sizes = {**SIZES, **({"sliding_window": 16} if name == "Mistral" else {})}
    config = getattr(transformers, f"{name}Config")(**sizes)
    return getattr(transformers, f"{name}ForCausalLM")(config).eval()


@pytest.mark.skipif("TRT_STRESS" not in os.environ, reason="takes many seconds; nox -s stress runs it")
@pytest.mark.parametrize("name", ["Llama", "Mistral"])
def test_static_caches_of_transformers_are_updated_in_place(name: str) -> None:
    model, prompt = model_of(name), torch.randint(1, 64, (2, 7))
    wanted = model.generate(prompt, max_new_tokens=64, do_sample=False)
    step = model.forward
    compiled = model.forward = torch.compile(step, backend=torch_tensorrt_backend)
    how = {"cache_implementation": "static", "disable_compile": True, "do_sample": False}
    assert torch.equal(model.generate(prompt, max_new_tokens=64, **how), wanted)
    caches: Any = [transformers.StaticCache(model.config, max_cache_len=40) for _ in range(2)]  # another length
    for run, cache in zip((compiled, step), caches, strict=True):
        with torch.no_grad():
            step(input_ids=prompt, past_key_values=cache)
            kept = cache.layers[0].keys
            for token in range(3):
                call = functools.partial(run, input_ids=torch.full((2, 1), token), past_key_values=cache)
                copied = copies_of(tuple(kept.shape), call)
        assert cache.layers[0].keys is kept
        assert copied == 0
    for left, right in zip(caches[0].layers, caches[1].layers, strict=True):
        torch.testing.assert_close((left.keys, left.values), (right.keys, right.values))
    assert sum(len(graph.builds) for graph in model_report(compiled).graphs) <= 6


def test_transformers_compiles_by_itself_with_this_backend() -> None:
    model, prompt = model_of("Llama"), torch.randint(1, 64, (2, 7))
    wanted = model.generate(prompt, max_new_tokens=4, do_sample=False)
    config = model.generation_config.compile_config = transformers.CompileConfig(backend="torch_tensorrt")
    config._compile_all_devices = True  # else on GPUs alone
    found = model.generate(prompt, max_new_tokens=4, do_sample=False, cache_implementation="static")
    assert torch.equal(found, wanted)
    assert model_report(model._compiled_call).engines
