"""Handwritten digits: a private model, its certificate and run record."""

import argparse
import pathlib

import torch
from sklearn.datasets import load_digits

import dpmech as dm
from dpmech.optim import make_private

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("eps", type=float)
arguments.add_argument("folder", type=pathlib.Path)
given = arguments.parse_args()
given.folder.mkdir(parents=True, exist_ok=True)

pixels, digits = (
    torch.from_numpy(values) for values in load_digits(return_X_y=True)
)
pixels = (
    torch.nn.functional.layer_norm(pixels.float(), [64]) / 8
)  # of each image alone: length about 1
test = torch.arange(len(digits)) % 6 == 0
train = torch.utils.data.TensorDataset(pixels[~test], digits[~test])


def loss(
    model: torch.nn.Module, image: torch.Tensor, digit: torch.Tensor
) -> torch.Tensor:
    """Of one example."""
    return torch.nn.functional.cross_entropy(model(image), digit)


strategy, participation = (
    dm.LambdaCGD(n=50, lam=0.7),
    dm.BallsInBins(5),
)  # 10 epochs of 5 steps
calibration = dm.calibrate_sigma(
    strategy,
    given.eps,
    1e-5,
    participation=participation,
    method=dm.methods.Deterministic(),
    # Planned: the number of examples is private.
    expected_batch_size=299,
)
model = torch.nn.Linear(64, 10)
sgd = torch.optim.SGD(model.parameters(), lr=4.0, momentum=0.9)
loader = torch.utils.data.DataLoader(train)
private, optimizer, batches = make_private(
    model, sgd, loader, calibration, 1.0, loss=loss
)
while optimizer.steps_left:
    for images, labels in batches:
        private.backward(images, labels)
        optimizer.step()

record = optimizer.run_record()
record.certificate.save(given.folder / "certificate.json")
record.save(given.folder / "run.json")
accuracy = (model(pixels[test]).argmax(1) == digits[test]).float().mean()
print(f"{record.headline}; accuracy {accuracy:.3f}")
