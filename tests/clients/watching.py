"""A progress monitor that watches a build, and a debug listener that watches a run."""

from __future__ import annotations

import ctypes

import tensorrt as trt
import torch


class Monitor(trt.IProgressMonitor):
    def __init__(self):
        trt.IProgressMonitor.__init__(self)
        self.open, self.finished = [], []

    def phase_start(self, phase_name, parent_phase, num_steps):
        self.open.append(phase_name)

    def step_complete(self, phase_name, step):
        return phase_name in self.open

    def phase_finish(self, phase_name):
        self.open.remove(phase_name)
        self.finished.append(phase_name)


class Listener(trt.IDebugListener):
    def __init__(self):
        trt.IDebugListener.__init__(self)
        self.seen = {}

    def process_debug_tensor(self, addr, location, type, shape, name, stream):  # noqa: A002
        self.seen[name] = list((ctypes.c_float * trt.volume(shape)).from_address(addr))


logger = trt.Logger(trt.Logger.WARNING)
builder = trt.Builder(logger)
network = builder.create_network(0)
x = network.add_input("x", trt.float32, (2,))
hidden = network.add_unary(x, trt.UnaryOperation.NEG).get_output(0)
hidden.name = "hidden"
network.mark_debug(x)
network.mark_debug(hidden)
network.mark_output(network.add_activation(hidden, trt.ActivationType.RELU).get_output(0))
config = builder.create_builder_config()
config.progress_monitor = monitor = Monitor()
engine = builder.build_engine_with_config(network, config)
assert monitor.finished and not monitor.open

context, listener = engine.create_execution_context(), Listener()
context.set_debug_listener(listener)
context.set_all_tensors_debug_state(True)
value, result = torch.tensor([1.0, -2.0]), torch.empty(2)
assert context.execute_v2([value.data_ptr(), result.data_ptr()])
assert listener.seen == {"x": [1.0, -2.0], "hidden": [-1.0, 2.0]}
