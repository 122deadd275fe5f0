"""Items of reporting guidelines, in our words, answered from a review.

There are three: the section on reporting of a guide to private machine learning, the questions of a standards
body about differential privacy claims, and the fields of a public registry of deployments. What a certificate
cannot contain is "not stated", unless a person answered it: then it says who did.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from dpmech.certificates import training_requirements
from dpmech.mechanism import Unit
from dpmech.numerics import counted, percent_up, typed, up
from dpmech.reports.attacks import RATES
from dpmech.reports.review import Review
from dpmech.reports.words import adjacency_words, claim_words, clip_words, strategy_words, unit_words

NOT_STATED = "not stated"

# An answer and its source; None if unknown.
_Answered = tuple[str, str] | None
_Item = tuple[str, str, Callable[[Review], _Answered] | _Answered]


PERSON = "answers"  # the basis of what only a person says


@dataclasses.dataclass(frozen=True)
class Answer:
    """One item of a checklist.

    Attributes:
        key: key of the item, the same in every report.
        question: the question, in our words.
        text: the answer, or "not stated".
        basis: its source, "answers" if only a person gives it; empty if nothing is stated.
        said_by: the person whose answer it is, or who added the remark; empty if there is none.
        remark: what the person adds to an answer from the files, which it does not replace.
    """

    key: str
    question: str
    text: str
    basis: str
    said_by: str = ""
    remark: str = ""

    @property
    def stated(self) -> bool:
        """Whether there is an answer."""
        return bool(self.basis)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return dataclasses.asdict(self) | {"stated": self.stated}


@dataclasses.dataclass(frozen=True)
class Checklist:
    """The items of one guideline.

    Attributes:
        key: key of the guideline.
        title: its title.
        source: where it is published.
        answers: the answers, in the order of the guideline.
    """

    key: str
    title: str
    source: str
    answers: tuple[Answer, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "key": self.key,
            "title": self.title,
            "source": self.source,
            "items": [one.to_dict() for one in self.answers],
        }


def checklists(review: Review) -> tuple[Checklist, ...]:
    """All checklists, filled in."""
    return tuple(
        Checklist(key, title, source, tuple(_answer(item, review) for item in items))
        for key, title, source, items in _GUIDELINES
    )


def _answer(item: _Item, review: Review) -> Answer:
    key, question, answer = item
    found, said = answer(review) if callable(answer) else answer, review.said.about(key)
    if found is None:
        stated = (NOT_STATED, "") if said is None else (said.text, PERSON, said.by)
        return Answer(key, question, *stated)
    remark = ("", "") if said is None else (said.by, said.text)
    return Answer(key, question, *found, *remark)


def questions() -> dict[str, str]:
    """The question of every item, by its key, in order."""
    return {key: question for _, _, _, items in _GUIDELINES for key, question, _ in items}


def _accesses(review: Review) -> _Answered:
    own, ledger = review.certificate, review.subject.ledger
    text = (
        f"One training run of at most {own.strategy.n} noisy steps. Tuning and other accesses: {NOT_STATED}."
    )
    if ledger is None:
        return text, "certificate"
    count = ledger.entries
    mode = ledger.mode.value.replace("_", "-")
    return f"{counted(count, f'{mode} release')}, of which this is one: see the ledger.", "ledger"


def _unit(review: Review) -> _Answered:
    return unit_words(review.certificate), "certificate"


def _adjacency(review: Review) -> _Answered:
    return adjacency_words(review.certificate), "certificate"


def _accountant(review: Review) -> _Answered:
    return f"{review.certificate.method} ({review.certificate.guarantee})", "certificate"


def _assumptions(review: Review) -> _Answered:
    own, run = review.certificate, review.subject.run
    text = training_requirements(own)["sampler"]
    if run is None:
        return f"{text} Whether a run did so: {NOT_STATED}.", "certificate"
    seeded = run.sampler.seeded or run.noise.seeded
    return (
        f"{text} The run record states that its trainer did so"
        f"{', with random numbers that the caller seeded' if seeded else ''}.",
        "run record",
    )


def _statement(review: Review) -> _Answered:
    own = review.certificate
    neighbours = own.adjacency.value.replace("_", "-")
    whose = " of users" if own.unit is Unit.USER else ""
    return (
        f"({review.cost}, {typed(own.budget.delta)})-differential privacy{whose}, {neighbours}.",
        _source(review),
    )


def _source(review: Review) -> str:
    """The file that the charged eps comes from."""
    return "certificate" if review.subject.run is None else "run record"


def _curve(review: Review) -> _Answered:
    attacks = review.attacks
    if attacks is None:
        return None
    rates = "; ".join(
        f"at a false-positive rate of {typed(100.0 * rate)} % at most "
        f"{percent_up(attacks.upper(rate))} % true positives"
        for rate in RATES
    )
    whole = "the whole privacy profile" if attacks.basis == "profile" else "(eps, delta) only"
    return f"{rates}; from {whole}.", "dpmech"


def _software(review: Review) -> _Answered:
    found = dict(review.certificate.versions)
    named = f"dpmech {found['dpmech']}, " if "dpmech" in found else ""
    return (
        f"{named}open source; an independent checker verified the claim for this report. "
        f"{' '.join(review.answers[0])}.",
        "verification",
    )


def _strength(review: Review) -> _Answered:
    own = review.certificate
    return f"eps {review.cost} at delta {typed(own.budget.delta)}: {review.headline}.", _source(review)


def _meaning(review: Review) -> _Answered:
    return claim_words(review.certificate, review.eps)[1], _source(review)


def _composition(review: Review) -> _Answered:
    ledger = review.subject.ledger
    if ledger is None:
        return None
    return f"{ledger.headline}.", "ledger"


def _mechanism(review: Review) -> _Answered:
    own = review.certificate
    clip = clip_words(own.clip_norm)
    return (
        f"Gaussian noise of scale {up(own.sigma)} times the clip norm ({strategy_words(own)}), on sums of "
        f"gradients with {clip}; sensitivity at most {up(own.sensitivity.upper)} clip norms.",
        "certificate",
    )


def _vetted(review: Review) -> _Answered:
    return f"{' '.join(review.answers[0])}.", "verification"


def _randomness(review: Review) -> _Answered:
    run = review.subject.run
    if run is None:
        return None
    seeded = "seeded by the caller" if run.noise.seeded else "not seeded by the caller"
    return f"Noise from {run.noise.source}, drawn by {run.noise.generator_words}, {seeded}.", "run record"


def _unprotected(review: Review) -> _Answered:
    own = review.certificate
    size = (
        "" if own.expected_batch_size is None else f", expected batch size {typed(own.expected_batch_size)}"
    )
    drawn = "users and examples" if own.unit is Unit.USER else "examples"
    if own.dataset_size is not None:
        declared = "declared " if own.mechanism.hides_size else ""
        size += f", {declared}dataset size {own.dataset_size}"
    if not own.mechanism.hides_size:
        return f"Public by assumption: {own.strategy.n} steps{size}, number of {drawn}.", "certificate"
    # Neighbouring datasets differ in it.
    private = f"Private: the number of {drawn}, on which no released value may depend."
    return f"Public by assumption: {own.strategy.n} steps{size}. {private}", "certificate"


# Answers that are the same in every report; certificates contain nothing about what is open.
_OPEN = None
_SETTING = (
    "Central: a trusted trainer sees the examples, and adds the noise before anything is released.",
    "dpmech",
)
_OUTPUT = "Every noisy step, and hence every checkpoint and everything that is computed from them.", "dpmech"
_POSTPROCESSING = (
    "Anything that is computed only from the noisy steps and public data has no additional privacy cost.",
    "dpmech",
)
_GUIDELINES: tuple[tuple[str, str, str, tuple[_Item, ...]], ...] = (
    (
        "dpfy",
        "What to report about private training",
        "Ponomareva et al. 2023, How to DP-fy ML (arXiv:2303.00654), section on reporting",
        (
            ("dpfy.setting", "Central, distributed or local: who is trusted with the data?", _SETTING),
            ("dpfy.accesses", "Which accesses to the data does the claim cover?", _accesses),
            ("dpfy.tuning", "Was tuning private, on public data, or outside the claim?", _OPEN),
            ("dpfy.output", "Which outputs may be released under the claim?", _OUTPUT),
            ("dpfy.unit", "What is the unit of privacy?", _unit),
            ("dpfy.adjacency", "When are two datasets neighbours?", _adjacency),
            ("dpfy.accountant", "Which accounting was used?", _accountant),
            ("dpfy.assumptions", "What does it assume, and did the training meet this?", _assumptions),
            ("dpfy.statement", "What is the formal statement?", _statement),
            ("dpfy.curve", "What does the rest of the privacy curve say?", _curve),
            ("dpfy.verifiable", "Can others check mechanism and accounting?", _software),
        ),
    ),
    (
        "nist",
        "How to evaluate a claim of differential privacy",
        "NIST SP 800-226 (2025), from the top of its pyramid to the bottom",
        (
            ("nist.epsilon", "How large are eps and delta, and what kind of guarantee is it?", _strength),
            ("nist.meaning", "What does this mean for a person in the data?", _meaning),
            ("nist.unit", "What is the privacy unit, and what about people with several units?", _unit),
            ("nist.neighbours", "Do neighbouring datasets have the same size (bounded) or not?", _adjacency),
            ("nist.composition", "What is the total of all releases about these people?", _composition),
            ("nist.mechanism", "Which mechanism, sensitivity and clipping are used?", _mechanism),
            ("nist.correctness", "How is it known that the algorithm is correct?", _vetted),
            ("nist.randomness", "Where do the random numbers come from?", _randomness),
            ("nist.utility", "Is the result accurate enough, and how was this measured privately?", _OPEN),
            ("nist.bias", "Do noise or clipping affect some groups more than others?", _OPEN),
            ("nist.pretraining", "Was the model pretrained, and on whose data?", _OPEN),
            ("nist.trust", "Who is trusted, and who might attack?", _SETTING),
            ("nist.side_channels", "Are side channels (time, memory, logs) protected?", _OPEN),
            ("nist.security", "How are data, keys and checkpoints stored, and who can read them?", _OPEN),
            ("nist.collection", "What was collected, for how long, and would less have sufficed?", _OPEN),
        ),
    ),
    (
        "registry",
        "What a public registry of deployments records",
        "Fields of the registry of Nanayakkara, Ghazi and Vadhan 2025 (arXiv:2509.13509), all tiers",
        (
            ("registry.curator", "Who is responsible for the data and the release?", _OPEN),
            ("registry.product", "What is released, and where?", _OPEN),
            ("registry.use", "What is its purpose?", _OPEN),
            ("registry.date", "When was it released?", _OPEN),
            ("registry.flavour", "Which kind of differential privacy, with which parameters?", _statement),
            ("registry.unit", "What is the privacy unit?", _unit),
            ("registry.model", "Which deployment model: central, distributed, local?", _SETTING),
            ("registry.domain", "What are the data about, and where do they come from?", _OPEN),
            ("registry.unprotected", "Which quantities are public?", _unprotected),
            ("registry.postprocessing", "How was the output processed afterwards?", _POSTPROCESSING),
            ("registry.composition", "How does it compose with other releases?", _composition),
            ("registry.mechanism", "Which mechanisms are used?", _mechanism),
            ("registry.implementation", "Which software is used?", _software),
            ("registry.security", "How is the deployment secured?", _OPEN),
            ("registry.rationale", "Why were these parameters and this unit chosen?", _OPEN),
        ),
    ),
)  # fmt: skip
