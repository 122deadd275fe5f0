"""A table of numbers, privately: tumours of the breast, with DP-SGD (Poisson sampling) in one call.

569 rows and 30 columns, which scikit-learn ships. Run as `python tabular.py FOLDER --eps 4`.
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence

import torch
from finishing import finish, processes, together
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import dpmech as dm
from dpmech.optim import make_private_with_epsilon

# Typical sizes of these measurements, to one digit, set by hand. Means and standard deviations that are taken
# from these rows would be separate releases.
SCALES = (
    *(15, 20, 100, 700, 0.1, 0.1, 0.1, 0.05, 0.2, 0.06),
    *(0.4, 1, 3, 40, 0.007, 0.03, 0.03, 0.01, 0.02, 0.004),
    *(16, 25, 110, 900, 0.1, 0.3, 0.3, 0.1, 0.3, 0.08),
)


def rows() -> tuple[Tensor, Tensor]:
    """Measurements of about 0, and whether the tumour is benign."""
    values, benign = (
        torch.from_numpy(one) for one in load_breast_cancer(return_X_y=True)
    )
    scaled = (values.float() / torch.tensor(SCALES)).clamp(0.0, 3.0) - 1.0
    return nn.functional.normalize(scaled), benign


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--eps", type=float, default=4.0)
    parser.add_argument("--epochs", type=int, default=20)
    given = parser.parse_args(arguments)
    values, benign = rows()
    test = torch.arange(len(values)) % 5 == 0
    torch.manual_seed(
        0
    )  # of the first weights, which are no secret; noise and batches do not follow it
    model = nn.Sequential(nn.Linear(30, 16), nn.Tanh(), nn.Linear(16, 2))
    private, optimizer, batches = make_private_with_epsilon(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9),
        DataLoader(
            TensorDataset(values[~test], benign[~test]),
            batch_size=91 // processes(),
        ),
        eps=given.eps,
        delta=1e-4,
        epochs=given.epochs,
        dataset_size=455,  # declared: how many there are is private
        strategy=dm.Identity,  # DP-SGD under Poisson sampling
        loss=nn.CrossEntropyLoss(),
    )
    while optimizer.steps_left:
        for batch in batches:
            private.backward(*batch)
            optimizer.step()
    with torch.no_grad():
        accuracy = float(
            (model(values[test]).argmax(1) == benign[test]).float().mean()
        )
    sys.stdout.write(finish(optimizer.run_record(), given.folder, accuracy))
    return 0


if __name__ == "__main__":
    sys.exit(together(main))
