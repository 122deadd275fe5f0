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
    Uniqueness.FLATTENED: "each example is once in the tensors, arrays or sequences that hold the data",
    Uniqueness.EXAMPLE_IDS: "each example once, by the ids that the dataset gives them",
    Uniqueness.NOT_CHECKED: "none: the dataset was not checked for duplicates",
}
_SURE = {
    Kind.EXACT: "A theorem gives the number itself; nothing was left to chance when it was computed.",
    Kind.BOUND: "A theorem bounds the number; nothing was left to chance when it was computed.",
    Kind.PROBABLE: "It was proved from random samples, which mislead with probability beta, beyond delta.",
    Kind.ESTIMATE: "It is the end of a confidence interval: the true eps may be larger.",
}
_NEIGHBOURS = {
    Adjacency.ADD_REMOVE: "Two datasets are neighbours if one is the other plus one example (add-remove).",
    Adjacency.ZERO_OUT: (
        "Two datasets are neighbours if they are equal but for one example, whose gradients are zero in one "
        "of them (zero-out)."
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
        "Two datasets are neighbours if they are equal but for one user, all of whose gradients are zero in "
        "one of them (zero-out)."
    ),
    Adjacency.REPLACE_ONE: (
        "Two datasets are neighbours if all data of one user are replaced by those of another (replace-one)."
    ),
}


