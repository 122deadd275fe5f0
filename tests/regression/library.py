"""From the words of `plans` to the library, and from its answers to numbers.

The one module here that knows the names of the library: after a change of names or of places, what has to
follow is here.
"""

import functools

import numpy as np

import dpmech as dm
from dpmech.certificates import AdaptiveClip
from dpmech.mechanism.noise_cost import noise_cost
from dpmech.samplers import sampler_for
from dpmech.schemes import accountant_for

__all__ = [
    "ANSWERS",
    "accepts",
    "answer",
    "degenerate",
    "kinds_of",
    "mechanism_of",
    "method_of",
    "method_words",
    "participation_of",
    "runs",
    "strategy_of",
]

# Of everything that is drawn.
SEED = 5
POINTS_EPS, POINTS_DELTA = (0.0, 0.5, 2.0), (1e-8, 1e-5)


# ---- words


def _rows(n):
    return np.arange(float(n))[:, None], np.arange(float(n))[None, :]


def _wavy(n):
    """Neither Toeplitz nor of one sign, three bands; no two columns have the same norm."""
    rows, columns = _rows(n)
    matrix = np.cos(1.0 + 2.0 * rows + columns**2) * (rows >= columns) * (rows < columns + 3.0)
    return matrix + np.diag(2.0 + 0.1 * np.arange(float(n)))


