r"""The digits by several processes, that may be killed and go on, or by one.

    torchrun --standalone --nproc-per-node 2 --max-restarts 3 \
        digits_ddp.py 8 FOLDER

Every process loads the whole dataset and gets its part of every batch; clipped
sums are added over processes, and the noise is added once. A run that finds
checkpoints in the folder resumes from them.
"""

import argparse
import os
import pathlib
import sys
from collections.abc import Sequence

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import dpmech as dm
from dpmech.optim import (
    BatchOptimizer,
    load_checkpoint,
    make_private,
    save_checkpoint,
)


def digits() -> tuple[Dataset, tuple[Tensor, Tensor]]:
    """Examples to train on, and (images, digits) to test on."""
    pixels, labels = (
        torch.from_numpy(values) for values in load_digits(return_X_y=True)
    )
    images = (
        torch.nn.functional.layer_norm(pixels.float(), [64]) / 8
    )  # of each image alone
    test = torch.arange(len(labels)) % 6 == 0
    return TensorDataset(images[~test], labels[~test]), (
        images[test],
        labels[test],
    )


def loss(model: nn.Module, image: Tensor, digit: Tensor) -> Tensor:
    """Of one example."""
    return torch.nn.functional.cross_entropy(model(image), digit)


def train(
    dataset: Dataset,
    calibration: object,
    checkpoint: pathlib.Path,
    seed: int | None = None,
) -> tuple[nn.Module, BatchOptimizer]:
    """One process of a run: model and optimizer after the last step.

    Args:
        dataset: all of it.
        calibration: the same in all processes.
        checkpoint: of this process; read if it is there, written at the start
            and after every other step.
        seed: of weights, batches and noise, for a run that must repeat;
            private training takes None.
    """
    if seed is not None:
        torch.manual_seed(seed)
    model = nn.Linear(64, 10)
    sgd = torch.optim.SGD(model.parameters(), lr=4.0, momentum=0.9)
    private, optimizer, batches = make_private(
        model,
        sgd,
        DataLoader(dataset),
        calibration,
        1.0,
        loss=loss,
        expected_batch_size=299,  # planned, not computed from the data
        generator=seed,
        rng=seed,
    )
    load_checkpoint(checkpoint, private, optimizer, batches, missing_ok=True)
    if (
        batches.steps_taken == 0
    ):  # the keys are safe before anything is released
        save_checkpoint(checkpoint, private, optimizer, batches)
    while optimizer.steps_left:
        for images, labels in batches:
            private.backward(images, labels)
            optimizer.step()
            if batches.steps_taken % 2 == 0:
                save_checkpoint(checkpoint, private, optimizer, batches)
    return private, optimizer


def main(arguments: Sequence[str] | None = None) -> int:
    """One process; the first writes certificate and run record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("eps", type=float)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument(
        "--seed",
        type=int,
        help="for a run that must repeat; its noise is no secret",
    )
    given = parser.parse_args(arguments)
    given.folder.mkdir(parents=True, exist_ok=True)
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if several:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if several else 0
    # Deterministic, so that all processes hold the same claim.
    calibration = dm.calibrate_sigma(
        dm.LambdaCGD(50, 0.7),
        given.eps,
        1e-5,
        participation=dm.BallsInBins(5),
        method=dm.methods.Deterministic(),
    )
    dataset, (images, labels) = digits()
    model, optimizer = train(
        dataset, calibration, given.folder / f"checkpoint-{rank}.pt", given.seed
    )
    if rank == 0:
        record = optimizer.run_record()
        record.certificate.save(given.folder / "certificate.json")
        record.save(given.folder / "run.json")
        accuracy = (model(images).argmax(1) == labels).float().mean()
        sys.stdout.write(f"{record}; accuracy {accuracy:.3f}\n")
    if several:
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
