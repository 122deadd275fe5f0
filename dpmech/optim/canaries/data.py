"""CanaryData: canaries in the training data of a run, each included by a fair coin."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from dpmech.drawing import Sampler
from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.guards import check_integer, check_real, check_rng

Example = tuple[Tensor, Tensor]


class CanaryData(Dataset[Example]):
    """Real examples with one additional feature per canary, and the canaries that fair coins include.

    Canary j is 0 in all features except feature `real_width` + j, which is 0 in all real examples. In the
    first weight, its gradient is therefore the only one with non-zero entries in that column.

    Positions are fixed: example `real_count` + j is canary j or a gap. Removing a canary therefore moves no
    other example to a different batch. The length, which determines samplers and the denominator, is public.
    A DataLoader and `batch` skip gaps, and indexing a gap raises an error.

    Args:
        dataset: a map-style dataset of (features, target), where features are a floating-point tensor of
            shape (d,).
        count: number of canaries, >= 1.
        target: target of all canaries, which must not depend on the data.
        scale: value of the feature of a canary, > 0. It must be large enough that the gradient is clipped.
        rng: None for coins from the operating system, as an audit requires; otherwise a numpy Generator, or a
            seed for a reproducible run.

    Attributes:
        included: the coins, bool, shape (count,). Neither the run nor the person who starts it may see them.
        count: number of canaries.
        real_count: number of real examples.
        real_width: d.
        width: d + count, number of features of an example.

    Raises:
        InvalidParameterError: if an argument is invalid.

    Examples:
        >>> import torch
        >>> from dpmech.optim import CanaryData
        >>> real = torch.utils.data.TensorDataset(torch.ones(3, 2), torch.tensor([0, 1, 1]))
        >>> data = CanaryData(real, 2, target=0, scale=100.0, rng=4)
        >>> len(data), data.included.tolist()
        (5, [False, True])
        >>> data.batch([1, 3, 4])[0].tolist()
        [[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 100.0]]
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        count: int,
        *,
        target: object,
        scale: float = 1e4,
        rng: np.random.Generator | int | None = None,
    ) -> None:
        if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__") or len(dataset) == 0:
            raise InvalidParameterError("dataset", dataset, "a map-style dataset with at least one example")
        self.count = check_integer("count", count, minimum=1)
        self._scale = check_real("scale", scale, minimum=0.0, open_minimum=True)
        self._real: Any = dataset
        self.real_count = len(dataset)
        features, goal = _check_example(dataset[0])
        self.real_width = len(features)
        self.width = self.real_width + self.count
        self._kind = features.dtype
        self._target = torch.as_tensor(target, dtype=goal.dtype)
        if self._target.shape != goal.shape:
            raise InvalidParameterError(
                "target", target, f"of shape {tuple(goal.shape)}, as in the real examples"
            )
        generator = check_rng(rng)
        generator = np.random.default_rng() if generator is None else generator
        self.included = generator.integers(0, 2, size=self.count, dtype=np.bool_)
        self.included.setflags(write=False)

    def __len__(self) -> int:
        """Number of real examples and canaries, including gaps."""
        return self.real_count + self.count

    def canary(self, number: int) -> Example:
        """Canary `number` in [0, count - 1], whether it was included or not."""
        index = check_integer("number", number, minimum=0, maximum=self.count - 1)
        features = torch.zeros(self.width, dtype=self._kind)
        features[self.real_width + index] = self._scale
        return features, self._target

    def __getitem__(self, index: int) -> Example:
        position = check_integer("index", index, minimum=0)
        if position >= len(self):
            raise IndexError(f"example {position} of {len(self)}")  # ends iteration over a sequence
        if not self._present(position):
            raise InvalidParameterError("index", position, "no gap: that canary was left out")
        if position >= self.real_count:
            return self.canary(position - self.real_count)
        features, target = _check_example(self._real[position])
        if len(features) != self.real_width:
            raise InvalidParameterError("dataset", len(features), f"of {self.real_width} features throughout")
        return torch.cat((features, features.new_zeros(self.count))), target

    def __getitems__(self, indices: Sequence[int]) -> list[Example]:
        """The examples at these positions, without gaps; a DataLoader uses it to fetch a batch."""
        return [self[int(index)] for index in indices if self._present(int(index))]

    def batch(self, indices: Sequence[int] | npt.NDArray[np.int64]) -> Example:
        """The examples of a batch as tensors (k, width) and (k, ...), without gaps; k may be 0."""
        examples = self.__getitems__([int(index) for index in indices])
        if not examples:
            return torch.zeros(0, self.width, dtype=self._kind), self._target[None][:0]
        features, targets = zip(*examples, strict=True)
        return torch.stack(features), torch.stack(targets)

    def joins(self, sampler: Sampler, *, secret: bool = False) -> npt.NDArray[np.bool_]:
        """The steps in which each canary takes part if included, shape (count, n), for `canary_scores`.

        Args:
            sampler: of `len(self)` examples, without random sampling unless `secret`.
            secret: whether to read the batches of a random sampler, which are secret: `gaussian_audit` may
                use them, as it measures noise, but a score that uses them would refute valid guarantees.

        Raises:
            InvalidParameterError: for a sampler of another dataset.
            UnsupportedCombinationError: if the sampler is random: its batches are secret, and a score that
                uses them would refute valid guarantees.
        """
        if not isinstance(sampler, Sampler) or sampler.dataset_size != len(self):
            raise InvalidParameterError("sampler", sampler, f"a dpmech sampler of {len(self)} examples")
        if not secret and (sampler.participation.random or sampler.reshuffled):
            raise UnsupportedCombinationError(
                f"the batches of {sampler!r} are secret",
                supported="samplers without random sampling; otherwise give canary_scores the participation, "
                "and gaussian_audit those of joins(sampler, secret=True)",
            )
        taking_part = np.zeros((self.count, sampler.n), dtype=np.bool_)
        for step in range(sampler.n):
            batch = sampler.indices(step)
            taking_part[batch[batch >= self.real_count] - self.real_count, step] = True
        return taking_part

    def _present(self, position: int) -> bool:
        canary = position - self.real_count
        return canary < 0 or canary >= self.count or bool(self.included[canary])


def _check_example(example: Any) -> Example:
    """Features of shape (d,), floating-point, and a target, as tensors."""
    if not isinstance(example, tuple | list) or len(example) != 2:
        raise InvalidParameterError("dataset", type(example).__name__, "of pairs (features, target)")
    features, target = torch.as_tensor(example[0]), torch.as_tensor(example[1])
    if features.ndim != 1 or not features.is_floating_point():
        raise InvalidParameterError(
            "dataset", (features.dtype, tuple(features.shape)), "of floating-point features, shape (d,)"
        )
    return features, target
