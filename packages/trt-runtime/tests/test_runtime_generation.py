"""Generation with a step that is written out: what the loop does around it."""

from __future__ import annotations

import copy
import json
import math
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from side_by_side import in_fork
from torch import nn

from trt_core.errors import ExecutionError, InputError, PlanError, TrtError
from trt_runtime.generation import GenerationLimits, SourceLimits, TextGenerator, choosing, decoding
from trt_runtime.token_choice import TokenChoice, TokenRules, likeliest_by_pieces

VOCABULARY = 23


class Counting(nn.Module):
    """Scores depend on the sum of all tokens of a row and on how many there are."""

    def __init__(self, rows: int, length: int) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(rows, length))
        self.calls: list[tuple[int, int]] = []

    def forward(self, input_ids: torch.Tensor, start: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        first, count = int(start), input_ids.shape[1]
        self.calls.append((first, count))
        self.seen[:, first : first + count] = input_ids.to(torch.float32)
        places = torch.arange(self.seen.shape[1], device=start.device)
        real = (places >= padding[:, None]) & (places < first + count)
        return scores_of((self.seen * real).sum(1), real.sum(1))


def scores_of(total: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    likeliest = (total.long() * 7 + count * 3) % VOCABULARY
    distance = (torch.arange(VOCABULARY, device=total.device) - likeliest[:, None]) % VOCABULARY
    return -distance.to(torch.float32) / 4


def continued(prompt: Sequence[int], new: int, ends: Sequence[int] = ()) -> list[int]:
    """What greedy generation makes of one prompt, written out."""
    text = list(prompt)
    for _ in range(new):
        token = int(scores_of(torch.tensor([float(sum(text))]), torch.tensor([len(text)])).argmax())
        text.append(token)
        if token in ends:
            break
    return text[len(prompt) :]


def generator_of(rows: int = 3, length: int = 40, chunk: int = 4, **limits: Any) -> TextGenerator:
    return TextGenerator(Counting(rows, length), GenerationLimits(rows, length, chunk, **limits))


@given(
    st.lists(st.lists(st.integers(1, VOCABULARY - 1), min_size=1, max_size=11), min_size=1, max_size=3),
    st.integers(1, 9),
    st.integers(1, 12),
    st.lists(st.integers(1, VOCABULARY - 1), max_size=3),
)
@settings(max_examples=60)
def test_rows_of_a_padded_batch_continue_as_each_alone(
    prompts: list[list[int]], new: int, chunk: int, ends: list[int]
) -> None:
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    made = generator_of(chunk=chunk).generate(ids, mask, max_new_tokens=new, eos_token_id=ends, pad_token_id=0)
    expected = [continued(prompt, new, ends) for prompt in prompts]
    width = max(map(len, expected))
    assert made[:, longest:].tolist() == [row + [0] * (width - len(row)) for row in expected]
    assert torch.equal(made[:, :longest], ids)


@pytest.mark.gpu
@pytest.mark.parametrize("ends", [(), (5,), (5, 11)])
def test_a_recording_chooses_tokens_as_the_loop_does(ends: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Mock(side_effect=decoding.capture)
    monkeypatch.setattr(decoding, "capture", recorded)
    generator = generator_of(length=120).to("cuda")
    prompts = torch.tensor([[0, 0, 3], [0, 4, 2], [9, 8, 1]])
    told: dict[str, Any] = {"max_new_tokens": 90, "eos_token_id": ends, "pad_token_id": 0}
    made = [generator.generate(prompts.cuda(), (prompts > 0).long().cuda(), **told).tolist() for _ in range(2)]
    assert recorded.call_count == 2
    monkeypatch.setattr(decoding, "_WORTH_RECORDING", 1000)
    made.append(generator.generate(prompts.cuda(), (prompts > 0).long().cuda(), **told).tolist())
    assert recorded.call_count == 2 and made[0] == made[1] == made[2]


@pytest.mark.gpu
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(
    "how",
    [{}, {"temperature": 0.7, "top_k": 5}, {"top_p": 0.8, "min_p": 0.01}, {"typical_p": 0.9}, {"eta_cutoff": 0.1}],
)
def test_a_recording_draws_tokens_as_the_loop_does(
    how: dict[str, Any], own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = Mock(side_effect=decoding.capture)
    monkeypatch.setattr(decoding, "capture", recorded)
    generator = generator_of(length=120).to("cuda")
    prompts = torch.tensor([[0, 0, 3], [0, 4, 2], [9, 8, 1]], device="cuda")

    def drawn() -> tuple[list[list[int]], torch.Tensor]:
        chance = torch.Generator("cuda") if own else torch.cuda.default_generators[torch.cuda.current_device()]
        told = {"generator": chance} if own else {}
        chance.manual_seed(7)
        made = generator.generate(prompts, max_new_tokens=90, eos_token_id=(), do_sample=True, **how, **told)
        return made.tolist(), torch.rand(3, device="cuda", generator=chance)

    first, again = drawn(), drawn()
    assert recorded.call_count == 2
    monkeypatch.setattr(decoding, "_WORTH_RECORDING", 1000)
    by_hand = drawn()
    assert recorded.call_count == 2 and first[0] == again[0] == by_hand[0]
    assert torch.equal(first[1], by_hand[1])  # what is drawn later is as it was


@pytest.mark.gpu
def test_what_cannot_be_recorded_is_chosen_by_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    def waiting(scores: torch.Tensor) -> torch.Tensor:
        assert math.isfinite(scores.sum().item())
        return scores.argmax(-1)

    monkeypatch.setattr(choosing, "likeliest", waiting)
    generator, prompt = generator_of(1, 120).to("cuda"), torch.tensor([[3, 2]], device="cuda")
    found = generator.generate(prompt, max_new_tokens=60, eos_token_id=())
    assert found[0, 2:].tolist() == continued([3, 2], 60)


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.lists(st.integers(1, 22), min_size=1, max_size=6)), min_size=2, max_size=4
    ),
    st.integers(0, 2),
    st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_a_kept_cache_changes_no_token(turns: list[tuple[int, list[int]]], padded: int, guesses: bool) -> None:
    """Each turn keeps some of the text before, all of it or less, and says something else."""
    kept, plain = guessing(length=90), guessing(length=90)
    text = torch.zeros(2 - guesses, padded, dtype=torch.int64)
    mask = torch.zeros_like(text)
    for taken, said in turns:
        more = torch.tensor([said, said[::-1]])[: len(text)]
        text = torch.cat([text[:, : max(taken, padded)], more], 1)
        mask = torch.cat([mask[:, :padded], torch.ones(len(text), text.shape[1] - padded, dtype=torch.int64)], 1)
        how = {"prompt_lookup_num_tokens": 3} if guesses else {}
        found = kept.generate(text, mask, max_new_tokens=7, eos_token_id=(5,), keep_cache=True, **how)
        text = plain.generate(text, mask, max_new_tokens=7, eos_token_id=(5,))
        assert torch.equal(found, text)


def test_a_conversation_reads_what_is_new() -> None:
    generator = generator_of(rows=2, length=40, chunk=64)
    text, calls = torch.tensor([[3, 1, 4], [1, 5, 9]]), generator.step.calls
    for _ in range(2):
        text = generator.generate(text, max_new_tokens=3, keep_cache=True)
        text = torch.cat([text, torch.tensor([[7, 8], [8, 7]])], 1)
    assert calls == [(0, 3), (3, 1), (4, 1), (5, 3), (8, 1), (9, 1)]
    calls.clear()
    generator.generate(text[:1], max_new_tokens=1, keep_cache=True)  # other rows
    generator.generate(text[:1], max_new_tokens=1)  # nobody asks to keep anything
    generator.generate(text[:1], max_new_tokens=1, keep_cache=True)
    generator.generate(text[:1], max_new_tokens=1, keep_cache=True)
    generator.generate(text[:1], torch.tensor([[0] + [1] * 12]), max_new_tokens=1, keep_cache=True)
    generator.reset()
    generator.generate(text[:1], torch.tensor([[0] + [1] * 12]), max_new_tokens=1, keep_cache=True)
    assert calls == [(0, 13), (0, 13), (0, 13), (12, 1), (0, 13), (0, 13)]


def test_prompts_are_read_in_pieces_and_tokens_one_by_one() -> None:
    generator = generator_of(rows=1, chunk=4)
    generator.generate(torch.tensor([[1, 2, 3, 4, 5, 6]]), max_new_tokens=3)
    assert generator.step.calls == [(0, 4), (4, 2), (6, 1), (7, 1)]


def test_a_call_begins_anew() -> None:
    generator = generator_of()
    prompt = torch.tensor([[3, 1, 4]])
    first = generator.generate(prompt, max_new_tokens=5)
    generator.generate(torch.tensor([[9, 9, 9, 9, 9]]), max_new_tokens=5)
    assert torch.equal(generator.generate(prompt, max_new_tokens=5), first)


def test_a_length_counts_the_prompt_unless_new_tokens_are_counted() -> None:
    generator, prompt = generator_of(), torch.tensor([[3, 1, 4]])
    assert torch.equal(generator.generate(prompt, max_length=8), generator.generate(prompt, max_new_tokens=5))
    assert generator.generate(prompt, max_length=8, max_new_tokens=2).shape == (1, 5)


def test_the_caches_may_be_filled_to_the_end() -> None:
    generator = generator_of(rows=1, length=8)
    made = generator.generate(torch.tensor([[1, 2, 3]]))
    assert made.shape == (1, 9)  # the last token is never read
    assert made[0, 3:].tolist() == continued([1, 2, 3], 6)


def test_sampling_draws_what_the_generator_says() -> None:
    prompt = torch.tensor([[3, 1, 4], [2, 7, 1]])
    draws = [
        generator_of().generate(prompt, max_new_tokens=6, do_sample=True, generator=torch.Generator().manual_seed(seed))
        for seed in (1, 1, 2)
    ]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


@pytest.mark.parametrize("chosen", [{"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-4}])
def test_sampling_from_the_likeliest_alone_is_greedy(chosen: dict[str, Any]) -> None:
    prompt = torch.tensor([[3, 1, 4]])
    made = generator_of().generate(prompt, max_new_tokens=6, do_sample=True, **chosen)
    assert made[0, 3:].tolist() == continued([3, 1, 4], 6)


@pytest.mark.parametrize(("top_k", "top_p"), [(3, None), (None, 0.5)])
def test_sampling_draws_only_from_what_is_left(top_k: int | None, top_p: float | None) -> None:
    generator = generator_of(rows=1)
    probabilities = scores_of(torch.tensor([8.0]), torch.tensor([3])).softmax(-1)[0]
    order = probabilities.argsort(descending=True)
    count = top_k or int((probabilities[order].cumsum(0) < (top_p or 0)).sum()) + 1
    allowed = set(order[:count].tolist())
    torch.manual_seed(0)
    made = {
        int(
            generator.generate(torch.tensor([[3, 1, 4]]), max_new_tokens=1, do_sample=True, top_k=top_k, top_p=top_p)[
                0, 3
            ]
        )
        for _ in range(60)
    }
    assert made <= allowed
    assert len(made) > 1


@given(st.integers(1, 3), st.sampled_from([1, 2, 4, 8]), st.integers(1, 5), st.integers(0, 99))
def test_the_likeliest_by_pieces_is_the_first_one(rows: int, pieces: int, width: int, seed: int) -> None:
    scores = torch.randint(0, 4, (rows, pieces * width), generator=torch.Generator().manual_seed(seed)).float()
    assert torch.equal(likeliest_by_pieces(scores, pieces), scores.argmax(-1))


def test_processors_change_scores_before_a_token_is_chosen() -> None:
    def never_two(tokens: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.scatter(1, tokens, -torch.inf)

    made = generator_of().generate(torch.tensor([[3, 1, 4]]), max_new_tokens=8, logits_processor=[never_two])
    assert len(set(made[0].tolist())) == made.shape[1]


def test_a_streamer_takes_the_prompt_and_every_token() -> None:
    class Notes:
        def __init__(self) -> None:
            self.taken: list[Any] = []

        def put(self, value: torch.Tensor) -> None:
            self.taken.append(value.tolist())

        def end(self) -> None:
            self.taken.append("end")

    notes = Notes()
    made = generator_of().generate(torch.tensor([[3, 1]]), max_new_tokens=3, streamer=notes)
    assert notes.taken == [[[3, 1]], *([token] for token in made[0, 2:].tolist()), "end"]


class CountingMany(Counting):
    """The same, for the tokens that are asked for; what it was asked is noted."""

    def forward(  # type: ignore[override]
        self, input_ids: torch.Tensor, start: torch.Tensor, padding: torch.Tensor, kept: torch.Tensor
    ) -> torch.Tensor:
        assert 0 <= int(kept.min()) <= int(kept.max()) < input_ids.shape[1]
        scores = [super(CountingMany, self).forward(input_ids[:, : n + 1], start, padding) for n in kept.tolist()]
        super().forward(input_ids, start, padding)
        self.calls[-len(kept) - 1 :] = [(int(start), input_ids.shape[1])]
        return torch.stack(scores, 1)


def guessing(most: int = 5, chunk: int = 6, length: int = 64) -> TextGenerator:
    limits = GenerationLimits(2, length, chunk, assisted_tokens=most)
    return TextGenerator(CountingMany(2, length), limits)


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=14),
    st.integers(1, 20),
    st.integers(2, 5),
    st.lists(st.integers(1, VOCABULARY - 1), max_size=2),
    st.sampled_from(["lookup", "same", "another", "short"]),
)
@settings(max_examples=80)
def test_guesses_change_no_token(prompt: list[int], new: int, most: int, ends: list[int], how: str) -> None:
    generator = guessing(most)
    options: dict[str, Any] = {"prompt_lookup_num_tokens": most - 1}
    if how != "lookup":
        assistant = generator_of(rows=1, length=max(len(prompt), 16) if how == "short" else 64, chunk=3)
        if how == "another":
            assistant.step.forward = Sometimes(assistant.step)
        options = {"assistant_model": assistant}
    made = generator.generate(torch.tensor([prompt]), max_new_tokens=new, eos_token_id=ends, **options)
    assert made[0, len(prompt) :].tolist() == continued(prompt, new, ends)
    assert all(start // 6 == (start + count - 1) // 6 for start, count in generator.step.calls)


class Sometimes:
    """A model that agrees with another one now and then."""

    def __init__(self, step: nn.Module) -> None:
        self._forward = step.forward

    def __call__(self, input_ids: torch.Tensor, start: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self._forward(input_ids, start, padding)
        return scores.roll(int(int(start) % 3 == 0), 1)


def test_right_guesses_take_fewer_steps() -> None:
    generator, assistant = guessing(5), generator_of(rows=1)
    prompt = torch.tensor([[3, 1, 4, 1, 5, 9]])
    generator.generate(prompt, max_new_tokens=20, assistant_model=assistant)
    assert len(generator.step.calls) <= 1 + 2 * 4 + 1  # pieces of five, of which each may cross a multiple of six
    assert len(assistant.step.calls) <= 2 + 20


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"prompt_lookup_num_tokens": 5}, "give 1 to 4"),
        ({"prompt_lookup_num_tokens": 2, "assistant_model": generator_of()}, "one of the two"),
        ({"prompt_lookup_num_tokens": 2, "do_sample": True}, "without sampling"),
        ({"assistant_model": nn.Identity()}, "give a TextGenerator"),
        ({"assistant_model": generator_of(length=3)}, "longer than the caches"),
    ],
)
def test_guesses_that_cannot_be_taken_are_refused(options: dict[str, Any], said: str) -> None:
    generator = guessing()
    with pytest.raises(InputError, match=said):
        generator.generate(torch.tensor([[3, 1, 4, 1]]), **options)
    with pytest.raises(InputError, match="one row"):
        generator.generate(torch.tensor([[3, 1], [4, 1]]), prompt_lookup_num_tokens=2)
    with pytest.raises(InputError, match="cannot assist itself"):
        generator.generate(torch.tensor([[3, 1]]), assistant_model=generator)
    with pytest.raises(InputError, match="compile it with assisted_tokens"):
        generator_of().generate(torch.tensor([[3, 1]]), prompt_lookup_num_tokens=2)
    assert generator.step.calls == []


@pytest.mark.parametrize(
    ("ids", "mask", "options", "said"),
    [
        (torch.ones(1, 41, dtype=torch.int64), None, {}, "longer than the caches"),
        (torch.ones(4, 2, dtype=torch.int64), None, {}, "more than the 3 rows"),
        (torch.ones(1, 0, dtype=torch.int64), None, {}, "each with a token"),
        (torch.ones(2, 2), None, {}, "int64 or int32"),
        (torch.ones(2, 2, dtype=torch.int64), torch.tensor([[1, 0], [1, 1]]), {}, "padded on the left"),
        (torch.ones(2, 2, dtype=torch.int64), torch.tensor([[1, 1], [0, 0]]), {}, "prompts is all padding"),
        (torch.ones(2, 2, dtype=torch.int64), torch.ones(2, 3), {}, "does not fit"),
        (torch.ones(1, 2, dtype=torch.int64), None, {"max_new_tokens": 40}, "ask for 39 at most"),
        (torch.ones(1, 2, dtype=torch.int64), None, {"pad_token_id": True}, "pad_token_id is a token"),
        (torch.ones(1, 2, dtype=torch.int64), None, {"max_new_tokens": 0}, "whole number from 1"),
        (torch.ones(1, 2, dtype=torch.int64), None, {"max_length": 2}, "above the 2 tokens of the prompt"),
        (torch.ones(1, 2, dtype=torch.int64), None, {"max_length": "8"}, "cannot take a str as max_length"),
        (torch.ones(1, 2, dtype=torch.int64), None, {"max_length": 42}, "ask for 39 at most"),
        (torch.ones(1, 2, dtype=torch.int64), None, {"cache": ()}, "keeps keys and values itself"),
        (torch.ones(1, 2, dtype=torch.int64), None, {"inputs_embeds": torch.ones(1, 2, 4)}, "a step reads tokens"),
        (torch.ones(1, 2, dtype=torch.int64), None, {"custom_generate": "./loop"}, "the loop is this one"),
        (torch.ones(1, 2, dtype=torch.int64), None, {"prefill_chunk_size": 4}, "no token follows from it"),
        (torch.ones(1, 2, dtype=torch.int64), None, {"position_ids": torch.ones(1, 2)}, "follow from attention_mask"),
        (torch.ones(1, 2, dtype=torch.int64), None, {"do_sample": True, "temperature": 0.0}, "temperature"),
        (torch.ones(1, 2, dtype=torch.int64), None, {"do_sample": True, "top_p": 1.5}, "top_p"),
        (torch.ones(1, 2, dtype=torch.int64), None, {"do_sample": True, "top_k": -1}, "top_k"),
        (torch.ones(1, 2, dtype=torch.int64), None, {"min_p": 2}, "min_p is at least 0 and at most 1"),
        (torch.ones(1, 2, dtype=torch.int64), None, {"repetition_penalty": 0.0}, "repetition_penalty is above 0"),
        (torch.ones(1, 2, dtype=torch.int64), None, {"no_repeat_ngram_size": 1.5}, "no_repeat_ngram_size"),
        (torch.ones(1, 2, dtype=torch.int64), None, {"temperature": "hot"}, "temperature"),
        (torch.ones(1, 2, dtype=torch.int64), None, {"temperature": float("nan")}, "temperature"),
        (torch.ones(1, 2, dtype=torch.int64), None, {"num_beams": 0}, "num_beams is a whole number"),
        (torch.ones(1, 2, dtype=torch.int64), None, {"num_beams": 4}, "1 prompts of 4 texts each are more"),
        (torch.ones(1, 2, dtype=torch.int64), None, {"num_beams": 2, "early_stopping": 3}, "early_stopping"),
        (torch.ones(1, 2, dtype=torch.int64), None, {"num_beams": 2, "length_penalty": "a"}, "length_penalty"),
        (
            torch.ones(1, 2, dtype=torch.int64),
            None,
            {"num_beams": 2, "eos_token_id": [3] * 256},
            "256 tokens end a row",
        ),
        (torch.ones(1, 2, dtype=torch.int64), None, {"num_return_sequences": 2}, "would be equal"),
        (torch.ones(1, 2, dtype=torch.int64), None, {"num_beams": 2, "num_return_sequences": 3}, "do not give 3"),
        (torch.ones(1, 2, dtype=torch.int64), None, {"stop_strings": ["a"]}, "StopStringCriteria"),
        (torch.ones(1, 2, dtype=torch.int64), None, {"watermarking_config": {"bias": 2.5}}, "give logits_processor"),
        (torch.ones(1, 2, dtype=torch.int64), None, {"eos_token_id": "end"}, "eos_token_id"),
        (torch.ones(1, 2, dtype=torch.int64), None, {"do_sample": "yes"}, "as do_sample"),
        (torch.ones(1, 2, dtype=torch.int64), None, {"generator": 5}, "give a Generator"),
        (torch.ones(1, 2, dtype=torch.int64), None, {"logits_processor": max}, "give a list, each item a function"),
        (torch.ones(1, 2, dtype=torch.int64), None, {"stopping_criteria": [3]}, r"an int as stopping_criteria\[0\]"),
        (torch.ones(1, 2, dtype=torch.int64), None, {"streamer": print}, "a streamer has put and end, unlike"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(
    ids: torch.Tensor, mask: torch.Tensor | None, options: dict[str, Any], said: str
) -> None:
    generator = generator_of()
    with pytest.raises(InputError, match=said):
        generator.generate(ids, mask, **options)
    assert generator.step.calls == []


@pytest.mark.parametrize(
    ("tokens", "start", "padding", "said"),
    [
        ([[1, 23]], 4, [0], "knows tokens 0 to 22, and the prompt has 23"),
        ([[-1, 2]], 4, [0], "knows tokens 0 to 22, and the prompt has -1"),
        ([[1, 2]], 5, [0], "4 tokens of each row were read, and a call begins at place 5"),
        ([[1, 2]], -1, [0], "hold 40 tokens of a row, and a call reads places -1 to 0"),
        ([[1]], 40, [0], "hold 40 tokens of a row, and a call reads places 40 to 40"),
        ([[1, 2]], 4, [-1], "padding is 0 to 40 places"),
        ([[1, 2]], 4, [41], "padding is 0 to 40 places"),
    ],
)
def test_calls_of_the_step_follow_what_was_read(
    tokens: list[list[int]], start: int, padding: list[int], said: str
) -> None:
    generator = generator_of(rows=1, vocabulary=VOCABULARY, pad_token_id=99)
    step, zero = generator.step, torch.zeros(1, dtype=torch.int64)
    step(torch.tensor([[99, 3, 1, 4]]), zero, zero + 1)
    with pytest.raises(InputError, match=said):
        step(torch.tensor(tokens), torch.tensor([start]), torch.tensor(padding))
    assert step.calls == [(0, 4)]
    assert step.seen[0, :5].tolist() == [99, 3, 1, 4, 0]
    step(torch.tensor([[5]]), zero + 2, zero)  # places may be read again
    with pytest.raises(InputError, match="3 tokens of each row were read"):
        step(torch.tensor([[5]]), zero + 4, zero)
    with pytest.raises(RuntimeError, match="must match"):
        step(torch.tensor([[5, 6], [5, 6]]), zero + 3, zero)  # which the step refuses, and which counts for nothing
    with pytest.raises(InputError, match="3 tokens of each row were read"):
        step(torch.tensor([[5]]), zero + 4, zero)
    generator.reset()
    with pytest.raises(InputError, match="0 tokens of each row were read"):
        step(torch.tensor([[5]]), zero + 3, zero)


def test_states_go_on_or_begin_anew() -> None:
    step, zero = generator_of(rows=1, chunk=1, has_states=True).step, torch.zeros(1, dtype=torch.int64)
    for place in (0, 1, 2):
        step(torch.tensor([[5]]), zero + place, zero)
    with pytest.raises(InputError, match="3 tokens of each row were read, of which the step forgets some"):
        step(torch.tensor([[5]]), zero + 1, zero)
    step(torch.tensor([[5]]), zero, zero)
    step(torch.tensor([[5]]), zero + 1, zero)
    assert [first for first, _ in step.calls] == [0, 1, 2, 0, 1]


BAD_CHOICE = GenerationLimits(1, 1, 1).to_text().replace('"temperature":1.0', '"temperature":-1')


def test_criteria_end_rows() -> None:
    prompts = [[3, 1, 4], [2, 7, 1]]
    made = generator_of(pad_token_id=0).generate(
        torch.tensor(prompts), max_new_tokens=12, stopping_criteria=[lambda text, _: text.sum(1) > 60]
    )
    for row, prompt in zip(made, prompts, strict=True):
        count = next(n for n in range(1, 13) if sum([*prompt, *continued(prompt, n)]) > 60)
        width = made.shape[1] - 3
        assert row[3:].tolist() == continued(prompt, count) + [0] * (width - count)


@pytest.mark.parametrize("beams", [1, 2])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"logits_processor": [lambda _, scores: scores, lambda _, scores: scores[:1]]}, r"logits_processor\[1\]"),
        ({"logits_processor": [lambda _, scores: scores[:, :5]]}, "return the scores, of the same shape"),
        ({"logits_processor": [lambda *_: None]}, "a processor returned None"),
        ({"stopping_criteria": [lambda *_: None]}, "a criterion returned None"),
        ({"stopping_criteria": [lambda text, _: text.new_zeros(7) > 0]}, "a criterion returned a Tensor of torch.bool"),
        ({"stopping_criteria": [lambda text, _: text[:, -1]]}, "a criterion returned a Tensor of torch.int64"),
    ],
)
def test_what_functions_of_callers_return_is_held_to_what_it_is_for(
    options: dict[str, Any], said: str, beams: int
) -> None:
    generator, ids = generator_of(), torch.tensor([[3, 1], [4, 1]][: 3 - beams])
    with pytest.raises(InputError, match=said):
        generator.generate(ids, max_new_tokens=4, num_beams=beams, **options)
    assert generator.generate(ids, max_new_tokens=4)[0, 2:].tolist() == continued([3, 1], 4)


class Waiting:
    """A streamer that waits at each token, so that other threads are at work."""

    def put(self, value: torch.Tensor) -> None:
        time.sleep(1e-3)

    def end(self) -> None:
        pass


def test_threads_wait_for_each_other() -> None:
    """Those that use each other's caches to guess, too."""
    one, other = guessing(), guessing()
    found: dict[int, list[int]] = {}

    def work(number: int) -> None:
        first, second = (one, other) if number % 2 else (other, one)
        how = {} if number % 3 else {"assistant_model": second}
        ids = torch.tensor([[number, 1 + number % 5]])
        found[number] = first.generate(ids, max_new_tokens=9, streamer=Waiting(), **how)[0, 2:].tolist()

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == {number: continued([number, 1 + number % 5], 9) for number in range(1, 9)}


def test_calls_inside_of_a_call_are_refused_and_copies_take_them() -> None:
    generator, ids = generator_of(), torch.tensor([[3, 1, 4]])

    def inside(other: TextGenerator) -> Any:
        return lambda text, scores: (other.generate(text[:, :2], max_new_tokens=2), scores)[1]

    with pytest.raises(InputError, match="from inside of a call of the same generator"):
        generator.generate(ids, max_new_tokens=5, logits_processor=[inside(generator)])
    made = generator.generate(ids, max_new_tokens=5, logits_processor=[inside(copy.deepcopy(generator))])
    assert made[0, 3:].tolist() == continued([3, 1, 4], 5)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_process_that_is_forked_while_a_thread_generates_has_its_turn() -> None:
    generator, ids = generator_of(), torch.tensor([[3, 1, 4]])

    def again() -> bool:
        made = generator.generate(ids, max_new_tokens=5)
        return bool(made[0, 3:].tolist() == continued([3, 1, 4], 5))

    with generator._turn:
        assert in_fork(again)


def test_a_search_takes_no_streamer() -> None:
    with pytest.raises(InputError, match="one text a row"):
        generator_of().generate(torch.tensor([[3, 1]]), num_beams=2, streamer=Mock())


def test_beams_leave_tables_of_a_step_alone() -> None:
    generator = generator_of(rows=2)
    generator.step.register_buffer("table", torch.arange(6.0).view(3, 2))
    generator.generate(torch.tensor([[3, 1, 4]]), num_beams=2, max_new_tokens=6)
    generator.reset()
    assert torch.equal(generator.step.table, torch.arange(6.0).view(3, 2))
    assert not generator.step.seen.any()


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_what_is_no_logits_is_refused(dtype: torch.dtype) -> None:
    generator = generator_of()
    generator.step.forward = lambda ids, *_: torch.zeros(len(ids), VOCABULARY, dtype=dtype)
    with pytest.raises(ExecutionError, match="the step returned"):
        generator.generate(torch.tensor([[3, 1, 4]]))


def test_vocabularies_do_not_change_from_call_to_call() -> None:
    generator = generator_of()
    generator.step.forward = lambda ids, start, _: torch.zeros(len(ids), 5 if int(start) else VOCABULARY)
    with pytest.raises(ExecutionError, match="of one vocabulary"):
        generator.generate(torch.tensor([[3, 1, 4]]))


@pytest.mark.parametrize("option", [{"repetition_penalty": 1.3}, {"no_repeat_ngram_size": 2}])
def test_tokens_that_have_no_score_are_left_alone(option: dict[str, Any]) -> None:
    """Places of pictures, and whatever a stranger's step has no score for: an index beyond ends the use of a GPU."""
    text, scores = torch.tensor([[3, 90, 3, -1, 2**62, 3]]), torch.arange(1.0, 6.0)[None]
    found = TokenChoice(**option).penalized(scores, text, 1, ())
    wanted = scores.clone()
    if "repetition_penalty" in option:
        wanted[0, 3] /= 1.3
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"max_batch":1}', GenerationLimits(0, 1, 1).to_text(), BAD_CHOICE])
def test_limits_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(PlanError, match="in no readable way"):
        GenerationLimits.from_text(text)


