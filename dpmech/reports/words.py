"""Sentences of reports: the claim, whom it protects, who takes part, what it does not cover."""

import math

from dpmech.certificates import (
    AdaptiveClip,
    Certificate,
    CheckpointMatch,
    RunRecord,
    Uniqueness,
    training_requirements,
)
from dpmech.mechanism import Adjacency, Unit
from dpmech.numerics import Kind, between, counted, typed, up
from dpmech.plans import STRATEGIES

# Above this, e^eps overflows float64.
_LARGEST = 700.0

_SECRETS = {
    Adjacency.ADD_REMOVE: ("whether any one example was used", "with the example in the data as without it"),
    Adjacency.ZERO_OUT: (
        "whether any one example contributed or was replaced by zeros",
        "with the example's contribution as with zeros in its place",
    ),
    Adjacency.REPLACE_ONE: (
        "which of any two values one example had",
        "with one value of the example as with another",
    ),
}
_SECRETS_OF_USERS = {
    Adjacency.ADD_REMOVE: (
        "whether the examples of any one user were used",
        "with all examples of the user in the data as without them",
    ),
    Adjacency.ZERO_OUT: (
        "whether any one user contributed or was replaced by zeros",
        "with the user's contributions as with zeros in their place",
    ),
    Adjacency.REPLACE_ONE: (
        "which of any two sets of data one user had",
        "with one set of data of the user as with another",
    ),
}
_UNIQUENESS = {
    Uniqueness.FLATTENED: "no example is repeated in the tensors, arrays or sequences that contain the data",
    Uniqueness.EXAMPLE_IDS: "no example is repeated, by the ids that the dataset provides",
    Uniqueness.NOT_CHECKED: "none: the dataset was not checked for duplicates",
}
_SURE = {
    Kind.EXACT: "A theorem gives the number itself. Its computation uses no random numbers.",
    Kind.BOUND: "A theorem bounds the number. Its computation uses no random numbers.",
    Kind.PROBABLE: "It was proved from random samples, which mislead with probability beta, on top of delta.",
    Kind.ESTIMATE: "It is the end of a confidence interval: the true eps may be larger.",
}
_NEIGHBOURS = {
    Adjacency.ADD_REMOVE: "Two datasets are neighbours if one is the other plus one example (add-remove).",
    Adjacency.ZERO_OUT: (
        "Two datasets are neighbours if they are equal except for one example, whose gradients are zero in "
        "one of them (zero-out)."
    ),
    Adjacency.REPLACE_ONE: (
        "Two datasets are neighbours if one example of one is replaced by another example (replace-one)."
    ),
}

_NEIGHBOURS_OF_USERS = {
    Adjacency.ADD_REMOVE: (
        "Two datasets are neighbours if one is the other plus all examples of one user (add-remove)."
    ),
    Adjacency.ZERO_OUT: (
        "Two datasets are neighbours if they are equal except for one user, all of whose gradients are zero "
        "in one of them (zero-out)."
    ),
    Adjacency.REPLACE_ONE: (
        "Two datasets are neighbours if all data of one user are replaced by those of another (replace-one)."
    ),
}


def claim_words(own: Certificate, eps: float | None = None) -> tuple[str, str]:
    """Two texts: what is protected against whom, and how strongly.

    Args:
        own: the claim.
        eps: of the run under the claim; None for that of the claim.
    """
    of_users = own.unit is Unit.USER
    secret, both = (_SECRETS_OF_USERS if of_users else _SECRETS)[own.adjacency]
    others = "data of other users" if of_users else "other examples"
    drawn = "users" if of_users and own.participation.unit is None else "examples"
    kept = f" (but not which {drawn} were drawn for which step)" if own.participation.random else ""
    eps = own.budget.eps if eps is None else eps
    verb = "hides" if own.guarantee.rigorous else "is meant to hide (this is an estimate)"
    return (
        f"Training under this claim {verb} {secret}. This holds even against an observer who sees the "
        f"finished model and all {own.strategy.n} noisy steps that led to it, knows all {others}{kept}, and "
        "has unlimited computing power.",
        f"Any outcome that such an observer may look for is at most {_factor(eps)} times as likely {both}, "
        f"and vice versa, apart from an additional probability of at most {typed(own.budget.delta)}.",
    )


