"""NoiseMeter: records released numbers that no gradient reaches, and compares them with the certificate."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dpmech.audits import NoiseAudit, noise_audit
from dpmech.certificates import NoiseCheck
from dpmech.exceptions import CertificateError, InvalidParameterError, UnsupportedCombinationError
from dpmech.optim.clipping import Blocks
from dpmech.optim.noise import LATTICES
from dpmech.optim.private_optimizer import PrivateOptimizer
from dpmech.optim.processes import is_sharded

_HELD = 1 << 24  # values that wait on a device before they are copied
_SLACK = 1e-9  # rounding of norms and deviations


class NoiseMeter:
    """Records the private gradient of a parameter that the loss of no example uses, so that it is pure noise.

    Add such a parameter, of any size, before the run is made private:
    `model.register_parameter("noise_block", torch.nn.Parameter(torch.zeros(10_000)))`. Its gradient is 0.
    Clipping, sums, noise and the division by the batch size apply to it as to any other parameter. With a
    mask, the meter can read values of other parameters whose gradient is always 0, such as rows of an
    embedding that no token uses.

    The private gradient is read before the wrapped optimizer, so momentum and update rules have no effect.
    The recorded values are saved with the optimizer. In a resumed run, create a new meter before or after the
    checkpoint is loaded; it continues the record. Reading noise is post-processing, so the guarantee does not
    change.

    Memory: the recorded values, in the dtype of the parameter, on the CPU and in checkpoints. For float32,
    this is 4 bytes per value and step. Time: one copy of the values in every step.

    Args:
        optimizer: a PrivateOptimizer, such as the one that `make_private` returns, before its first step or
            newly loaded.
        parameter: a parameter that the optimizer trains as a whole.
        mask: None for all values; or a bool tensor with the shape of the parameter that selects the values.

    Raises:
        InvalidParameterError: if an argument is invalid.
        UnsupportedCombinationError: if earlier steps were not recorded.

    Examples:
        >>> import torch, dpmech as dm
        >>> from dpmech.optim import NoiseMeter, PrivateOptimizer
        >>> weights, block = (torch.nn.Parameter(torch.zeros(size)) for size in (2, 10_000))
        >>> cal = dm.calibrate_sigma(dm.LambdaCGD(20, 0.9), 8.0, 1e-5)
        >>> sgd = torch.optim.SGD([weights, block], lr=0.1, momentum=0.9)
        >>> opt = PrivateOptimizer(sgd, cal, expected_batch_size=2, generator=21)
        >>> meter = NoiseMeter(opt, block)
        >>> for _ in range(20):
        ...     weights.grad_sample = torch.ones(2, 2)
        ...     block.grad_sample = torch.zeros(2, 10_000)
        ...     opt.step()
        >>> print(meter.audit())
        not refuted at level 1e-09: 1.001 of the certified noise (0.991 to 1.02), 200000 values in 20 steps
    """

    def __init__(self, optimizer: PrivateOptimizer, parameter: Tensor, mask: Tensor | None = None) -> None:
        if not isinstance(optimizer, PrivateOptimizer):
            raise InvalidParameterError("optimizer", optimizer, "a PrivateOptimizer, or that of make_private")
        places = [place for place, param in enumerate(optimizer._trained) if param is parameter]
        if not places or not parameter.requires_grad or is_sharded(parameter):
            raise InvalidParameterError(
                "parameter", tuple(getattr(parameter, "shape", ())), "one that the optimizer trains, whole"
            )
        if mask is not None and (
            not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != parameter.shape
        ):
            raise InvalidParameterError("mask", mask, f"None, or bool of shape {tuple(parameter.shape)}")
        width = parameter.numel() if mask is None else int(mask.sum())
        if width < 2:
            raise InvalidParameterError("mask or parameter", f"{width} values", "2 values or more")
        self._width = width
        # Places rather than the mask: the number of values is known, and a device is not waited for.
        self._places = None if mask is None else mask.to(parameter.device).flatten().nonzero()[:, 0]
        self._optimizer, self._parameter, self._place = optimizer, parameter, places[0]
        self._rows: list[Tensor] = []
        self._ready = 0  # rows that are on the CPU
        self._units: list[float] = []
        optimizer.add_meter(self)
        self._check_complete()

    @property
    def released(self) -> Tensor:
        """The recorded values, shape (steps, values), in the dtype of the gradient."""
        self._collect()
        return torch.stack(self._rows) if self._rows else torch.zeros(0, self._width)

    def audit(self, *, level: float = 1e-9) -> NoiseAudit:
        """Compare the recorded values with the noise of the certificate, by `noise_audit`.

        Args:
            level: the bound on the probability that certified noise is refuted, in (0, 1).

        Raises:
            InvalidParameterError: if the level is invalid, or before the first step.
            UnsupportedCombinationError: if the parameter was frozen or steps were not recorded; also for
                `generator="secure-lattice"`, whose sums are rounded on purpose.
        """
        self._check_complete()
        if self._optimizer.noise_generator in LATTICES:
            raise UnsupportedCombinationError(
                "an audit of noise under generator='secure-lattice': sums are rounded to 1/32 to 1/16 of it",
                supported="generator='secure', or None",
            )
        released = self.released
        half = released.dtype in {torch.float16, torch.bfloat16}
        return noise_audit(
            (released.float() if half else released).numpy(),
            self._optimizer.claim,
            units=self._units,
            level=level,
            rounding=float(torch.finfo(released.dtype).eps) / 2.0 if half else None,
        )

    def _check_complete(self) -> None:
        steps = self._optimizer.record.steps
        if steps != len(self._rows):
            raise _incomplete(steps, len(self._rows))

    def noise_check(self) -> NoiseCheck | None:
        """The audit at level 1e-9 for the run record; None before the first step and for sums on a lattice.

        Raises:
            As `audit`.
        """
        if not self._rows and not self._optimizer.record.steps:
            return None
        if self._optimizer.noise_generator in LATTICES:
            return None
        found = self.audit()
        return NoiseCheck(found.ratio, found.values, len(self._rows), found.level, found.findings)

    def see(self, step: int, deviations: Sequence[float], clipped: Blocks) -> None:
        """Record the private gradient of a step; called by the optimizer before the parameters change.

        Raises:
            UnsupportedCombinationError: if the parameter is frozen, or earlier steps were not recorded.
            CertificateError: if the noise that the optimizer means to add is too small for its clip norms.
        """
        gradient = self._parameter.grad
        if gradient is None or step != len(self._rows):
            raise _incomplete(step + 1, len(self._rows))
        noise = [deviation * self._optimizer.expected_batch_size for deviation in deviations]
        least = dict.fromkeys(range(len(clipped.clip_norms)), math.inf)
        for block, one in zip(clipped.members, noise, strict=True):
            least[block] = min(least[block], one)
        # Of one example, whose blocks are clipped to `norms`, in units of the noise.
        change = math.hypot(*(norm / least[block] for block, norm in enumerate(clipped.clip_norms)))
        certified = 1.0 / self._optimizer.claim.sigma
        if not change <= certified * (1.0 + _SLACK):
            raise CertificateError(
                "the noise is too small for the norms to which gradients were clipped",
                claimed=certified,
                recomputed=change,
            )
        values = gradient.detach().flatten()
        self._rows.append(values.clone() if self._places is None else values[self._places])
        if (len(self._rows) - self._ready) * self._width > _HELD:
            self._collect()
        self._units.append(deviations[self._place] / self._optimizer.claim.sigma)

    def state_dict(self) -> dict[str, Any]:
        """What was recorded, as the optimizer saves it."""
        return {"released": self.released, "units": list(self._units)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with what was recorded.

        Raises:
            InvalidParameterError: if it was recorded from another number of values.
        """
        released = state["released"]
        if released.shape[1] != self._width:
            raise InvalidParameterError(
                "parameter", f"{self._width} values", f"the {released.shape[1]} that were recorded"
            )
        self._rows, self._units = list(released.cpu()), [float(unit) for unit in state["units"]]
        self._ready = len(self._rows)

    def _collect(self) -> None:
        """Copy what was recorded from the device to the CPU."""
        new = self._rows[self._ready :]
        if new and new[0].device.type != "cpu":
            self._rows[self._ready :] = list(torch.stack(new).cpu())
        self._ready = len(self._rows)


def _incomplete(steps: int, recorded: int) -> UnsupportedCombinationError:
    return UnsupportedCombinationError(
        f"after step {steps} only {recorded} were recorded",
        supported="a NoiseMeter from the first step on, in all processes that resume the run, of a "
        "parameter that requires gradients in every step",
    )
