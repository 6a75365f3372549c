"""Small models that are trained, in seconds, on the handwritten digits that scikit-learn ships: tests share them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class Trained:
    """A trained model and data.

    Attributes:
        model: In evaluation mode.
        calibration: Batches from the training set, (64, ...) each.
        images: The test set.
        labels: (N,), int64.
    """

    model: nn.Module
    calibration: list[torch.Tensor]
    images: torch.Tensor
    labels: torch.Tensor

    def accuracy(self, model: object) -> float:
        """Returns the share of right answers on the test set, in percent."""
        assert callable(model)
        with torch.no_grad():
            answers = torch.cat([model(part).argmax(1) for part in self.images.split(100)])
        return 100.0 * float((answers == self.labels).float().mean())


class Convolutional(nn.Sequential):
    """(N, 1, 8, 8) to (N, 10), with batch normalization."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(512, 10),
        )


class Transformer(nn.Module):
    """(N, 8, 8), eight rows as tokens, to (N, 10): two pre-norm layers of width 64."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Linear(8, 64)
        self.places = nn.Parameter(torch.randn(8, 64) * 0.1)
        self.norms = nn.ModuleList(nn.LayerNorm(64) for _ in range(4))
        self.queries = nn.ModuleList(nn.Linear(64, 192) for _ in range(2))
        self.outputs = nn.ModuleList(nn.Linear(64, 64) for _ in range(2))
        self.wide = nn.ModuleList(nn.Linear(64, 128) for _ in range(2))
        self.narrow = nn.ModuleList(nn.Linear(128, 64) for _ in range(2))
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embedding(x) + self.places
        for index in range(2):
            projected = self.queries[index](self.norms[2 * index](x))
            query, key, value = projected.unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)
            mixed = functional.scaled_dot_product_attention(query, key, value)
            x = x + self.outputs[index](mixed.transpose(1, 2).flatten(2))
            x = x + self.narrow[index](functional.gelu(self.wide[index](self.norms[2 * index + 1](x))))
        return self.head(x.mean(1))


def train(model: nn.Module, shape: tuple[int, ...], epochs: int) -> Trained:
    """Trains a model on two thirds of the digits; the same numbers every time."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.from_numpy(digits.images).float().reshape(-1, *shape) / 16.0
    labels = torch.from_numpy(digits.target).long()
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(images), generator=generator)
    held_out, used = order[: len(order) // 3], order[len(order) // 3 :]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, epochs=epochs, steps_per_epoch=len(used) // 64 + 1)
    for _ in range(epochs):
        for batch in used[torch.randperm(len(used), generator=generator)].split(64):
            optimizer.zero_grad()
            functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
            schedule.step()
    calibration = [images[part] for part in used[:512].split(64)]
    return Trained(model.eval(), calibration, images[held_out], labels[held_out])


@pytest.fixture(scope="session")
def digits_cnn() -> Trained:
    pytest.importorskip("sklearn")
    torch.manual_seed(0)
    return train(Convolutional(), (1, 8, 8), 8)


@pytest.fixture(scope="session")
def digits_transformer() -> Trained:
    pytest.importorskip("sklearn")
    torch.manual_seed(0)
    return train(Transformer(), (8, 8), 16)
