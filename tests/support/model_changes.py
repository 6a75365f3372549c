"""What happens to a model between two calls: its weights, buffers and plain tensors are written to or replaced."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import prune as pruning
from torch_compile_programs import Model


def replace_parameter(model: Model, _: int) -> None:
    model.linear.weight = nn.Parameter(torch.full((4, 4), 0.5))


def replace_data(model: Model, call: int) -> None:
    model.linear.weight.data = torch.full((4, 4), float(call))


def write(model: Model, _: int) -> None:
    with torch.no_grad():
        model.linear.weight.mul_(2)


def write_through_data(model: Model, _: int) -> None:
    model.linear.weight.data.mul_(2)


def load(model: Model, call: int) -> None:
    model.load_state_dict({name: torch.full_like(value, call + 1) for name, value in model.state_dict().items()})


def step(model: Model, _: int) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def write_to_a_buffer(model: Model, call: int) -> None:
    model.cache.fill_(call)


def write_to_a_plain_tensor(model: Model, _: int) -> None:
    model.plain.add_(1)


def replace_a_plain_tensor(model: Model, call: int) -> None:
    model.plain = torch.full((4,), float(call))


def set_memory(model: Model, call: int) -> None:
    with torch.no_grad():
        model.linear.weight.set_(torch.full((4, 4), call + 0.5))


def load_by_assignment(model: Model, call: int) -> None:
    model.load_state_dict({k: torch.full_like(v, call + 1) for k, v in model.state_dict().items()}, assign=True)


def replace_in_a_list(model: Model, call: int) -> None:
    model.several[0] = torch.full((4,), call + 2.0)


def swap(model: Model, call: int) -> None:
    torch.utils.swap_tensors(model.linear.weight, nn.Parameter(torch.full((4, 4), call + 0.5)))


def tie(model: Model, call: int) -> None:
    model.linear.bias = nn.Parameter(model.linear.weight.detach()[call])  # a view of another weight


def parametrize(model: Model, call: int) -> None:
    nn.utils.parametrize.register_parametrization(model.linear, "weight", (nn.Tanh(), nn.Sigmoid(), nn.ReLU())[call])


def prune(model: Model, call: int) -> None:
    """Prunes, prunes further, and makes it permanent."""
    if call < 2:
        pruning.l1_unstructured(model.linear, "weight", 0.3)
    else:
        pruning.remove(model.linear, "weight")


def constrain(model: Model, call: int) -> None:
    """Makes weights orthogonal, by an operator that checks its result; then sets them, then what they come from."""
    if call == 0:
        nn.utils.parametrizations.orthogonal(model.linear, "weight", orthogonal_map="cayley")
    elif call == 1:
        model.linear.weight = torch.eye(4)
    else:
        with torch.no_grad():
            model.linear.parametrizations.weight.original.add_(0.1)


def write_to_transposed_data(model: Model, call: int) -> None:
    model.linear.weight.data = torch.full((4, 4), call + 0.5).tril().t()


def write_in_inference_mode(model: Model, call: int) -> None:
    with torch.inference_mode():
        model.linear.weight.add_(call)


def write_to_a_view(model: Model, call: int) -> None:
    model.linear.weight.detach()[1].fill_(call)


def freeze_in_part(model: Model, call: int) -> None:
    model.linear.requires_grad_(call % 2 == 0)


def write_to_plain_tensors(model: Model, _: int) -> None:
    model.plain.add_(1)
    model.kept["all"][0] = model.kept["all"][0] * 2


def train_and_evaluate(model: Model, call: int) -> None:
    model.train(call % 2 == 0)
