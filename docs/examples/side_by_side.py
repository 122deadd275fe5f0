"""dpmech next to the libraries that compute the same numbers, in one run.

Every row compares the results of dpmech and of one other library for the same
question, and their CPU seconds on one core. Both were called once before, so
that imports and compilations are not measured. Lower is better for every result.
The last two columns contain the result and the time of the other library,
divided by those of dpmech: above 1, dpmech is tighter or faster.
Libraries that are not installed are named as such. Run as `python
side_by_side.py FOLDER` with OMP_NUM_THREADS=1; it writes the table in some
five minutes of CPU time.
"""

import argparse
import importlib
import json
import math
import pathlib
import time
import warnings
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

import dpmech as dm
from dpmech.numerics import up

Call = Callable[[], float]


def sampled(
    q: float, sigma: float, steps: int, delta: float, **more: object
) -> Call:
    """Eps of DP-SGD by dpmech, the upper bound."""
    where = {"participation": dm.Poisson(q)} | more
    return lambda: dm.epsilon(dm.Identity(steps), sigma, delta, **where).upper


def google(
    event: Callable[[ModuleType], object], delta: float, **more: object
) -> Call:
    """Eps by dp_accounting's privacy loss distributions."""

    def run() -> float:
        import dp_accounting as dpa
        from dp_accounting.pld import PLDAccountant

        relation = dpa.NeighboringRelation[
            more.get("relation", "ADD_OR_REMOVE_ONE")
        ]
        accountant = PLDAccountant(relation)
        return float(accountant.compose(event(dpa)).get_epsilon(delta))

    return run


def of_sgd(
    q: float, sigma: float, steps: int
) -> Callable[[ModuleType], object]:
    """The event of DP-SGD in dp_accounting."""
    return lambda dpa: dpa.SelfComposedDpEvent(
        dpa.PoissonSampledDpEvent(q, dpa.GaussianDpEvent(sigma)), steps
    )


def prv(q: float, sigma: float, steps: int, delta: float) -> Call:
    """Eps by prv_accountant, its upper bound with an error of 0.01."""

    def run() -> float:
        from prv_accountant.dpsgd import DPSGDAccountant

        accountant = DPSGDAccountant(
            noise_multiplier=sigma,
            sampling_probability=q,
            eps_error=0.01,
            delta_error=delta / 1000,
            max_steps=steps,
        )
        return float(
            accountant.compute_epsilon(delta=delta, num_steps=steps)[2]
        )

    return run


def opacus(name: str, q: float, sigma: float, steps: int, delta: float) -> Call:
    """Eps by an accountant of Opacus."""

    def run() -> float:
        from opacus.accountants import create_accountant

        accountant = create_accountant(name)
        accountant.history = [(sigma, q, steps)]
        return float(accountant.get_epsilon(delta))

    return run


def budget(steps: int, q: float, eps: float, delta: float) -> Call:
    """The noise multiplier of DP-SGD by dpmech."""
    where = dm.Poisson(q)
    return lambda: (
        dm.calibrate_sigma(
            dm.Identity(steps), eps, delta, participation=where
        ).sigma
    )


def google_budget(steps: int, q: float, eps: float, delta: float) -> Call:
    """The noise multiplier by dp_accounting, as its documentation does it."""

    def run() -> float:
        import dp_accounting as dpa
        from dp_accounting.pld import PLDAccountant

        found = dpa.calibrate_dp_mechanism(
            PLDAccountant,
            lambda sigma: of_sgd(q, sigma, steps)(dpa),
            eps,
            delta,
        )
        return float(found)

    return run


def opacus_budget(
    name: str, steps: int, q: float, eps: float, delta: float
) -> Call:
    """The noise multiplier by Opacus."""

    def run() -> float:
        from opacus.accountants.utils import get_noise_multiplier

        found = get_noise_multiplier(
            target_epsilon=eps,
            target_delta=delta,
            sample_rate=q,
            steps=steps,
            accountant=name,
        )
        return float(found)

    return run


def mu(q: float, sigma: float, steps: int) -> Call:
    """The mu of Gaussian differential privacy by dpmech."""

    def run() -> float:
        where = dm.Poisson(q)
        profile = dm.profile(dm.Identity(steps), sigma, participation=where)
        return profile.gaussian_mu(1e-10).upper

    return run