def claim_words(own: Certificate, run: RunRecord | None = None) -> tuple[str, str]:
    """Two sentences: what is protected against whom, and how strongly.

    Args:
        own: the claim.
        run: the run under the claim, whose eps is then stated.
    """
    of_users = own.unit is Unit.USER
    secret, both = (_SECRETS_OF_USERS if of_users else _SECRETS)[own.adjacency]
    others = "data of other users" if of_users else "other examples"
    drawn = "users" if of_users and own.participation.unit is None else "examples"
    kept = f", but not which {drawn} were drawn for which step" if own.participation.random else ""
    eps = own.budget.eps if run is None or run.executed == own.achieved else run.executed.upper
    verb = "is protected" if own.guarantee.rigorous else "is meant to be protected (this is an estimate)"
    return (
        f"What {verb} is {secret} in training, against anyone who sees the finished model and all "
        f"{own.strategy.n} noisy steps that led to it, knows all {others}{kept}, and may "
        "compute without limit.",
        f"Whatever such an observer looks for is at most {_factor(eps)} times as likely {both}, and the "
        f"other way round, but for an extra probability of at most {typed(own.budget.delta)}.",
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
            "each user's contribution to a step is clipped as one"
            if own.participation.unit is None
            else f"each user has at most {counted(own.participation.examples, 'example')}, clipped one by one"
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
        "yes: the proof uses that nobody learns who was drawn when"
        if found.random
        else "no: the guarantee holds whatever is known of the order of the batches"
    )
    return [
        ("scheme", scheme_words(own)),
        ("what the sampler does", training_requirements(own)["sampler"]),
        ("steps in all", str(own.strategy.n)),
        ("amplified by chance", amplified),
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


def evidence_words(own: Certificate) -> list[tuple[str, str]]:
    """The evidence of the claim: names and values."""
    evidence = own.evidence
    rows = [
        ("guarantee", own.headline),
        ("how sigma was found", own.method),
        ("noise scale sigma, at clip norm 1", up(own.sigma)),
        ("what to do with sigma", own.sigma_use),
        ("noise strategy", strategy_words(own)),
        (
            "sensitivity, at clip norm 1",
            f"{between(own.sensitivity.lower, own.sensitivity.upper)} by {own.sensitivity.by}",
        ),
        (
            f"eps at delta {typed(own.budget.delta)}",
            f"{between(own.achieved.lower, own.achieved.upper)}, claimed {typed(own.budget.eps)}",
        ),
        ("root mean squared error of the sums, in clip norms", up(own.rmse())),
    ]
    if evidence.samples is not None:
        chosen = "chosen by the caller" if evidence.rng_supplied else "from operating-system entropy"
        rows.append(("samples", f"{evidence.samples:,}, random numbers {chosen}"))
    return rows


def run_words(run: RunRecord) -> list[tuple[str, str]]:
    """What a run did: names and values."""
    rows = [
        ("in one line", str(run)),
        ("steps", f"{run.steps} of {run.certificate.strategy.n}"),
        ("eps of the steps executed", f"at most {up(run.executed.upper)}"),
        ("stopped by plan", "yes" if run.stopped_by_plan else "no"),
    ]
    if run.most_participations is not None:
        rows.append(
            (f"most participations of one {run.certificate.unit.value}", str(run.most_participations))
        )
    if run.smallest_separation is not None:
        rows.append(("least separation of two", counted(run.smallest_separation, "step")))
    for name, one in (("batches", run.sampler), ("noise", run.noise)):
        seeded = "seeded by the caller" if one.seeded else "not seeded by the caller"
        rows.append((f"random numbers of the {name}", f"{one.source}, from {one.generator_words}; {seeded}"))
    rows.append(("check for duplicate examples", _UNIQUENESS[run.uniqueness]))
    if run.noise_check is not None:
        rows.append(("the noise that was measured", str(run.noise_check)))
    if run.checkpoint_history is not None:
        kept = (("dataset", run.checkpoint_history.dataset), ("model", run.checkpoint_history.model))
        rows += [(f"{name} across checkpoints", one.value) for name, one in kept]
        rows.append(("loss across checkpoints", run.checkpoint_history.loss.value))
        if run.checkpoint_history.settings == CheckpointMatch.UNKNOWN:
            rows.append(("settings of the optimizer across checkpoints", "those of later steps not compared"))
        if not run.checkpoint_history.same_rounding:
            rows.append(("arithmetic across checkpoints", "repeated steps may have been rounded differently"))
        rows.append(("times the run went on from a saved state", str(run.checkpoint_history.loads)))
    return rows


_PEOPLE = {
    Unit.EXAMPLE: (
        "People with several examples, and groups",
        "The claim is about one example. Copies, families and people with several examples are less "
        "protected.",
    ),
    Unit.USER: (
        "People with several names, and groups",
        "The claim is about one user. Families, people with several user names, and people who appear in "
        "the examples of others are protected less.",
    ),
}
_NOT_COVERED = (
    (
        "Tuning",
        "Other runs on the same data, to choose hyperparameters, architectures or seeds, release something "
        "each. Only the run above is counted; a ledger adds up several releases.",
    ),
    (
        "Preprocessing",
        "Vocabularies, normalisation constants, filters and deduplication that were computed from the data.",
    ),
    (
        "Evaluation",
        "Accuracies and losses on private data, and the choice of a checkpoint by them, where that data was "
        "part of training.",
    ),
    ("Other releases", "Other models, statistics or papers about the same people, earlier or later."),
    (
        "What the data says of everybody",
        "A model may teach how smoking and illness go together. That is no loss of privacy of anyone.",
    ),
    (
        "Everything before and outside training",
        "How the data was collected, who may read it, logs, gradients on the wire, time and memory that can "
        "be watched.",
    ),
)


def not_covered(own: Certificate) -> tuple[tuple[str, str], ...]:
    """What the claim does not cover: names and sentences."""
    sizes = (
        "The expected batch size, the size of the dataset that the plan was made from and everything else "
        "in the plan are public. The true number of examples or users is private and not to be published."
        if own.mechanism.hides_size
        else "The numbers of examples and of users, the expected batch size and everything else that the "
        "plan was made from are taken to be public."
    )
    return (_PEOPLE[own.unit], *_NOT_COVERED, ("Sizes", sizes))


LIMITS = (
    "The claim is about a mechanism. It holds of a model if the trainer did what the requirements say; a "
    "certificate does not show that, and a run record is evidence against mistakes, not against lies.",
    "Noise and sampling have to be as random as the requirements say, and the numbers behind them have to "
    "stay secret.",
    "The proof is about real numbers. Computers round: noise drawn in floating point is close to Gaussian, "
    "and not the same.",
    "The checksum of a file is a checksum and no signature. Who issued it is known only from where it is "
    "kept, or from a signature next to it.",
    "The claim is decided by a checker that shares no code with what issued it. It depends on Python, numpy "
    "and FLINT, and on the theorems that its page states and proves.",
    "Nothing is said here about how useful the model is, or whether it treats people fairly: noise can cost "
    "small groups more than others.",
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
        return "a clip norm that is left open"
    if isinstance(value, AdaptiveClip):
        return (
            f"a clip norm that starts at {typed(value.initial)} and follows the {typed(value.quantile)} "
            "quantile of their norms by a noised count of the same batch, accounted for jointly"
        )
    return f"clip norm {typed(value)}"
