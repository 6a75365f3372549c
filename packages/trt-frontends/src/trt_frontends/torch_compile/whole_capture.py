"""Sets PyTorch up to capture what engines can take, for the time in which it captures for us.

Dynamo captures for compilers that differ from this one, and decides before a backend is asked. It breaks off where
`nn.LSTM`, `nn.GRU` and `nn.RNN` are called, which Inductor would unroll. Shapes of recurrent layers are found by
unrolling, and those of convolutions by asking which CPU library would compute them; both guard on sizes: engines would
be built for each length, and twice for a batch that may be smaller or larger than 16.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, Final

from trt_frontends.internals import use_mkldnn, use_nnpack, uses_mkldnn, uses_nnpack
from trt_lowering import keep_recurrent_layers


@contextlib.contextmanager
def whole_capture() -> Iterator[None]:
    """Lets Dynamo and AOTAutograd capture recurrent layers whole, and convolutions without guards on their batch.

    What is set here is global. Dynamo holds its lock while it captures.
    """
    from trt_frontends.internals import dynamo_config  # costly to import

    with dynamo_config.patch(allow_rnn=True), keep_recurrent_layers(), _one_convolution():
        yield


class Captures(threading.local):
    """The calls of this thread for which PyTorch captures in this way. Enter it for the time of a call."""

    def __init__(self) -> None:
        self._calls = 0
        self._entered: contextlib.ExitStack | None = None

    def __enter__(self) -> None:
        from trt_frontends.internals import callback_handler

        if self.begin not in callback_handler.start_callbacks:  # `torch._dynamo.reset` forgets all of them
            callback_handler.register_start_callback(self.begin)
            callback_handler.register_end_callback(self.end)
        self._calls += 1

    def __exit__(self, *_: object) -> None:
        self._calls -= 1

    def begin(self, _: Any) -> None:
        """Called by Dynamo before it captures anything, whichever backend that is for."""
        if self._calls:
            entered = contextlib.ExitStack()
            entered.enter_context(whole_capture())
            self._entered = entered

    def end(self, _: Any) -> None:
        """Called by Dynamo when it has captured, or failed to."""
        entered, self._entered = self._entered, None
        if entered is not None:
            entered.close()


CAPTURES: Final = Captures()


@contextlib.contextmanager
def _one_convolution() -> Iterator[None]:
    """Takes the CPU libraries between which PyTorch chooses by the size of the batch out of the choice.

    The layout of the result, which is what the choice is asked for, is the same with and without them.
    """
    mkldnn, nnpack = uses_mkldnn(), uses_nnpack()
    use_mkldnn(False)
    use_nnpack(False)
    try:
        yield
    finally:
        use_mkldnn(mkldnn)
        use_nnpack(nnpack)
