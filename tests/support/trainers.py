"""Tiny runs of Hugging Face's Trainer and of Lightning, for tests."""

import torch
from torch import nn
from torch.utils.data import Dataset

SIZE, WIDTH, CLASSES = 24, 3, 2


class Rows(Dataset):
    """Rows with labels, as dicts."""

    def __init__(self, size=SIZE, seed=0):
        rng = torch.Generator().manual_seed(seed)
        self.inputs = torch.randn(size, WIDTH, generator=rng)
        self.labels = torch.randint(CLASSES, (size,), generator=rng)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"inputs": self.inputs[index], "labels": self.labels[index]}


class Classifier(nn.Module):
    """A model that computes its loss, as those of transformers do; dropout draws in every step."""

    def __init__(self, dropout=0.2):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.last = nn.Linear(WIDTH, 4), nn.Linear(4, CLASSES)
        self.drop = nn.Dropout(dropout)

    @classmethod
    def plain(cls):
        """Without arguments, as a Trainer makes models."""
        return cls()

    def forward(self, inputs, labels=None):
        logits = self.last(self.drop(torch.tanh(self.first(inputs))))
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


def masked(rows):
    """A collate function that draws: some inputs are set to zero, as words are masked."""
    inputs = torch.stack([row["inputs"] for row in rows])
    return {
        "inputs": inputs * (torch.rand_like(inputs) > 0.1),
        "labels": torch.stack([row["labels"] for row in rows]),
    }