def sure_words(own: Certificate) -> str:
    """The kind of guarantee of a claim, explained for non-experts."""
    if own.guarantee.kind is Kind.PROBABLE and own.guarantee.inside_delta:
        return "It was proved from random samples; the probability that they mislead, beta, is inside delta."
    return _SURE[own.guarantee.kind]


def unit_words(own: Certificate) -> str:
    """The privacy unit."""
    if own.unit is Unit.USER:
        how = (
            "each user's contribution to a step is clipped as a whole"
            if own.participation.unit is None
            else f"each user has at most {counted(own.participation.examples, 'example')}, each clipped"
        )
        several = "A person with several accounts is protected less."
        return f"One user, with all of the user's examples: {how}. {several}"
    return (
        f"One {own.unit.value}. Anyone who contributed several {own.unit.value}s is protected less: for m of "
        "them eps is up to m times as large, and delta grows faster than that."
    )


def adjacency_words(own: Certificate) -> str:
    """Which datasets are neighbours."""
    return (_NEIGHBOURS_OF_USERS if own.unit is Unit.USER else _NEIGHBOURS)[own.adjacency]


def participation_words(own: Certificate) -> list[tuple[str, str]]:
    """Which examples take part when: names and sentences."""
    found = own.participation
    amplified = (
        "yes: the proof assumes that nobody learns which examples were drawn for which step"
        if not found.certain
        else "no: the guarantee holds even if the order of the batches is known"
    )
    return [
        ("scheme", scheme_words(own)),
        ("what the sampler does", training_requirements(own)["sampler"]),
        ("number of steps", str(own.strategy.n)),
        ("amplified by sampling", amplified),
    ]


def scheme_words(own: Certificate) -> str:
    """The name of the sampling scheme, with its settings."""
    settings = ", ".join(
        f"{name} = {typed(value) if isinstance(value, float) else value}"
        for name, value in own.participation.given().items()
    )
    return own.participation.plan_name + (f" ({settings})" if settings else "")


def strategy_words(own: Certificate) -> str:
    """How the noise of different steps is correlated, with the name of the strategy."""
    titles = {one.kind: one.title for one in STRATEGIES.values()}
    title = titles.get(type(own.strategy))
    return repr(own.strategy) if title is None else f"{title}: {own.strategy!r}"


def evidence_words(own: Certificate, *, proved: bool = True) -> list[tuple[str, str]]:
    """The evidence of the claim, names and values; `proved` says whether its eps was not left open."""
    evidence = own.evidence
    rows = [
        ("guarantee", own.headline),
        ("how sigma was found", own.method),
        ("noise scale sigma, at clip norm 1", up(own.sigma)),
        ("use of sigma", own.sigma_use),
        ("noise strategy", strategy_words(own)),
        (
            "sensitivity, at clip norm 1",
            f"{between(own.sensitivity.lower, own.sensitivity.upper)} by {own.sensitivity.by}",
        ),
        (
            f"eps at delta {typed(own.budget.delta)}",
            f"{between(own.achieved.lower, own.achieved.upper)}{'' if proved else ', not proved'}, "
            f"claimed {typed(own.budget.eps)}",
        ),
        ("root mean squared error of the sums, in clip norms", up(own.rmse())),
    ]
    if evidence.samples is not None:
        chosen = "chosen by the caller" if evidence.rng_supplied else "from operating-system entropy"
        rows.append(("samples", f"{evidence.samples:,}, random numbers {chosen}"))
    return rows


def run_words(run: RunRecord, *, proved: bool = True) -> list[tuple[str, str]]:
    """The record of a run, names and values; `proved` says whether its eps was not left open."""
    rows = [
        ("in one line", str(run)),
        ("steps", f"{run.steps} of {run.certificate.strategy.n}"),
        ("eps of the steps executed", f"at most {up(run.executed.upper)}{'' if proved else ', not proved'}"),
        ("stopped by plan", "yes" if run.stopped_by_plan else "no"),
    ]
    if run.most_participations is not None:
        rows.append(
            (f"maximum participations of one {run.certificate.unit.value}", str(run.most_participations))
        )
    if run.smallest_separation is not None:
        rows.append(
            ("smallest distance between two participations", counted(run.smallest_separation, "step"))
        )
    for name, one in (("batches", run.sampler), ("noise", run.noise)):
        seeded = "seeded by the caller" if one.seeded else "not seeded by the caller"
        rows.append((f"random numbers of the {name}", f"{one.source}, from {one.generator_words}; {seeded}"))
    rows.append(("check for duplicate examples", _UNIQUENESS[run.uniqueness]))
    if run.noise_check is not None:
        rows.append(("measured noise", str(run.noise_check)))
    if run.checkpoint_history is not None:
        kept = (("dataset", run.checkpoint_history.dataset), ("model", run.checkpoint_history.model))
        rows += [(f"{name} across checkpoints", one.value) for name, one in kept]
        rows.append(("loss across checkpoints", run.checkpoint_history.loss.value))
        if run.checkpoint_history.settings == CheckpointMatch.UNKNOWN:
            rows.append(("settings of the optimizer across checkpoints", "not compared for later steps"))
        if not run.checkpoint_history.same_rounding:
            rows.append(("arithmetic across checkpoints", "repeated steps may have been rounded differently"))
        rows.append(
            ("number of times that the run resumed from a saved state", str(run.checkpoint_history.loads))
        )
    return rows


