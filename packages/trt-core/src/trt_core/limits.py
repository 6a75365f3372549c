"""What a call of something that nobody trusts may use, and the account that is kept of it.

Every operator of PyTorch that runs inside of `Account.watching` is looked at before it runs: how many elements it makes
follows from the shapes and numbers that it is given (`trt_core.operator_counts`), views count as large as they say
wherever something reads them, and memory is counted by what it is, so that what was freed is free. The same serves
steps of programs and layers of plans. Watching costs some microseconds per operator; whoever calls with sizes that an
account has passed, and with nothing that depends on data, need not be watched again.
"""

from __future__ import annotations

import contextvars
import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from trt_core.errors import ExecutionError, InputError
from trt_core.internals import OpOverload, TorchDispatchMode, has_kernel
from trt_core.operator_counts import MASKS, elements_made, operands_of, pieces_made, scratch_of, work_of

_FLOOR: Final = 512 << 20
_ALIVE: Final = 256
"""Bytes that may be alive at once, for each byte that is given."""
_MADE: Final = 64
"""Bytes that may be made in all, for each that may be alive."""
_LEAST_ELEMENTS: Final = 1 << 44
_ELEMENTS: Final = 1 << 18
"""Elements that may be read, made or added up, for each byte that is given."""
_STEPS: Final = (1 << 20, 1 << 24)
"""Operators that a small call may run, and those of a large one: loops repeat them, one for each byte that is given."""
_TURNS: Final = (1 << 14, 1 << 20)
_TURN_BYTES: Final = 4
"""Bytes that are given for each turn of a loop beyond the first ones."""
_ASSUMED: Final = 1 / 8
"""Elements of surely small operators that nobody counts one by one, as a part of those that there may be."""
_SMALL: Final = 1 << 10
"""Bytes of a result that are not worth a note."""
_PIECE: Final = 1 << 10
"""Bytes that a tensor takes without its elements."""