def test_limits_are_read_as_they_were_written() -> None:
    limits = GenerationLimits(2, 64, 16, (3, 5), 1)
    assert GenerationLimits.from_text(limits.to_text()) == limits
    older = '{"max_batch":2,"max_length":64,"prefill_chunk":16,"eos_token_ids":[3,5],"pad_token_id":1}'
    assert GenerationLimits.from_text(older) == limits
    rules = TokenRules((1, 2), (3,), 4, (5, 6), ((7, 8), (9,)), (((1, 2), 0.5),), (3, 1.5), True)
    for source in (
        SourceLimits(("input_ids", "attention_mask"), 9, 2),
        SourceLimits(("x",), 0, None, 3, 4, 5, 6, 7, 8),
        SourceLimits(("x", "y"), 0, None, 3, 4, 5, 6, 7, 8, beside=(9,), counts=True),
    ):
        whole = replace(
            limits,
            assisted_tokens=4,
            rules=rules,
            source=source,
            choice=TokenChoice(0.5, 7, min_p=0.1, early_stopping="never"),
        )
        assert GenerationLimits.from_text(whole.to_text()) == whole


@pytest.mark.parametrize(
    "source",
    [
        *(SourceLimits(()), SourceLimits(("x",), 9), SourceLimits(("x",), 0, 1, 2), SourceLimits(("x",), 0, None, 2)),
        SourceLimits(("x",), 0, None, 3, 4, 5, 6, 7, 8, beside=(9,)),
        SourceLimits(("x",), 0, None, 3, 4, 5, 6, 7, 8, counts=True),
        SourceLimits(("x", "y"), 0, None, 3, 4, 5, 6, 7, 8, beside=(0,)),
    ],
)
def test_sources_that_say_two_things_or_nothing_are_refused(source: SourceLimits) -> None:
    with pytest.raises(PlanError, match="in no readable way"):
        GenerationLimits.from_text(GenerationLimits(1, 2, 1, source=source).to_text())


