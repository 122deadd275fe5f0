"""The first page of a report: the claim, and what somebody who approves it has to know, in a few rows."""

import math
from decimal import Decimal

from dpmech.certificates import Certificate
from dpmech.mechanism import Unit
from dpmech.numerics import between, counted, short, typed, up
from dpmech.reports.checklists import NOT_STATED, checklists
from dpmech.reports.review import Review
from dpmech.reports.words import clip_words, not_covered, scheme_words, strategy_words
from dpmech.verifying import implied_size


def summary_rows(review: Review, total: str) -> list[tuple[str, str]]:
    """Names and values, in the order of a decision.

    Args:
        review: the review.
        total: the total of the ledger's releases in words; empty without a ledger.
    """
    own = review.certificate
    stated = [answer.stated for one in checklists(review) for answer in one.answers]
    found = review.attacks
    attack = [] if found is None else [("attack rates", found.findings[0].words)]
    return [
        ("claim", f"({review.cost}, {typed(own.budget.delta)})-differential privacy; {review.headline}"),
        ("unit and neighbours", f"one {own.unit.value}, {own.adjacency.value.replace('_', '-')}"),
        *_sizes(own),
        ("sampling", _sampling(own)),
        ("clipping and noise", _noise(own)),
        ("generator of the noise", _generator(review)),
        *attack,
        ("proved by the checker", _proved(review)),
        ("only the trainer vouches for", _vouched(review)),
        ("all releases about these people", _releases(review, total)),
        ("not covered", f"{'; '.join(name for name, _ in not_covered(own))}"),
        ("base model", _base_model(review)),
        *((f"measured {one.kind}", f"{one.words} (said by {one.by})") for one in review.said.measurements),
        ("checklists", f"{sum(stated)} of {len(stated)} items answered; the others are {NOT_STATED}"),
    ]


def size_of(own: Certificate) -> tuple[int | None, str, str]:
    """The number that a certificate states or implies, the larger one, of what, and its source."""
    implied, _ = implied_size(own)
    # Where users are sampled as a whole, batches are of users.
    drawn = "user" if own.unit is Unit.USER and own.participation.unit is None else "example"
    found = [] if implied is None else [(math.ceil(implied), drawn, "implied by batch size and sampling")]
    if own.dataset_size is not None:
        source = "declared in the certificate" if own.mechanism.hides_size else "public, by the certificate"
        found.insert(0, (own.dataset_size, "example", source))
    return max(found, key=lambda one: one[0]) if found else (None, "example", "")


def delta_times(delta: float, size: int) -> str:
    """Delta times a number of examples, as it is printed: rounded up."""
    # Decimal, as typed: the float of 1e-5 is slightly larger.
    product = Decimal(repr(delta)) * size
    near = float(product)
    return short(near if Decimal(repr(near)) >= product else math.nextafter(near, math.inf))


def _sizes(own: Certificate) -> list[tuple[str, str]]:
    size, noun, source = size_of(own)
    if size is None:
        missing = f"{NOT_STATED}: compare delta {typed(own.budget.delta)} with 1 over the number of examples"
        return [("examples", missing)]
    product = delta_times(own.budget.delta, size)
    high = float(product) >= 1.0
    meaning = (
        ": too high, because publishing every record with probability delta would satisfy this delta"
        if high
        else ", the expected number of records that a mechanism with this delta could publish in full"
    )
    count = f"{size:,} {noun}" if size == 1 else f"{size:,} {noun}s"
    rows = [("dataset size", f"{count}, {source}"), ("delta times that", f"{product}{meaning}")]
    if own.unit is Unit.USER and noun != "user":
        rows.append(("users", f"{NOT_STATED}: sizes in a certificate are numbers of examples"))
    return rows


def _sampling(own: Certificate) -> str:
    size = own.expected_batch_size
    batch = "" if size is None else f", expected batch size {typed(size)}"
    steps = counted(own.strategy.n, "step")
    random = not own.participation.certain
    amplified = "the guarantee assumes that it is random" if random else "no amplification"
    return f"{scheme_words(own)}, {steps}{batch}; {amplified}"


def _noise(own: Certificate) -> str:
    return f"{clip_words(own.clip_norm)}; sigma {up(own.sigma)} at clip norm 1, {strategy_words(own)}"


def _generator(review: Review) -> str:
    run = review.subject.run
    if run is None:
        return f"{NOT_STATED}: there is no run record"
    seeded = "seeded by the caller" if run.noise.seeded else "not seeded by the caller"
    return f"{run.noise.generator_words}, from {run.noise.source}, {seeded}"


def _proved(review: Review) -> str:
    found = review.verifications[0]
    if found.claim is None:
        return "nothing: the claim was not decided"
    own = review.certificate
    upper, ends = up(own.achieved.upper), [check for check in found.checks if check.name == "achieved"]
    stated = f"; the stated eps is at most {upper}" if ends and not found.achieved_open else ""
    if stated and own.participation.certain and all(c.ok and not (c.loose or c.left_open) for c in ends):
        stated = f"; the stated eps is in {between(own.achieved.lower, own.achieved.upper)}"
    failed = [check.name for _, check in review.checks if not check.ok]
    refused = f"; these checks did not pass: {', '.join(dict.fromkeys(failed))}" if failed else ""
    return f"{review.answers[0][1]}{stated}{refused}"


def _vouched(review: Review) -> str:
    run, own = review.subject.run, review.certificate
    required = (
        "that batches, clipping, noise and denominator met the requirements, and the data are as described"
    )
    if run is None:
        return f"{required}; there is no run record"
    stopped = ", stopped by plan" if run.stopped_by_plan else ""
    return f"{required}; the run record says so for {run.steps} of {own.strategy.n} steps{stopped}"


def _releases(review: Review, total: str) -> str:
    ledger = review.subject.ledger
    if ledger is None:
        return f"{NOT_STATED}: there is no ledger, and other releases increase this eps"
    return f"{counted(ledger.entries, 'release')}: {total}"


def _base_model(review: Review) -> str:
    said = review.said.about("nist.pretraining")
    return NOT_STATED if said is None else f"{said.text} (said by {said.by})"
