"""What a trainer has to do for a claim to hold, in sentences; part of schema version 1, word for word."""

from dpmech.certificates.adaptive_clip import AdaptiveClip
from dpmech.certificates.claim import Claim
from dpmech.mechanism import Adjacency, Unit

__all__ = ["trainer_duties"]


def trainer_duties(claim: Claim) -> dict[str, str]:
    """Steps, sampler, clipping, noise and normaliser, one sentence each."""
    n = claim.strategy.n
    own = claim.clip_norm
    adaptive = own if isinstance(own, AdaptiveClip) else None
    clip = "the clip norm" if own is None else f"{own!r}" if adaptive is None else "the clip norm of the step"
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
    sampled = claim.unit is Unit.USER and claim.participation.unit is not None
    if sampled and claim.adjacency is Adjacency.ZERO_OUT and not claim.participation.users_together:
        duties["sampler"] += (
            " An example may also belong to several users, if then for each of them at most so many are "
            "kept, chosen by who owns what alone: both datasets have the same examples and owners, and "
            "gradients of zero stand for those of the user that one of them lacks."
        )
    if claim.dataset_size is not None:
        duties["normaliser"] += (
            f" The dataset size, {claim.dataset_size}, is a declared public number: the guarantee does not "
            "hide it."
            if claim.mechanism.hides_size
            else f" The dataset size, {claim.dataset_size}, is public."
        )
    if adaptive is not None:
        duties["clipping"] += _norm_of_the_step(adaptive, size)
        duties["noise"] = _noise_of_both(adaptive, claim.sigma)
    return duties


def _norm_of_the_step(clip: AdaptiveClip, size: str) -> str:
    return (
        f" It is {clip.initial!r} at step 0, and from one step to the next it is multiplied by "
        f"exp(-{clip.rate!r} (s - {clip.quantile!r})), s = 0.5 + (noised count of the step) / {size}. The "
        "count is the sum over the same lot of +0.5 for what was no longer than the clip norm of the step, "
        "-0.5 for what was, and 0 for what was zero."
    )


def _noise_of_both(clip: AdaptiveClip, sigma: float) -> str:
    return (
        f"Add to the sum of step t the row t of {clip.gradient_sigma(sigma)!r} * (clip norm of the step) * "
        f"C^-1 Z, and to the count of step t the row t of {clip.count_stddev(sigma)!r} * C^-1 Z', Z and Z' "
        "independent standard normal, drawn once, from operating-system entropy, kept secret. Both together "
        f"are one release of sigma = {sigma!r}; the count without its noise is released nowhere."
    )