@pytest.mark.parametrize("decay", [(0.5, -2.0), (0, math.nan), (math.inf, 2.0), (1.0,)])
def test_what_ends_a_row_becomes_likelier_by_a_factor_alone(decay: tuple[float, ...]) -> None:
    """A power of a number below 0 is complex."""
    with pytest.raises(InputError, match="a factor from 0"):
        TokenRules(length_decay=decay)


@pytest.mark.parametrize("decay", [(0, 1e300), (-1e308, 1.5), (0, 1e30)])
def test_factors_beyond_all_numbers_end_a_row(decay: tuple[float, float]) -> None:
    text = torch.zeros(1, 9, dtype=torch.int64)
    scores = TokenRules(length_decay=decay).applied(torch.arange(5.0)[None], text, 1, 10, (4, 0))
    assert scores[0].argmax() == 4 and scores[0, 0] == 0


@pytest.mark.parametrize(
    ("rules", "made", "expected"),
    [
        (TokenRules(suppressed=(4, 900)), 5, [0, 1, 2, 3]),
        (TokenRules(first_suppressed=(4,)), 1, [0, 1, 2, 3]),
        (TokenRules(first_suppressed=(4,)), 2, [0, 1, 2, 3, 4]),
        (TokenRules(first_suppressed=(4,), forced_first=2), 1, [2]),
        (TokenRules(first_suppressed=(4,), forced_first=2), 2, [0, 1, 2, 3]),
        (TokenRules(forced_last=(1, 3)), 8, [0, 1, 2, 3, 4]),
        (TokenRules(forced_last=(1, 3)), 9, [1, 3]),
        (TokenRules(bad_words=((2,), (4,), (0, 3), (7, 1), (900,))), 2, [0, 1, 4]),  # what ends a row is no bad word
        (TokenRules(bad_words=((0, 0, 0, 3),)), 4, [0, 1, 2, 4]),
        (TokenRules(bad_words=((0, 0, 0, 3),)), 3, [0, 1, 2, 3, 4]),  # as transformers
    ],
)
def test_rules_leave_the_tokens_that_may_come(rules: TokenRules, made: int, expected: list[int]) -> None:
    scores = rules.applied(torch.arange(5.0)[None], torch.zeros(1, made, dtype=torch.int64), 1, 10, (4,))
    assert scores[0].isfinite().nonzero().flatten().tolist() == expected


