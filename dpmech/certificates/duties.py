"""What a trainer has to do for a claim to hold, in sentences; part of schema version 1, word for word."""

from dpmech.certificates.claim import Claim
from dpmech.mechanism import Unit

__all__ = ["trainer_duties"]


def trainer_duties(claim: Claim) -> dict[str, str]:
    """Steps, sampler, clipping, noise and normaliser, one sentence each."""
    n = claim.strategy.n
    clip = "the clip norm" if claim.clip_norm is None else f"{claim.clip_norm!r}"
    size = "a public constant" if claim.expected_batch_size is None else f"{claim.expected_batch_size!r}"
    duties = {
        "steps": f"Release at most {n} noisy sums. A run that needs more steps needs a new certificate.",
        "sampler": claim.participation.duty(n),
        "clipping": f"Scale every example's gradient down to an L2 norm of at most {clip} before summing.",
        "noise": (
            f"Add to the sum of step t the row t of sigma * clip_norm * C^-1 Z, with sigma = {claim.sigma!r} "
            "and Z independent standard normal, drawn once, from operating-system entropy, kept secret."
        ),
        "normaliser": f"Divide by {size}, never by the number of examples that a step happened to draw.",
    }
    if claim.unit is Unit.USER and claim.participation.unit is None:
        duties["sampler"] = (
            f"The examples of this sentence are users, all data of one each. {duties['sampler']}"
        )
        duties["clipping"] = (
            "Take one contribution of every user in the lot, made of that user's data alone, such as the "
            f"mean of the gradients, and scale it down to an L2 norm of at most {clip} before summing."
        )
        duties["normaliser"] = f"Divide by {size}, never by the number of users that a step happened to draw."
    return duties