_STRATEGIES = {
    "identity": dm.Identity,
    "falling": lambda n: dm.Diagonal(np.arange(n, 0.0, -1.0)),
    "scaled": lambda n: dm.Diagonal(np.full(n, 3.0)),
    "steps": lambda n, width: dm.Diagonal(np.repeat(np.arange(n // width, 0.0, -1.0), width)),
    "lambda": dm.LambdaCGD,
    "square-root": dm.SquareRoot,
    "inverse-square-root": dm.InverseSquareRoot,
    "banded": lambda n, coefs: dm.BandedToeplitz(n, np.array(coefs)),
    "banded-inverse": lambda n, coefs: dm.BandedInverse(n, np.array(coefs)),
    "blt": lambda n, decays, scales: dm.BLT(n, np.array(decays), np.array(scales)),
    "wavy": lambda n: dm.Dense(_wavy(n)),
    "wavy positive": lambda n: dm.Dense(np.abs(_wavy(n))),
    "hilbert": lambda n: dm.Dense(np.tril(1.0 / (1.0 + sum(_rows(n))))),
    "normalized": lambda inner: dm.ColumnNormalized(strategy_of(inner)),
    "fitted lambda": lambda n: dm.optimize(dm.LambdaCGD, dm.MinSep(10, 5), n=n).strategy,
    "fitted banded": lambda n, bands: (
        dm.optimize(dm.BandedToeplitz, dm.MinSep(10, 5), n=n, bands=bands).strategy
    ),
    "fitted inverse": lambda n, bands: (
        dm.optimize(dm.BandedInverse, dm.MinSep(10, 5), n=n, bands=bands).strategy
    ),
    "fitted in bins": lambda n, bins: (
        dm.optimize(
            dm.LambdaCGD, dm.BallsInBins(bins), n=n, eps=2.0, delta=1e-5, method=dm.methods.Rdp()
        ).strategy
    ),
}

_PARTICIPATIONS = {
    "every-step": dm.EveryStep,
    "single": dm.SingleParticipation,
    "min-sep": lambda min_sep, most, users: dm.MinSep(min_sep, most, max_examples_per_user=users),
    "epochs": dm.FixedEpochs,
    "poisson": lambda q, users, batch, size: dm.Poisson(
        q, max_examples_per_user=users, truncated_batch_size=batch, dataset_size=size
    ),
    "fixed-size": dm.FixedSizeBatches,
    "b-min-sep": dm.BMinSep,
    "cyclic": lambda q, cycle, users: dm.CyclicPoisson(q, cycle, max_examples_per_user=users),
    "bins": lambda bins, users: dm.BallsInBins(bins, max_examples_per_user=users),
    "fresh bins": lambda bins: dm.BallsInBins(bins, fresh=True),
    "allocated": lambda participations, cycle: dm.RandomAllocation(participations, cycle=cycle or 1),
}

_METHODS = {
    "pld": dm.methods.Pld,
    "prv": dm.methods.Prv,
    "rdp": dm.methods.Rdp,
    "exact": dm.methods.Exact,
    "deterministic": dm.methods.Deterministic,
    "certified": lambda beta=None, calls=1: dm.methods.Certified(beta, calls=calls),
    "importance": dm.methods.Importance,
}

_ACCOUNTING = {
    "gdp": dm.ledgers.GdpAccounting(),
    "renyi": dm.ledgers.RenyiAccounting(),
    "renyi 8": dm.ledgers.RenyiAccounting(8),
    "claims": dm.ledgers.ClaimAccounting(),
    "claims 1e-6": dm.ledgers.ClaimAccounting(1e-6),
}

# What plans of training call a sampling, and settings of one, by the words here.
_SAMPLINGS = {
    "fixed-size": "fixed-size",
    "cyclic": "cyclic-poisson",
    "bins": "balls-in-bins",
    "allocated": "random-allocation",
}
_FRESH = {"fresh bins": ("balls-in-bins", {"fresh": True})}
_SETTINGS = {"users": "max_examples_per_user", "batch": "truncated_batch_size"}


def strategy_of(words):
    """A strategy, made anew."""
    return _STRATEGIES[words[0]](*words[1:])


def participation_of(words):
    """A participation."""
    return _PARTICIPATIONS[words[0]](*words[1].values())


def method_of(words):
    """A method, or None."""
    return None if words is None else _METHODS[words[0]](*words[1:])


def method_words():
    """Of each method with its default settings."""
    return [(word,) for word in _METHODS]


def mechanism_of(plan):
    """What runs, made anew, so that nothing computed before is left in it."""
    return dm.Mechanism(
        strategy_of(plan.strategy),
        participation_of(plan.who),
        dm.Adjacency(plan.adjacency),
        dm.Unit(plan.unit),
    )


def runs(plan):
    """Whether the plan is of one mechanism, which `mechanism_of` makes."""
    return plan.who is not None and plan.who[0] in _PARTICIPATIONS


def accepts(mechanism, method):
    """Whether the library accounts for this mechanism by this method."""
    try:
        accountant_for(mechanism, method_of(method))
    except dm.DpmechError:
        return False
    return True


def degenerate(mechanism):
    """Whether a random participation has settings under which nothing is random."""
    return mechanism.participation.random and mechanism.certain


def kinds_of(base):
    """Every class below the base of all participations, strategies or methods that the library exports.

    Args:
        base: "participation", "strategy" or "method".
    """
    root = {"participation": dm.Participation, "strategy": dm.Strategy, "method": dm.methods.Method}[base]
    public = [getattr(dm, name) for name in dm.__all__] + list(vars(dm.methods).values())
    return {one for one in public if isinstance(one, type) and issubclass(one, root)} - {root}


# ---- answers


def _sure(guarantee):
    said = guarantee.kind.name.lower()
    if guarantee.error:
        said += f" {guarantee.error!r}"
    return f"{said} inside delta" if guarantee.inside_delta else said


def _ends(found, name=""):
    name = f"{name}." if name else ""
    return {f"{name}lower": found.lower, f"{name}upper": found.upper}


def _bounds(found):
    return _ends(found), _sure(found.guarantee)


def _options(plan):
    return {"method": method_of(plan.method), "rng": SEED}


def _calibrated(plan, eps, delta):
    return dm.calibrate_sigma(mechanism_of(plan), eps, delta, **_options(plan))


def _sigma(plan, eps, delta):
    found = _calibrated(plan, eps, delta)
    return {"sigma": found.sigma, **_ends(found.achieved, "achieved")}, _sure(found.guarantee)


def _certified(plan, eps, delta):
    """With the errors that a certificate states."""
    found = _calibrated(plan, eps, delta)
    multiplier = {} if found.noise_multiplier is None else {"noise_multiplier": found.noise_multiplier}
    return {
        "sigma": found.sigma,
        **_ends(found.sensitivity, "sensitivity"),
        "rmse": found.rmse(),
        "max_se": found.max_se(),
        **multiplier,
    }, _sure(found.guarantee)


def _given(plan, sigma, delta):
    """The budget that a given noise scale is certified for."""
    found = dm.certify_sigma(mechanism_of(plan), sigma, delta=delta, method=method_of(plan.method))
    return {"eps": found.budget.eps, "delta": found.budget.delta}, _sure(found.guarantee)


def _epsilon(plan, sigma, delta):
    return _bounds(dm.epsilon(mechanism_of(plan), sigma, delta, **_options(plan)))


def _delta(plan, sigma, eps):
    return _bounds(dm.delta(mechanism_of(plan), sigma, eps, **_options(plan)))


def _profile_of(plan, sigma):
    return dm.profile(mechanism_of(plan), sigma, **_options(plan))


def _points(found):
    numbers = {}
    for eps in POINTS_EPS:
        for add, side in ((True, "add"), (False, "remove")):
            numbers |= _ends(found.hockey_stick(eps, add=add), f"{side} at {eps:g}")
    for delta in POINTS_DELTA:
        numbers |= _ends(found.epsilon(delta), f"eps at {delta:g}")
    return numbers, _sure(found.guarantee)


def _profile(plan, sigma):
    return _points(_profile_of(plan, sigma))


def _risk(plan, sigma):
    found = _profile_of(plan, sigma)
    asked = {
        "tradeoff": found.tradeoff(0.05),
        "tpr": found.tpr(0.01),
        "advantage": found.advantage,
        "mu": found.gaussian_mu(1e-10),
        "bayes": found.bayes_success(0.3),
        "reconstruction": found.reconstruction(0.001),
    }
    if not found.parts.curves:
        asked["zcdp"] = found.zcdp
    return {key: value for name, one in asked.items() for key, value in _ends(one, name).items()}, _sure(
        found.guarantee
    )


def _composed(plan, sigma, times):
    return _bounds(_profile_of(plan, sigma).self_compose(times).epsilon(1e-5))


def _selected(plan, sigma, mean, shape):
    """The best of a secret number of runs, by both laws."""
    once = _profile_of(plan, sigma)
    laws = {
        "negative binomial": dm.ledgers.NegativeBinomialRuns.of_mean(mean, shape=shape),
        "poisson": dm.ledgers.PoissonRuns(mean),
    }
    numbers = {}
    for name, law in laws.items():
        numbers |= _ends(once.private_selection(law).epsilon(1e-5), name)
    return numbers, None


def _target(kind, plan, *limits):
    found = dm.calibrate_sigma_to(mechanism_of(plan), kind(*limits), rng=SEED)
    return {"sigma": found.sigma, **_ends(found.risk, "risk")}, _sure(found.risk.guarantee)


def _executed(plan, eps, delta, steps):
    """Eps of a run that stopped early."""
    claim = _calibrated(plan, eps, delta)
    return _bounds(dm.executed_epsilon(claim, steps, rng=np.random.default_rng(SEED)))


def _renyi(plan, sigma):
    accountant = accountant_for(mechanism_of(plan), dm.methods.Rdp())
    orders = (2, 5, 32)
    if isinstance(plan.who[1].get("bins"), int):
        return {f"order {order}": accountant.renyi(sigma, order) for order in orders}, None
    divergence = accountant.divergence(sigma)
    return {f"order {order}": divergence(float(order)) for order in orders}, None


def _sensitivity(plan):
    return _bounds(dm.sensitivity(mechanism_of(plan)))


def _errors(plan):
    mechanism = mechanism_of(plan)
    rates = np.linspace(1.0, 0.1, mechanism.steps)
    return {
        "rmse": dm.rmse(mechanism),
        "max_se": dm.max_se(mechanism),
        "last": dm.last_iterate_error(mechanism),
        "rmse, momentum": dm.rmse(mechanism, workload=dm.workloads.momentum(mechanism.steps, 0.9)),
        "rmse, rates": dm.rmse(mechanism, workload=dm.workloads.learning_rate_weighted(rates)),
    }, None


def _error_without_a_sigma(plan):
    return {"rmse": dm.rmse(mechanism_of(plan))}, None


def _matrix(plan):
    """What a strategy is: norms, C and C^-1 applied to a vector, its cost."""
    strategy = strategy_of(plan.strategy)
    waves = np.cos(np.arange(float(strategy.n)))
    norms, product, solved = strategy.column_norms(), strategy.matmul(waves), strategy.solve(waves)
    cost = noise_cost(strategy)
    return {
        "least norm": norms.min(),
        "largest norm": norms.max(),
        "product": np.linalg.norm(product),
        "last of product": product[-1],
        "solution": np.linalg.norm(solved),
        "last of solution": solved[-1],
        "buffers": cost.buffers,
        "regenerated": cost.regenerated,
    }, None


def _batches(plan, size, *, owners=None):
    """The first batches of a seed, and what they add up to."""
    mechanism = mechanism_of(plan)
    # Of these the participation does not say how large a batch is.
    free = plan.who[0] in {"every-step", "single"}
    sampler = sampler_for(
        mechanism.participation,
        size,
        n=mechanism.steps,
        user_ids=owners,
        declared_size=size if plan.who[0] == "every-step" else None,
        batch_size=size // mechanism.steps if free else None,
        rng=SEED,
    )
    batches = [sampler.indices(step) for step in range(mechanism.steps)]
    return {
        "first": batches[0].size,
        "all": sum(batch.size for batch in batches),
        "sum": sum(int(batch.sum()) * (step + 1) for step, batch in enumerate(batches)),
        "epoch": sampler.steps_per_epoch,
        "mean": sampler.mean_batch_size,
    }, None


def _batches_of_users(plan, size):
    return _batches(plan, size, owners=[example // plan.who[1]["users"] for example in range(size)])


# ---- several releases


def _entered(ledger, entries, adjacency):
    for number, entry in enumerate(entries):
        name = f"release {number}"
        if entry[0] == "counts":
            ledger.add_counts(name, dm.DiscreteGaussian(*entry[1:], adjacency=adjacency))
            continue
        runs, rest = (entry[1], entry[2:]) if entry[0] == "selection" else (None, entry)
        *what, eps, delta = rest
        who, strategy, *method = what
        participation = participation_of(who)
        mechanism = dm.Mechanism(strategy_of(strategy), participation, adjacency)
        claim = dm.calibrate_sigma(
            mechanism, eps, delta, method=method_of(method[0]) if method else None, rng=SEED
        )
        batch = f"batch {number}" if participation.random else None
        if runs is None:
            ledger.add(name, claim, batch=batch)
        else:
            ledger.add_tuning(name, claim, dm.ledgers.NegativeBinomialRuns.of_mean(runs), batch=batch)


def _ledger(plan):
    settings = dict(plan.who[1])
    adjacency = dm.Adjacency(settings.pop("adjacency", "add_remove"))
    budget, accounting = settings.pop("budget", None), settings.pop("accounting", None)
    ledger = dm.Ledger(
        adjacency,
        budget=None if budget is None else dm.PrivacyBudget(*budget),
        accounting=None if accounting is None else _ACCOUNTING[accounting],
        **settings,
    )
    _entered(ledger, plan.strategy[1:], adjacency)
    return ledger


def _left(plan, delta):
    left = _ledger(plan).remaining
    parts = {f"left {number}": one for number, one in enumerate(left.left)}
    return {"mu": left.mu, "eps": left.epsilon(delta), **parts}, None


def _counts(plan, delta, eps):
    own = plan.who[1]
    counts = dm.DiscreteGaussian(own["sigma"], own["each"], own["releases"])
    found = counts.epsilon(delta)
    return {
        **_ends(found, "eps"),
        **_ends(counts.delta(eps), "delta"),
        **_ends(counts.profile().epsilon(delta), "by profile"),
        "rho": counts.rho,
    }, _sure(found.guarantee)


def _blocks(plan):
    own = plan.who[1]
    blocks = dm.ledgers.BlockClipping(own["norms"], own["sigma"])
    shared = dm.ledgers.BlockClipping.from_joint(own["norms"], own["sigma"], dimensions=[7, 100, 3])
    return {
        "sigma": blocks.sigma,
        "replace one": blocks.replace_one_sigma,
        "joint norm": blocks.joint_clip_norm,
        **{f"norm {number}": norm for number, norm in enumerate(blocks.effective_clip_norms)},
        **{f"shared {number}": sigma for number, sigma in enumerate(shared.sigmas)},
    }, None


def _clip(plan):
    own = plan.who[1]
    rule = AdaptiveClip(2.0, 0.5, count_share=own["share"])
    return {
        "gradients": rule.gradient_sigma(own["sigma"]),
        "count": rule.count_stddev(own["sigma"]),
        "after": rule.after(2.0, -10.0, expected_batch_size=40.0),
    }, None


def _batch(plan, delta, eps):
    _, who, strategy = plan.strategy
    asked = {}
    for name, at in (("epsilon", delta), ("delta", eps)):
        batch = dm.ledgers.SharedBatch("batch", strategy_of(strategy), participation_of(who))
        for number, sigma in enumerate(plan.who[1]["sigmas"]):
            batch.register(f"block {number}", sigma)
        asked |= _ends(getattr(batch, name)(at), name)
    return asked, None


def _history(plan, delta, eps):
    found = dm.interchange.from_opacus_history(list(plan.who[1]["steps"]))
    return _ends(found.epsilon(delta), "eps") | _ends(found.delta(eps), "delta"), _sure(found.guarantee)


def _planned(plan):
    """What a plan of training makes of its sizes: the numbers in the participation."""
    own, (_, sampling, given) = plan.who[1], plan.strategy
    sizes = dm.TrainingPlan(own["size"], own["batch"], own["epochs"])
    word, fresh = _FRESH.get(sampling, (_SAMPLINGS.get(sampling, sampling), {}))
    settings = {_SETTINGS.get(name, name): value for name, value in given.items()}
    made = sizes.participation(word, **settings, **fresh)
    numbers = {name: value for name, value in made.to_dict().items() if type(value) in {int, float}}
    pattern = made.pattern(sizes.steps)
    return {
        **numbers,
        "least distance": pattern.min_sep,
        "participations": pattern.max_participations,
        "releases": made.releases(sizes.steps),
    }, None


ANSWERS = {
    "sigma": _sigma,
    "certified": _certified,
    "given": _given,
    "epsilon": _epsilon,
    "delta": _delta,
    "profile": _profile,
    "risk": _risk,
    "composed": _composed,
    "selected": _selected,
    "attack": functools.partial(_target, dm.AttackTarget),
    "advantage": functools.partial(_target, dm.AdvantageTarget),
    "gaussian": functools.partial(_target, dm.GaussianTarget),
    "executed": _executed,
    "renyi": _renyi,
    "sensitivity": _sensitivity,
    "errors": _errors,
    "error without a sigma": _error_without_a_sigma,
    "matrix": _matrix,
    "batches": _batches,
    "batches of users": _batches_of_users,
    "total epsilon": lambda plan, delta: _bounds(_ledger(plan).epsilon(delta)),
    "total delta": lambda plan, eps: _bounds(_ledger(plan).delta(eps)),
    "total claims": lambda plan, delta: _bounds(_ledger(plan).epsilon(delta, profiles=False)),
    "total profile": lambda plan: _points(_ledger(plan).profile(rng=SEED)),
    "moments": lambda plan, delta: _bounds(_ledger(plan).epsilon(delta, method=dm.methods.Rdp())),
    "left": _left,
    "counts": _counts,
    "joined": lambda plan: ({"sigma": dm.ledgers.joint_release(plan.who[1]["sigmas"]).sigma}, None),
    "blocks": _blocks,
    "clip": _clip,
    "batch": _batch,
    "history": _history,
    "planned": _planned,
}


def answer(plan, asked):
    """What the library says now.

    Args:
        plan: a Plan.
        asked: one of its questions.

    Returns:
        The numbers by name (float), and how sure they are in words, or None where they do not say; for what
        is refused no numbers, and the class of the error.
    """
    try:
        numbers, sure = ANSWERS[asked[0]](plan, *asked[1:])
    except dm.DpmechError as error:
        return {}, f"refused: {type(error).__name__}"
    return {name: float(value) for name, value in numbers.items()}, sure