class Stated(nn.Module):
    """Returns what it was told to."""

    def __init__(self, made: Any) -> None:
        super().__init__()
        self.made = made

    def forward(self, *given: torch.Tensor) -> Any:
        return self.made


class Taking(nn.Module):
    """Scores of whatever it is given."""

    def forward(self, ids: torch.Tensor, start: torch.Tensor, padding: torch.Tensor, *told: torch.Tensor) -> Any:
        shape = (len(ids), VOCABULARY) if len(told) < 2 else (len(ids), len(told[0]), VOCABULARY)
        return torch.ones(shape)


@pytest.mark.parametrize(
    "made",
    [
        None,
        (),
        5,
        "abc",
        {"a": torch.ones(2, 9)},
        torch.ones(9),
        torch.ones(1, 9),
        torch.ones(2, 0),
        torch.ones(2, 1, 9),
    ],
    ids=repr,
)
@pytest.mark.parametrize("assisted", [1, 4])
def test_steps_that_return_something_else_are_told(made: Any, assisted: int) -> None:
    """Programs come from strangers, and say that they generate."""
    if assisted > 1 and isinstance(made, torch.Tensor) and made.dim() == 3:
        made = made[..., 0]
    generator = TextGenerator(Stated(made), GenerationLimits(2, 8, 4, assisted_tokens=assisted))
    with pytest.raises(ExecutionError, match="the step returned"):
        generator.generate(torch.ones(1, 2, dtype=torch.int64), max_new_tokens=3)


