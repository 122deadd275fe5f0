"""Handwritten digits: a private model, its certificate and run record."""

import argparse
import pathlib

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import dpmech as dm
from dpmech.optim import make_private

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("eps", type=float)
arguments.add_argument("folder", type=pathlib.Path)
given = arguments.parse_args()
given.folder.mkdir(parents=True, exist_ok=True)

pixels, digits = map(torch.from_numpy, load_digits(return_X_y=True))
# Each image is scaled by itself, to a length of about 1.
pixels = nn.functional.layer_norm(pixels.float(), [64]) / 8
test = torch.arange(len(digits)) % 6 == 0
train = torch.utils.data.TensorDataset(pixels[~test], digits[~test])


def loss(model: nn.Module, image: Tensor, digit: Tensor) -> Tensor:
    """Of one example."""
    return nn.functional.cross_entropy(model(image), digit)


# 10 epochs of 5 steps
strategy, bins = dm.LambdaCGD(n=50, lam=0.7), dm.BallsInBins(5)
# The batch size is planned: how many examples there are is private.
cal = dm.calibrate_sigma(
    strategy,
    given.eps,
    delta=1e-5,
    participation=bins,
    method=dm.methods.Deterministic(),
    expected_batch_size=299,
)
model = nn.Linear(64, 10)
sgd = torch.optim.SGD(model.parameters(), lr=4.0, momentum=0.9)
loader = torch.utils.data.DataLoader(train)
private, sgd, batches = make_private(model, sgd, loader, cal, 1.0, loss=loss)
while sgd.steps_left:
    for images, labels in batches:
        private.backward(images, labels)
        sgd.step()

record = sgd.run_record()
record.certificate.save(given.folder / "certificate.json")
record.save(given.folder / "run.json")
accuracy = (model(pixels[test]).argmax(1) == digits[test]).float().mean()
print(f"{record.headline}; accuracy {accuracy:.3f}")
