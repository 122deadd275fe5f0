"""What a trainer has to do for a claim to hold, in sentences; part of schema version 1, word for word."""

from dpmech.certificates.claim import Claim
from dpmech.mechanism import (
    BallsInBins,
    CyclicPoisson,
    EveryStep,
    FixedEpochs,
    MinSep,
    Participation,
    Poisson,
    SingleParticipation,
)

__all__ = ["trainer_duties"]


def trainer_duties(claim: Claim) -> dict[str, str]:
    """Steps, sampler, clipping, noise and normaliser, one sentence each."""
    n = claim.strategy.n
    clip = "the clip norm" if claim.clip_norm is None else f"{claim.clip_norm!r}"
    size = "a public constant" if claim.expected_batch_size is None else f"{claim.expected_batch_size!r}"
    return {
        "steps": f"Release at most {n} noisy sums. A run that needs more steps needs a new certificate.",
        "sampler": _sampler(claim.participation, n),
        "clipping": f"Scale every example's gradient down to an L2 norm of at most {clip} before summing.",
        "noise": (
            f"Add to the sum of step t the row t of sigma * clip_norm * C^-1 Z, with sigma = {claim.sigma!r} "
            "and Z independent standard normal, drawn once, from operating-system entropy, kept secret."
        ),
        "normaliser": f"Divide by {size}, never by the number of examples that a step happened to draw.",
    }


def _sampler(participation: Participation, n: int) -> str:
    match participation:
        case EveryStep():
            return "Any batches: every example may take part in every step."
        case SingleParticipation():
            return "Every example takes part in at most one step."
        case MinSep():
            pattern = participation.pattern(n)
            return (
                f"Participations of one example are at least {pattern.min_sep} steps apart, and at most "
                f"{pattern.max_participations} in number."
            )
        case FixedEpochs():
            stride = n // participation.epochs
            return (
                f"{participation.epochs} epochs over the same batches in the same order: every example takes "
                f"part exactly every {stride} steps."
            )
        case Poisson():
            return (
                "At every step every example joins independently with probability "
                f"{participation.sampling_prob!r}; which ones did is kept secret."
            )
        case CyclicPoisson():
            return (
                f"Split the examples into {participation.cycle} groups, independently of their content; "
                f"step t offers group t mod {participation.cycle}, each of whose examples joins "
                f"independently with probability {participation.sampling_prob!r}; which ones did is kept "
                "secret."
            )
        case BallsInBins():
            return (
                f"Put every example once, uniformly and independently, into one of {participation.bins} "
                f"bins; step t trains on bin t mod {participation.bins}. The allocation serves all "
                f"{n // participation.bins} epochs and is kept secret."
            )
        case _:
            return f"A sampler that realises {participation!r} over {n} steps."