PICTURES = SourceLimits(("pixel_values",), 0, None, 5, VOCABULARY, 6, 4, 2, 3)


@pytest.mark.parametrize(
    "made", [None, (), 5, (None,), torch.ones(2, 3, 4), (torch.ones(2, 3, 5),), (torch.ones(2, 3, 4),) * 2], ids=repr
)
def test_encoders_that_return_something_else_are_told(made: Any) -> None:
    ids = torch.full((1, 6), 5)
    limits = GenerationLimits(2, 16, 4, source=PICTURES)
    with pytest.raises(ExecutionError, match="the encoder returned"):
        TextGenerator(Stated(torch.ones(2, VOCABULARY)), limits, Stated(made)).generate(
            ids, pixel_values=torch.ones(2, 3, 4, 4)
        )
    if not isinstance(made, tuple) or None in made or not made:
        limits = GenerationLimits(2, 16, 4, source=SourceLimits(("input_ids", "attention_mask"), 8, 1))
        with pytest.raises(ExecutionError, match="the encoder returned"):
            TextGenerator(Stated(torch.ones(2, VOCABULARY)), limits, Stated(made)).generate(ids)


def test_more_pictures_than_the_model_has_room_for_are_refused() -> None:
    ids, pictures = torch.full((1, 9), 5), torch.ones(3, 3, 4, 4)
    generator = TextGenerator(
        Stated(torch.ones(2, VOCABULARY)), GenerationLimits(2, 16, 4, source=PICTURES), Stated((torch.ones(2, 3, 4),))
    )
    with pytest.raises(InputError, match="compiled for 6"):
        generator.generate(ids, pixel_values=pictures)