@dataclass(frozen=True)
class CallLimits:
    """Limits of one call. None follows from the bytes that are given: inputs, weights and what is held.

    Attributes:
        bytes_alive: Of results at any time, and of views that an operator reads; 256 for each byte that is given, at
            least 512 MiB.
        bytes_made: Of all results; 64 times as many as may be alive.
        elements: Read, made, and added up in products; 2^18 for each byte that is given, at least 2^44. Those of small
            operators are estimated, which makes it an eighth more at most.
        steps: Operators that run; one for each byte that is given, at least 2^20, at most 2^24.
        loop_turns: Turns of all loops; one for each 4 bytes that are given, at least 2^14, at most 2^20.
        seconds: Of the clock, from the beginning of the outermost call. Looked at before each operator, or layer, of
            every call: none is interrupted while it runs.
    """

    bytes_alive: float | None = None
    bytes_made: float | None = None
    elements: float | None = None
    steps: float | None = None
    loop_turns: float | None = None
    seconds: float = math.inf

    def __post_init__(self) -> None:
        for name, value in self.__dict__.items():  # most are None, and one is made for each call that is charged
            if (value is None and name != "seconds") or (type(value) in (int, float) and value >= 0):
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
                raise InputError(f"{name} of limits is a number that is not negative, not {value!r:.60}")

    @property
    def is_timed(self) -> bool:
        """Whether the clock is looked at, so that calls are watched whose sizes have passed already."""
        return self.seconds != math.inf

    def of_call(self, given: int) -> CallLimits:
        """Returns them with a number for each.

        Args:
            given: Bytes of inputs, weights and what else is there before the call.
        """
        alive = max(_FLOOR, _ALIVE * given) if self.bytes_alive is None else self.bytes_alive
        made = _MADE * alive if self.bytes_made is None else self.bytes_made
        elements = max(_LEAST_ELEMENTS, _ELEMENTS * given) if self.elements is None else self.elements
        steps = min(max(given, _STEPS[0]), _STEPS[1]) if self.steps is None else self.steps
        turns = min(max(given // _TURN_BYTES, _TURNS[0]), _TURNS[1]) if self.loop_turns is None else self.loop_turns
        return CallLimits(alive, made, elements, steps, turns, self.seconds)

    def of_part(self, call: CallLimits) -> CallLimits:
        """Returns those of a part of a call, which are the call's where these say nothing, or more."""
        pairs = zip(self.__dict__.values(), call.__dict__.values(), strict=True)
        least = [most if own is None else min(own, most) for own, most in pairs]
        return call if least == [*call.__dict__.values()] else CallLimits(*least)


UNLIMITED: Final = CallLimits(*[math.inf] * len(fields(CallLimits)))

_WORDS: Final = {
    "bytes_alive": "bytes at once",
    "bytes_made": "bytes in all",
    "elements": "elements to read, make or add up",
    "steps": "operators",
    "loop_turns": "turns of loops",
    "seconds": "seconds",
}

_HINT: Final = "if you trust whoever wrote it, give it more: limits=trt_core.limits.CallLimits({field}=...)"


class LimitReached(ExecutionError):
    """A call takes more than it may.

    Attributes:
        field: The limit, as `CallLimits` calls it.
    """

    field: str = ""


_open: contextvars.ContextVar[Account | None] = contextvars.ContextVar("trt_account", default=None)


def _never() -> bool:
    return False


class Usage(NamedTuple):
    """What a part of a call has used, which it uses again whenever it runs with inputs of the same sizes.

    Attributes:
        made, elements, steps: As an account counts them.
        assumed: Elements that were estimated.
        alive: Bytes that were alive at once, at most.
    """

    made: float
    elements: float
    assumed: float
    steps: float
    alive: float


class Account:
    """What one call has used of its limits.

    Inside of another account it is one of a part of that call, and counts on from what the call has used, and from what
    is alive there.

    Args:
        limits: Of the call. No part of a call has more than the call: what one part has made is given to the next, and
            would let it make as many times as much.
        given: Bytes that are there before the call; of a part of a call, nobody asks.
        is_exempt: Asked once a limit is reached: whether the file turns out to be trusted, and has none.
        hint: What a message says is to be done; ``{field}`` is the limit.

    Attributes:
        limits: A number for each.
        alive, made, elements, steps, turns: What was used so far; of what is alive some may be free by now.
        has_seen_data: Whether an operator ran whose result has sizes that depend on data; whoever reads numbers of a
            tensor to make something of them sets it as well.
        has_loose_parts: Whether what a part of the call uses depends on data.
    """

    def __init__(
        self, limits: CallLimits, given: int = 0, *, is_exempt: Callable[[], bool] = _never, hint: str = _HINT
    ) -> None:
        outer = _open.get()
        if outer is None:
            self.limits: CallLimits = limits.of_call(given)
            self.made = self.elements = self.steps = self.turns = self._assumed_elements = 0.0
            self._end: float = time.monotonic() + limits.seconds
        else:
            self.limits = outer.limits if limits is outer._asked else limits.of_part(outer.limits)
            self.made, self.elements, self.steps, self.turns = outer.made, outer.elements, outer.steps, outer.turns
            self._assumed_elements = outer._assumed_elements
            self._end = outer._end if limits.seconds == math.inf else min(outer._end, time.monotonic() + limits.seconds)
        self._begin = (self.made, self.elements, self._assumed_elements, self.steps)
        self._outer = outer
        self._outside = 0.0 if outer is None else outer._alive_for_parts()
        self.alive = self._most_alive = self._outside
        self._assumed = 0.0
        self._living: Callable[[], Sequence[Any]] | None = None
        self.has_seen_data = self.has_loose_parts = False
        self._asked: CallLimits = limits
        self._is_exempt = is_exempt
        self._hint = hint
        self._held: dict[int, tuple[StorageWeakRef, int]] = {}
        self._next_sweep = 1 << 10

    def watching(self) -> TorchDispatchMode:
        """A block of operators that the account is charged with."""
        return _Watching(self)

    def settle_by(self, living: Callable[[], Sequence[Any]]) -> None:
        """Says how to find all that lives, which parts of the call ask for where room that was assumed is wanted."""
        self._living = living

    def _rise(self, alive: float) -> None:
        self.alive = alive
        if alive > self._most_alive:
            self._most_alive = alive

    def _alive_for_parts(self) -> float:
        """Bytes that are alive where a part of the call begins, counted closely where there may be many."""
        if 2 * self.alive > self.limits.bytes_alive:  # type: ignore[operator]  # each has a number
            self._count_closely()
        return self.alive

    def _count_closely(self) -> None:
        """Gives back the room of what is free, and that was assumed, here and in the call around."""
        if self._living is not None:
            self.settle(self._living())
        self._sweep()
        if self._outer is not None:
            self._outer._count_closely()
            change = self._outer.alive - self._outside
            self._outside += change
            self.alive += change
            self._most_alive += change

    def assume(self, size: float, elements: float) -> bool:
        """Takes room for what an operator makes at most, if there is so much that it need not be looked at.

        Args:
            size: Bytes that it makes, on the way too; they stay taken until `settle`.
            elements: That it reads, makes and adds up.
        """
        limits = self.limits
        alive, read = self.alive + size, self._assumed_elements + elements
        if (
            alive > limits.bytes_alive  # type: ignore[operator]  # each has a number
            or self.made + size > limits.bytes_made  # type: ignore[operator]
            or read > _ASSUMED * limits.elements  # type: ignore[operator]
            or self.steps >= limits.steps  # type: ignore[operator]
            or (self._end != math.inf and time.monotonic() > self._end)
        ):
            return False
        self.steps += 1
        self.alive = alive
        if alive > self._most_alive:
            self._most_alive = alive
        self._assumed += size
        self._assumed_elements = read
        return True

    @property
    def is_timed(self) -> bool:
        """Whether there is a time at which the call ends, its own or that of the call around it."""
        return self._end != math.inf

    def room(self) -> tuple[float, float, float]:
        """Returns bytes, elements and operators for which `assume` would take room now, whatever the clock says."""
        limits = self.limits
        return (
            min(limits.bytes_alive - self.alive, limits.bytes_made - self.made),  # type: ignore[operator]
            _ASSUMED * limits.elements - self._assumed_elements,  # type: ignore[operator]  # each has a number
            limits.steps - self.steps,  # type: ignore[operator]
        )

    def took(self, size: float, elements: float, steps: float, made: float) -> None:
        """Notes what somebody took of `room`, as `assume` does for each operator.

        Args:
            size: Bytes, at most; they stay taken until `settle`.
            elements: Elements to read, make and add up, at most.
            steps: Operators.
            made: Bytes that were made of it.
        """
        self._rise(self.alive + size)
        self._assumed += size
        self._assumed_elements += elements
        self.steps += steps
        self.made += made

    def settle(self, values: Sequence[Any]) -> None:
        """Gives back the room that was taken by assumption, but for what lives.

        Args:
            values: All that lives.
        """
        if not self._assumed:
            return
        self.alive -= self._assumed
        self._assumed = 0.0
        made = self.made
        self.note(values)
        self.made = made

    def made_by_assumption(self, result: Any) -> None:
        """Counts what an operator has made for which room was taken."""
        self.made += _size_of(result)

    def assume_alive(self, result: Any) -> bool:
        """Takes room for what a part of the call has made, if there is so much; see `settle`."""
        size = _size_of(result)
        if self.alive + size > self.limits.bytes_alive or self.made + size > self.limits.bytes_made:  # type: ignore[operator]
            return False
        self.made += size
        self._rise(self.alive + size)
        self._assumed += size
        return True

    def turn(self, loop: str) -> None:
        """Charges a turn of a loop.

        Raises:
            ExecutionError: There were more than a call may have.
        """
        self.turns += 1
        if self.turns > self.limits.loop_turns:  # type: ignore[operator]  # each has a number
            self._refuse("loop_turns", self.turns, f"loop {loop!r}")
        self.look_at_clock(f"loop {loop!r}")

    def run_steps(self, count: int, where: str) -> None:
        """Charges what is no operator, and takes the time of so many.

        Args:
            count: How many.
            where: What runs.

        Raises:
            ExecutionError: There are more than a call may have.
        """
        self.steps += count
        if self.steps > self.limits.steps:  # type: ignore[operator]  # each has a number
            self._refuse("steps", self.steps, where)

    def look_at_clock(self, where: str) -> None:
        """Sees whether there is time left.

        Args:
            where: What begins now.

        Raises:
            ExecutionError: There is none.
        """
        if time.monotonic() > self._end:
            self._refuse("seconds", self.limits.seconds, where)

    def collect(self, size: int, loop: str) -> None:
        """Charges bytes that a loop keeps until it ends.

        Raises:
            ExecutionError: There were more than a call may have.
        """
        self._expect(size, 0, f"loop {loop!r}")
        self.made += size

    def before(self, operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Charges what an operator reads and adds up, and sees whether there is room for what it makes.

        Raises:
            ExecutionError: There is none.
        """
        self.steps += 1
        if self.steps > self.limits.steps:  # type: ignore[operator]  # each has a number
            self._refuse("steps", self.steps, str(operator))
        if time.monotonic() > self._end:  # as `look_at_clock`, without the operator's name
            self._refuse("seconds", self.limits.seconds, str(operator))
        kind = _kind_of(operator)
        if kind.depends_on_data or (kind.takes_masks and _has_mask(args[1] if len(args) > 1 else kwargs["indices"])):
            self.has_seen_data = True
        if kind.is_view:
            self.expect_pieces(operator, args, kwargs)
            return
        given, width, unfolded = _read(args, kwargs)
        operands = operands_of(operator, args, kwargs)
        made = 0.0
        if not kind.writes:
            counted = elements_made(operator, operands)
            made = float(given) if counted is None else counted
            first = args[0] if args else kwargs.get("input")
            if isinstance(first, torch.Tensor):
                unfolded += int(min(scratch_of(operator, operands, made, first) * first.itemsize, 2.0**62))
            if kind.makes_list:
                unfolded += int(pieces_made(operator, operands)) * _PIECE
        self._expect(made * width + unfolded, max(given + made, work_of(operator, operands, made)), str(operator))

    def expect_pieces(self, operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Sees whether there is room for as many tensors as an operator makes.

        Raises:
            ExecutionError: There is none.
        """
        if _kind_of(operator).makes_list:
            pieces = pieces_made(operator, operands_of(operator, args, kwargs))
            self._expect(pieces * _PIECE, pieces, str(operator))

    def after(self, operator: OpOverload, result: Any) -> None:
        """Notes what an operator has made.

        Raises:
            ExecutionError: It is more than a call may use.
        """
        kind = _kind_of(operator)
        if kind.is_view or kind.writes:
            return
        for made in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(made, torch.Tensor):
                self._note(made, operator)

    def lay_out(self, values: Sequence[Any], reader: str) -> int:
        """Sees whether there is room for dense copies of what lies otherwise in memory, or has no memory of its own.

        Args:
            values: What is read.
            reader: Who makes the copies.

        Returns:
            Their bytes.

        Raises:
            ExecutionError: There is none.
        """
        size = 0
        for value in values:
            if isinstance(value, torch.Tensor) and not value.is_contiguous():
                size += value.nbytes
        if size:
            self._expect(size, 0, reader)
        return size

    def lend(self, size: int) -> None:
        """Takes room that a part of the call fills until it ends; a negative size gives it back."""
        self._rise(self.alive + size)

    def absorb(self, part: Account) -> None:
        """Counts on from what a part of the call has used; what of it is alive is noted by who has it."""
        self.made, self.elements, self.steps, self.turns = part.made, part.elements, part.steps, part.turns
        self._assumed_elements = part._assumed_elements
        if part._outer is self and part._most_alive > self._most_alive:
            self._most_alive = part._most_alive
        self.has_loose_parts |= part.has_loose_parts

    @property
    def used(self) -> Usage:
        """What was used by this account alone, but for turns of loops."""
        made, elements, assumed, steps = self._begin
        return Usage(
            self.made - made,
            self.elements - elements,
            self._assumed_elements - assumed,
            self.steps - steps,
            self._most_alive - self._outside,
        )

    def use_again(self, usage: Usage) -> bool:
        """Counts what a part of the call uses that is not looked at, if there is so much left.

        Args:
            usage: What it used when it was looked at. Turns of loops are counted in any case.
        """
        limits = self.limits
        made, elements, steps = self.made + usage.made, self.elements + usage.elements, self.steps + usage.steps
        read = self._assumed_elements + usage.assumed
        if (
            made > limits.bytes_made  # type: ignore[operator]  # each has a number
            or elements > limits.elements  # type: ignore[operator]
            or read > _ASSUMED * limits.elements  # type: ignore[operator]
            or steps > limits.steps  # type: ignore[operator]
        ):
            return False
        if self.alive + usage.alive > limits.bytes_alive:  # type: ignore[operator]
            self._count_closely()
            if self.alive + usage.alive > limits.bytes_alive:  # type: ignore[operator]
                return False
        self.made, self.elements, self.steps, self._assumed_elements = made, elements, steps, read
        self._most_alive = max(self._most_alive, self.alive + usage.alive)
        return True

    def note(self, result: Any) -> None:
        """Notes tensors that something else made."""
        for made in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(made, torch.Tensor):
                self._note(made, "an engine")

    def _note(self, tensor: torch.Tensor, maker: object) -> None:
        if tensor.layout is not torch.strided:
            return
        size = tensor.nbytes
        if 0 in tensor.stride():
            size = tensor.untyped_storage().nbytes()
        self.made += size
        if size < _SMALL:
            return
        storage = tensor.untyped_storage()
        reference = StorageWeakRef(storage)
        key = int(reference.cdata)
        held = self._held.get(key)
        if held is not None and not held[0].expired():
            return
        size = storage.nbytes()
        if held is not None:
            self.alive -= held[1]
        self._held[key] = (reference, size)
        self._rise(self.alive + size)
        if len(self._held) > self._next_sweep:
            self._sweep()
        if self.alive > self.limits.bytes_alive:  # type: ignore[operator]  # each has a number
            self._expect(0, 0, str(maker))

    def _expect(self, size: float, elements: float, maker: str) -> None:
        self.elements += elements
        limits = self.limits
        assert limits.bytes_alive is not None and limits.bytes_made is not None and limits.elements is not None
        if self.elements > limits.elements:
            self._refuse("elements", self.elements, maker)
        if self.made + size > limits.bytes_made:
            self._refuse("bytes_made", self.made + size, maker)
        if self.alive + size > limits.bytes_alive:
            self._count_closely()
            if self.alive + size > limits.bytes_alive:
                self._refuse("bytes_alive", self.alive + size, maker)
        if self.alive + size > self._most_alive:
            self._most_alive = self.alive + size

    def _sweep(self) -> None:
        """Forgets what is free."""
        for key, (reference, size) in list(self._held.items()):
            if reference.expired():
                self.alive -= size
                del self._held[key]
        self._next_sweep = 2 * len(self._held) + (1 << 10)

    def _refuse(self, field: str, wanted: float, maker: str) -> None:
        most = getattr(self.limits, field)
        if self._is_exempt():
            self.limits, self._end = UNLIMITED, math.inf
            return
        error = LimitReached(
            f"the call takes more than {most:.0f} {_WORDS[field]}",
            where=maker,
            why=f"{wanted:.3g} would be reached, and what is loaded is not trusted",
            hint=self._hint.format(field=field),
        )
        error.field = field
        raise error


def open_account() -> Account | None:
    """The account of the call that is running; None where nothing is counted."""
    return _open.get()


class charging:  # as a function of contextlib, it took twice the time of all that it does
    """A call that is charged to an account.

    Args:
        account: The account, which entering returns.
    """

    __slots__ = ("_account", "_token")

    def __init__(self, account: Account) -> None:
        self._account = account

    def __enter__(self) -> Account:
        self._token = _open.set(self._account)
        return self._account

    def __exit__(self, *_: object) -> None:
        _open.reset(self._token)
        outer = _open.get()
        if outer is not None:
            outer.absorb(self._account)


class _Watching(TorchDispatchMode):
    """Shows the operators of a block to an account."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is watched while Dynamo traces, and what would skip it takes seconds to import

    def __init__(self, account: Account) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # its base has no annotations
        self._account = account

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, OpOverload):
            return func(*args, **kwargs)
        if _kind_of(func).is_composite:  # what it consists of tells what it makes on the way
            self._account.expect_pieces(func, args, kwargs)
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        self._account.before(func, args, kwargs)
        result = func(*args, **kwargs)
        self._account.after(func, result)
        return result


@dataclass(frozen=True)
class _Kind:
    """What is to be known of an operator before it runs.

    Attributes:
        is_view: Whether it makes nothing but views.
        writes: Whether it writes into memory that it is given.
        makes_list: Whether it makes a list of tensors.
        is_composite: Whether it is made of other operators everywhere.
        depends_on_data: Whether sizes come from data.
        takes_masks: Whether they do where an operand is a mask.
    """

    is_view: bool
    writes: bool
    makes_list: bool
    is_composite: bool
    depends_on_data: bool
    takes_masks: bool


_PLAIN: Final = frozenset(f"aten::{name}" for name in ("linear", "conv1d", "conv2d", "conv3d", "layer_norm", "dropout"))
"""Operators made of others that make nothing worth a note on the way."""


def is_plain(operator: OpOverload) -> bool:
    """Whether an operator is one kernel that makes tensors of sizes which follow from those of its operands."""
    kind = _kind_of(operator)
    return not (kind.writes or kind.makes_list or kind.is_composite or kind.depends_on_data or kind.takes_masks)


@functools.lru_cache(maxsize=4096)
def _kind_of(operator: OpOverload) -> _Kind:
    schema = operator._schema
    name = operator.name()
    returns = schema.returns
    is_composite = (
        schema.name not in _PLAIN
        and has_kernel(name, "CompositeImplicitAutograd")
        and not any(has_kernel(name, key) for key in ("CPU", "CUDA"))
    )
    return _Kind(
        is_view=operator.is_view,
        writes=schema.is_mutable,
        makes_list=len(returns) == 1 and isinstance(returns[0].type, torch.ListType),
        is_composite=is_composite,
        depends_on_data=torch.Tag.dynamic_output_shape in operator.tags and schema.name != "aten::index",
        takes_masks=schema.name == "aten::index",
    )


def _size_of(result: Any) -> int:
    """Bytes of tensors, as they say."""
    size = 0
    for made in result if isinstance(result, (tuple, list)) else (result,):
        if isinstance(made, torch.Tensor):
            size += made.nbytes
    return size


def _has_mask(indices: Sequence[torch.Tensor | None]) -> bool:
    return any(index is not None and index.dtype in MASKS for index in indices)


def _read(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, int, int]:
    """Elements of operands, bytes of the widest, and bytes that operands take where a kernel unfolds them."""
    count = unfolded = 0
    width = 8  # places are that wide, and so is what is made of truth values
    for value in (*args, *kwargs.values()):
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(item, torch.Tensor):
                elements, size = item.numel(), item.itemsize
                count += elements
                width = max(width, size)
                if elements > _SMALL and item.layout is torch.strided and 0 in item.stride():
                    unfolded += elements * size
            elif isinstance(item, torch.dtype):
                width = max(width, item.itemsize)
    return count, width, unfolded