def gdpnum(q: float, sigma: float, steps: int) -> Call:
    """The mu of Gaussian differential privacy by gdpnum, an estimate."""

    def run() -> float:
        from gdpnum import dpsgd

        return float(dpsgd.get_mu_and_regret_for_dpsgd(sigma, q, steps)[0])

    return run


def advantage(q: float, sigma: float, steps: int) -> Call:
    """The advantage of the best attack by dpmech."""

    def run() -> float:
        where = dm.Poisson(q)
        profile = dm.profile(dm.Identity(steps), sigma, participation=where)
        return profile.advantage.upper

    return run


def riskcal(q: float, sigma: float, steps: int) -> Call:
    """The advantage of the best attack by riskcal."""

    def run() -> float:
        from riskcal.calibration import dpsgd

        found = dpsgd.get_advantage_for_dpsgd(
            noise_multiplier=sigma, sample_rate=q, num_steps=steps
        )
        return float(found)

    return run


def noises(mechanism: object, count: int, delta: float) -> Call:
    """Eps of repeated releases of a mechanism by dpmech."""

    def run() -> float:
        ledger = dm.Ledger()
        ledger.add_mechanism("all", mechanism, count=count)
        return ledger.epsilon(delta).upper

    return run


def bands(n: int, width: int, order: dm.MinSep) -> Call:
    """The RMSE of the best banded Toeplitz strategy by dpmech."""
    return lambda: dm.optimize(dm.BandedToeplitz, order, n=n, bands=width).error


def jax_bands(n: int, width: int, order: dm.MinSep) -> Call:
    """The RMSE of the best banded Toeplitz strategy by jax_privacy."""

    def run() -> float:
        import jax
        from jax_privacy.matrix_factorization import toeplitz

        jax.config.update("jax_enable_x64", val=True)
        coef = toeplitz.optimize_banded_toeplitz(n, bands=width)
        squared = toeplitz.minsep_sensitivity_squared(
            coef, order.min_sep, order.max_participations, n=n
        )
        errors = toeplitz.per_query_error(strategy_coef=coef, n=n)
        return math.sqrt(float(squared) * float(errors.mean()))

    return run


def buffers(n: int, order: dm.MinSep) -> Call:
    """The RMSE of the best BLT with three buffers by dpmech."""
    return lambda: dm.optimize(dm.BLT, order, n=n, buffers=3).error


def jax_buffers(n: int, order: dm.MinSep) -> Call:
    """The RMSE of the best BLT by jax_privacy."""

    def run() -> float:
        import jax
        from jax_privacy.matrix_factorization import buffered_toeplitz

        jax.config.update("jax_enable_x64", val=True)
        most = order.max_participations
        blt = buffered_toeplitz.optimize(
            n=n, min_sep=order.min_sep, max_participations=most, error="mean"
        )
        loss = buffered_toeplitz.LossFn.build_min_sep(
            n, "mean", order.min_sep, most
        )
        return math.sqrt(float(loss.loss(blt)))

    return run


def dense(n: int, epochs: int) -> Call:
    """The RMSE of the best lower triangular strategy by dpmech."""
    return lambda: dm.optimize(dm.Dense, dm.FixedEpochs(epochs), n=n).error


def jax_dense(n: int, epochs: int) -> Call:
    """The RMSE of the best lower triangular strategy by jax_privacy."""

    def run() -> float:
        import jax
        from jax_privacy.matrix_factorization import dense, sensitivity

        jax.config.update("jax_enable_x64", val=True)
        found = dense.optimize(n, epochs=epochs)
        norm = float(sensitivity.fixed_epoch_sensitivity(found, epochs))
        errors = dense.per_query_error(strategy_matrix=found)
        return norm * math.sqrt(float(errors.mean()))

    return run


SGD = [
    (128 / 50_000, 0.8, 3_900, 1e-5),
    (0.01, 1.0, 1_000, 1e-6),
    (1e-3, 1.0, 100_000, 1e-8),
    (0.2, 5.0, 200, 1e-5),
]
BUDGETS = [(3_900, 128 / 50_000, 8.0, 1e-5), (1_000, 0.01, 1.0, 1e-6)]
REPLACED = {"adjacency": dm.Adjacency.REPLACE_ONE}
ORDER = dm.MinSep(390, 10)
SMALL = dm.MinSep(100, 5)


