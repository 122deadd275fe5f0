"""Images from scratch, privately: a small residual network with GroupNorm on handwritten digits.

1,797 images of 8 x 8 pixels, which scikit-learn ships. Run as `python images_from_scratch.py FOLDER --eps 8`.
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence

import torch
from finishing import finish, together
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import dpmech as dm
from dpmech.optim import make_private

WIDTH = 16


class Residual(nn.Module):
    """Two convolutions with a skip connection; group norms, as batch normalisation would mix examples."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(WIDTH, WIDTH, 3, padding=1),
            nn.GroupNorm(4, WIDTH),
            nn.ReLU(),
            nn.Conv2d(WIDTH, WIDTH, 3, padding=1),
            nn.GroupNorm(4, WIDTH),
        )

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        return nn.functional.relu(x + self.body(x))


def network() -> nn.Module:
    """A ResNet of one block for each of two resolutions."""
    return nn.Sequential(
        *(nn.Conv2d(1, WIDTH, 3, padding=1), nn.GroupNorm(4, WIDTH), nn.ReLU()),
        *(Residual(), nn.MaxPool2d(2), Residual(), nn.AvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(4 * WIDTH, 10)),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--eps", type=float, default=8.0)
    parser.add_argument("--epochs", type=int, default=30)
    given = parser.parse_args(arguments)
    pixels, digits = (
        torch.from_numpy(values) for values in load_digits(return_X_y=True)
    )
    images = (pixels.float() / 8 - 1).reshape(-1, 1, 8, 8)
    test = torch.arange(len(digits)) % 6 == 0
    train = TensorDataset(images[~test], digits[~test])

    # scikit-learn publishes the size of these data; of your own write a number of the plan.
    plan = dm.TrainingPlan(
        dataset_size=1497, batch_size=250, epochs=given.epochs
    )
    calibration = dm.calibrate_sigma(
        dm.Identity(plan.steps),
        given.eps,
        1e-5,
        participation=plan.participation("poisson"),
    )
    torch.manual_seed(
        0
    )  # of the first weights, which are no secret; noise and batches do not follow it
    model = network()
    sgd = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    private, optimizer, batches = make_private(
        model,
        sgd,
        DataLoader(train),
        calibration,
        1.0,
        loss=nn.CrossEntropyLoss(),
        expected_batch_size=plan.batch_size,
    )
    rates = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, plan.steps)
    while optimizer.steps_left:
        for batch in batches:
            private.backward(*batch)
            optimizer.step()
            rates.step()
    with torch.no_grad():
        accuracy = float(
            (model(images[test]).argmax(1) == digits[test]).float().mean()
        )
    sys.stdout.write(finish(optimizer.run_record(), given.folder, accuracy))
    return 0


if __name__ == "__main__":
    sys.exit(together(main))