_PEOPLE = {
    Unit.EXAMPLE: (
        "People with several examples, and groups",
        "The claim is about one example. People with several examples or copies of examples, and groups such "
        "as families, are protected less.",
    ),
    Unit.USER: (
        "People with several names, and groups",
        "The claim is about one user. People with several user names, people who appear in the examples of "
        "others, and groups such as families are protected less.",
    ),
}
_NOT_COVERED = (
    (
        "Tuning",
        "Every other run on the same data, such as a run to choose hyperparameters, architectures or seeds, "
        "is a separate release. Only the run above is charged; a ledger adds up several releases.",
    ),
    (
        "Preprocessing",
        "Vocabularies, normalisation constants, filters and deduplication that were computed from the data.",
    ),
    (
        "Evaluation",
        "Accuracies and losses on private data, and the selection of a checkpoint by these numbers, if the "
        "data were part of training.",
    ),
    ("Other releases", "Other models, statistics or papers about the same people, earlier or later."),
    (
        "Facts about the population",
        "A model may show that smoking causes illness. This is not a loss of privacy of any person.",
    ),
    (
        "Everything before and outside training",
        "How the data were collected, who can read them, logs, gradients sent over a network, and observable "
        "times and memory accesses.",
    ),
)


def not_covered(own: Certificate) -> tuple[tuple[str, str], ...]:
    """What the claim does not cover: names and sentences."""
    sizes = (
        "The expected batch size, the dataset size of the plan and all other numbers of the plan are public. "
        "The true number of examples or users is private, and must not be published."
        if own.mechanism.hides_size
        else "The numbers of examples and of users, the expected batch size and all other numbers of the "
        "plan are assumed to be public."
    )
    return (_PEOPLE[own.unit], *_NOT_COVERED, ("Sizes", sizes))


LIMITS = (
    "The claim is about a mechanism. It applies to a model if the trainer met the requirements. A "
    "certificate does not show this, and a run record is evidence against mistakes, but not against fraud.",
    "Noise and sampling must be as random as the requirements state, and their random numbers must stay "
    "secret.",
    "The proof is about real numbers. Computers round, so noise in floating point is only close to Gaussian.",
    "The checksum of a file is not a signature. Only the place where a file is stored, or a signature next "
    "to it, shows who issued it.",
    "The claim is decided by a checker that shares no code with the software that issued it. The checker "
    "depends on Python, numpy and FLINT, and on the theorems that its documentation states and proves.",
    "The report does not state how useful the model is, or whether it treats people fairly. Noise can reduce "
    "the accuracy for small groups more than for others.",
)


def _factor(eps: float) -> str:
    """e^eps, rounded up."""
    if eps > _LARGEST:
        return f"e^{typed(eps)}"
    factor = up(math.exp(eps) * (1.0 + 1e-12), 4)
    # Powers of ten are hard to read; above a million the digits do not matter.
    return f"{float(factor):,.10g}" if float(factor) < 1e6 else f"e^{typed(eps)}"


def clip_words(value: float | AdaptiveClip | None) -> str:
    """Description of the clip norm."""
    if value is None:
        return "an unspecified clip norm"
    if isinstance(value, AdaptiveClip):
        return (
            f"a clip norm that starts at {typed(value.initial)} and follows the {typed(value.quantile)} "
            "quantile of their norms, by a noisy count on the same batch that is accounted for jointly"
        )
    return f"clip norm {typed(value)}"