def rows() -> list[tuple[str, Call, list[tuple[str, str, Call]]]]:
    """Each question, dpmech's way, and (package, how, call) of the others."""
    asked: list[tuple[str, Call, list[tuple[str, str, Call]]]] = []
    for q, sigma, steps, delta in SGD:
        given = (q, sigma, steps, delta)
        others = [
            ("dp_accounting", "PLD", google(of_sgd(q, sigma, steps), delta)),
            ("prv_accountant", "PRV", prv(*given)),
            ("opacus", "RDP", opacus("rdp", *given)),
        ]
        name = (
            f"eps: q {q:.4g}, sigma {sigma:g}, {steps:,} steps, delta {delta:g}"
        )
        asked.append((name, sampled(*given), others))
    for plan in BUDGETS:
        steps, q, eps, delta = plan
        name = (
            f"sigma: eps {eps:g}, q {q:.4g}, {steps:,} steps, delta {delta:g}"
        )
        others = [
            ("dp_accounting", "PLD", google_budget(*plan)),
            ("opacus", "PRV", opacus_budget("prv", *plan)),
            ("opacus", "RDP", opacus_budget("rdp", *plan)),
        ]
        asked.append((name, budget(*plan), others))
    q, sigma, steps, delta = SGD[0]
    asked += [
        (
            f"eps, replacing an example: q {q:.4g}, {steps:,} steps",
            sampled(q, sigma, steps, delta, **REPLACED),
            [
                (
                    "dp_accounting",
                    "PLD",
                    google(
                        of_sgd(q, sigma, steps), delta, relation="REPLACE_ONE"
                    ),
                )
            ],
        ),
        (
            f"mu: q {q:.4g}, sigma {sigma:g}, {steps:,} steps",
            mu(q, sigma, steps),
            [("gdpnum", "estimate", gdpnum(q, sigma, steps))],
        ),
        (
            f"advantage: q {q:.4g}, sigma {sigma:g}, {steps:,} steps",
            advantage(q, sigma, steps),
            [("riskcal", "PLD", riskcal(q, sigma, steps))],
        ),
        (
            "eps: 100 times Laplace noise of scale 20, delta 1e-6",
            noises(dm.ledgers.Laplace(20.0, 1.0), 100, 1e-6),
            [
                (
                    "dp_accounting",
                    "PLD",
                    google(
                        lambda dpa: dpa.SelfComposedDpEvent(
                            dpa.LaplaceDpEvent(20.0), 100
                        ),
                        1e-6,
                    ),
                )
            ],
        ),
        (
            "eps: 1,000 steps, 500 of 50,000 without replacement, sigma 1",
            sampled(
                0.01,
                1.0,
                1_000,
                1e-6,
                participation=dm.FixedSizeBatches(50_000, 500),
                **REPLACED,
            ),
            [("dp_accounting", "RDP", without_replacement)],
        ),
        (
            "eps: 1,000 steps of at most 150 examples, q 0.01 of 10,000, sigma 1",
            truncated,
            [("dp_accounting", "PLD", google_truncated)],
        ),
        (
            "RMSE: 16 Toeplitz bands, 3,900 steps, 10 epochs",
            bands(3_900, 16, ORDER),
            [
                (
                    "jax_privacy",
                    "250 steps of L-BFGS",
                    jax_bands(3_900, 16, ORDER),
                )
            ],
        ),
        (
            "RMSE: BLT of 3 buffers, 500 steps, 5 epochs",
            buffers(500, SMALL),
            [("jax_privacy", "its defaults", jax_buffers(500, SMALL))],
        ),
        (
            "RMSE: lower triangular, 64 steps, 4 epochs",
            dense(64, 4),
            [("jax_privacy", "its defaults", jax_dense(64, 4))],
        ),
    ]
    return asked


def without_replacement() -> float:
    """Eps of batches without replacement by dp_accounting.

    Its noise multiplier is over the sensitivity, twice the clip norm.
    """
    import dp_accounting as dpa
    from dp_accounting.rdp import RdpAccountant

    relation = dpa.NeighboringRelation.REPLACE_ONE
    accountant = RdpAccountant(neighboring_relation=relation)
    one = dpa.SampledWithoutReplacementDpEvent(
        50_000, 500, dpa.GaussianDpEvent(0.5)
    )
    accountant.compose(dpa.SelfComposedDpEvent(one, 1_000))
    return float(accountant.get_epsilon(1e-6))