@given(
    st.sampled_from(["max_batch", "max_length", "prefill_chunk", "assisted_tokens", "max_length of source"])
    | st.sampled_from(["vocabulary", "rows", "width", "pictures", "picture_rows", "pad_token_id", "image_token_id"]),
    st.sampled_from([-(2**63), -1, 0, 1, 2, 3, 2**16, 2**20, 2**24, 2**31, 2**40, 2**62, 2**63 - 1]),
    st.none() | st.just(2),
)
@settings(max_examples=150, deadline=None)
def test_numbers_of_strangers_neither_take_memory_nor_leave_as_foreign_errors(
    name: str, number: int, new: int | None
) -> None:
    """Of a model with pictures, each number in what its file says of generating."""
    document = json.loads(GenerationLimits(2, 16, 4, source=PICTURES).to_text())
    place = document["source"] if name in document["source"] and name != "max_length" else document
    place = document["source"] if name == "max_length of source" else place
    place[name.partition(" ")[0]] = number
    ids, pictures = torch.full((1, 6), 5), torch.ones(2, 3, 4, 4)
    try:
        limits = GenerationLimits.from_text(json.dumps(document))
        generator = TextGenerator(Taking(), limits, Stated((torch.ones(2, 3, 4),)))
        new = 2 if limits.max_length > 16 else new  # else a caller gets as much as they asked for
        made = generator.generate(ids, pixel_values=pictures, max_new_tokens=new)
    except TrtError:
        return
    assert made.shape[1] <= 17


