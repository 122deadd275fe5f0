"""An accountant for Opacus that computes eps from its history with dpmech."""

import math
from collections.abc import Callable
from typing import Any

from opacus.accountants import IAccountant  # noqa: TID253 - importing this module requires Opacus
from opacus.optimizers import AdaClipDPOptimizer  # noqa: TID253 - as above

from dpmech.exceptions import UnsupportedCombinationError
from dpmech.guards import check_delta
from dpmech.interchange import NOTHING, Steps, history_profile, steps_of
from dpmech.numerics import Bounds


class OpacusAccountant(IAccountant):  # type: ignore[misc]  # Opacus has no types
    """`PrivacyEngine(accountant="dpmech")`: the upper end of two-sided bounds that are tight.

    It stores the same history as the accountants of Opacus, (noise multiplier, sample rate, steps), and can
    load theirs. `bounds` gives both ends.

    **Guarantee:** a deterministic upper bound on eps for adding or removing one example, if every step used a
    Poisson sample, as loaders of `PrivacyEngine.make_private` do by default. With `poisson_sampling=False`
    the history is the same, and the number is not proved: an accountant is not told how a loader samples.
    Several batches before one step are refused, as an example may be in each; so is `clipping="adaptive"`.
    """

    def __init__(self) -> None:
        super().__init__()

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Count one step.

        Args:
            noise_multiplier: standard deviation of the noise over the clip norm, >= 0.
            sample_rate: in (0, 1].
        """
        if noise_multiplier != 0.0:
            Steps(noise_multiplier, sample_rate, 1)
        if self.history and tuple(self.history[-1][:2]) == (noise_multiplier, sample_rate):
            self.history[-1] = (noise_multiplier, sample_rate, self.history[-1][2] + 1)
        else:
            self.history.append((noise_multiplier, sample_rate, 1))

    def bounds(self, delta: float) -> Bounds:
        """Bounds on the eps of all steps at delta in (0, 1).

        Raises:
            InvalidParameterError: on a bad argument, or a step without noise.
        """
        at = check_delta(delta)
        return history_profile(steps_of(self.history)).epsilon(at) if self.history else NOTHING

    def get_epsilon(self, delta: float, *args: Any, **kwargs: Any) -> float:
        """The upper bound on eps; infinite if a step had no noise. Other arguments have no effect."""
        at = check_delta(delta)
        if any(noise == 0.0 for noise, _, _ in self.history):
            return math.inf
        return self.bounds(at).upper

    def __len__(self) -> int:
        """Number of steps taken."""
        return sum(steps for _, _, steps in self.history)

    @classmethod
    def mechanism(cls) -> str:
        """The name under which it is registered."""
        return "dpmech"

    def get_optimizer_hook_fn(self, sample_rate: float) -> Callable[[Any], None]:
        """The hook that the optimizer of Opacus calls at every step.

        Raises:
            UnsupportedCombinationError: from the hook, before the step, if gradients of several batches were
                accumulated: independent samples may contain an example more than once. And under
                `clipping="adaptive"`: Opacus calibrates the noise as if one example changed its count by 1/2,
                but it changes by 1; the batch size, by which it divides the count, is released without noise.
        """
        count = super().get_optimizer_hook_fn(sample_rate)

        def hook(optimizer: Any) -> None:
            if isinstance(optimizer, AdaClipDPOptimizer):
                raise UnsupportedCombinationError(
                    'AdaClipDPOptimizer, Opacus\' clipping="adaptive", whose count of unclipped examples has '
                    "less noise than its noise multiplier states",
                    supported='clipping="flat" in Opacus, or dpmech.optim.make_private with an AdaptiveClip',
                )
            batches = optimizer.accumulated_iterations
            if batches > 1:
                raise UnsupportedCombinationError(
                    f"gradients of {batches} batches were accumulated before one step",
                    supported="one Poisson sample per step, which BatchMemoryManager splits if it is large",
                )
            count(optimizer)

        return hook