def truncated() -> float:
    """Eps of truncated batches by dpmech."""
    where = dm.Poisson(0.01, truncated_batch_size=150, dataset_size=10_000)
    found = dm.epsilon(
        dm.Identity(1_000),
        1.0,
        1e-6,
        participation=where,
        adjacency=dm.Adjacency.ZERO_OUT,
    )
    return found.upper


def google_truncated() -> float:
    """Eps of truncated batches by dp_accounting."""
    import dp_accounting as dpa
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant(dpa.NeighboringRelation.REPLACE_SPECIAL)
    one = dpa.dp_event.TruncatedSubsampledGaussianDpEvent(
        10_000, 0.01, 150, 1.0
    )
    return float(accountant.compose(one, 1_000).get_epsilon(1e-6))


# Why another library is ahead in a row: a package and its way.
WHY = {
    ("dp_accounting", "PLD"): (
        "dpmech stops when its upper bound is within 0.005 % of its lower bound "
        "(0.1 % for a sigma; pass a smaller `rtol` for more digits). It computes an "
        "upper and a lower bound, whereas dp_accounting states one upper bound"
    ),
    ("opacus", "RDP"): (
        "Opacus evaluates a formula at fifty Renyi orders, which is fast but looser. "
        "In dpmech, the same method is `method=dm.methods.Rdp()`"
    ),
    ("gdpnum", "estimate"): (
        "gdpnum estimates a different quantity, without a proof. It omits false-positive "
        "rates below 1e-10, whereas dpmech omits a delta of 1e-10. dpmech proves its mu "
        "at every level between the points where the curve was computed"
    ),
    (
        "riskcal",
        "PLD",
    ): "riskcal states one upper bound; dpmech computes both bounds",
    (
        "jax_privacy",
        "its defaults",
    ): "Both optimizers stop at a gradient near 0",
}


def timed(call: Call) -> tuple[float, float]:
    """The answer of the second of two calls, and its CPU seconds."""
    call()
    start = time.process_time()
    answer = call()
    return answer, time.process_time() - start


def written(name: str) -> str:
    """A package with its version."""
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return name


def measured() -> list[dict[str, object]]:
    """Every question with both answers and their CPU seconds."""
    found: list[dict[str, object]] = []
    for question, own, others in rows():
        ours, seconds = timed(own)
        for package, how, call in others:
            row = {"question": question, "dpmech": ours, "seconds": seconds}
            row |= {"package": package, "how": how, "name": written(package)}
            try:
                importlib.import_module(package)
                row["answer"], row["time"] = timed(call)
            except ModuleNotFoundError:
                row["error"] = "not installed"
            except (
                ValueError,
                RuntimeError,
                OverflowError,
                MemoryError,
            ) as error:
                row["error"] = type(error).__name__
            print(row, flush=True)
            found.append(row)
    return found


def ahead(row: dict[str, object]) -> bool:
    """Whether the other library's answer is lower or its time shorter."""
    lower = row["answer"] < row["dpmech"] * (1.0 - 1e-6)
    return lower or row["time"] < row["seconds"]


def table(results: list[dict[str, object]]) -> str:
    """The table as Markdown, with a note to every row where dpmech is behind."""
    notes: list[str] = []
    head = (
        "question | dpmech | CPU s | other library | result | CPU s | "
        "ratio of results | ratio of times"
    )
    said = [f"| {head} |", "|---|---|---|---|---|---|---|---|"]
    for row in results:
        ours, seconds = row["dpmech"], row["seconds"]
        cells = [row["question"], up(ours), f"{seconds:.2f}"]
        other = f"{row['name']}, {row['how']}"
        if "error" in row:
            cells += [other, row["error"], "", "", ""]
        else:
            if ahead(row):
                why = WHY[row["package"], row["how"]]
                notes += [] if why in notes else [why]
                other += f" ({notes.index(why) + 1})"
            cells += [other, up(row["answer"]), f"{row['time']:.2f}"]
            cells += [
                f"{row['answer'] / ours:.4f}",
                f"{row['time'] / seconds:.2f}",
            ]
        said.append(f"| {' | '.join(cells)} |")
    remarks = (f"\n({place}) {why}." for place, why in enumerate(notes, 1))
    return "\n".join([*said, *remarks]) + "\n"


def main() -> None:
    """Measure, and write the numbers and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = measured()
    file = given.folder / "side_by_side.json"
    file.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    file.with_suffix(".txt").write_text(table(results), encoding="utf-8")


if __name__ == "__main__":
    main()