SOUNDS: Final = SourceLimits(("input_features", "mask"), 0, None, 5, VOCABULARY, 6, 4, 2, 3, beside=(7,), counts=True)
_FILLED: Final = torch.tensor([[True, True, False], [True, False, False]])


@pytest.mark.parametrize(
    "made",
    [(torch.ones(2, 3, 4),), (torch.ones(2, 3, 4), _FILLED.long()), (torch.ones(2, 3, 4), _FILLED[:, :2])],
    ids=repr,
)
def test_encoders_of_sounds_say_which_rows_they_fill(made: Any) -> None:
    given = {"input_features": torch.ones(2, 3, 7), "mask": torch.ones(2, 7, dtype=torch.int32)}
    limits = GenerationLimits(2, 16, 4, source=SOUNDS)
    ids = torch.tensor([[1, 5, 5, 0, 5]])
    with pytest.raises(ExecutionError, match="and which rows are filled"):
        TextGenerator(Taking(), limits, Stated(made)).generate(ids, **given)
    generator = TextGenerator(Taking(), limits, Stated((torch.ones(2, 3, 4), _FILLED)))
    assert generator.generate(ids, **given, max_new_tokens=2).shape == (1, 7)
    with pytest.raises(InputError, match="4 places for sounds, and 2 sounds fill 3"):
        generator.generate(torch.tensor([[5, 5, 5, 5]]), **given)
    two = torch.full((2, 3), 5)
    with pytest.raises(InputError, match="5 sounds fill too many rows: the model was compiled for 6"):
        generator.generate(two, input_features=torch.ones(5, 3, 7), mask=torch.ones(5, 7, dtype=torch.int64))


@pytest.mark.parametrize("length", [-(2**63), -1, 0, 2, 6, 8, 2**24, 2**31, 2**40, 2**62, 2**63 - 1])
@pytest.mark.parametrize("counts", [True, False])
def test_lengths_of_strangers_neither_take_memory_nor_leave_as_foreign_errors(length: int, counts: bool) -> None:
    document = json.loads(GenerationLimits(2, 16, 4, source=replace(SOUNDS, counts=counts)).to_text())
    document["source"]["beside"] = [length]
    given = {"input_features": torch.ones(2, 3, 7), "mask": torch.ones(2, 7, dtype=torch.int64)}
    made = (torch.ones(2, 3, 4), _FILLED) if counts else (torch.ones(2, 3, 4),)
    ids = torch.tensor([[1, *[5] * (3 if counts else 6)]])
    try:
        limits = GenerationLimits.from_text(json.dumps(document))
        TextGenerator(Taking(), limits, Stated(made)).generate(ids, **given, max_new_tokens=2)
    except TrtError:
        return
    assert not counts
    assert length in (8, 2**24)
