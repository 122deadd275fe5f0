"""Write peer_values.json: numbers that tests of other libraries state, or that installed ones return.

Run `python tests/reference/make_peer_values.py DIRECTORY`, where DIRECTORY has the sources of the projects
as `dp_accounting/` (google/differential-privacy), `autodp/` and `fourier_accountant/`
(DPBayes/PLD-Accountant). Of their tests only the parameters are read, as data; nothing is run. Opacus,
prv-accountant and dp-accounting, as installed, compute the rest. Each value has its project, its test, or the
call, and the tolerance that the test states; that of a call is 0. A `reason` says why a value lies outside
dpmech's bounds: it is entered by hand, in `REASONS`, after a look at the numbers.
"""

import ast
import importlib.metadata
import json
import math
import pathlib
import sys

import numpy as np

FILE = pathlib.Path(__file__).with_name("peer_values.json")
PLD = "dp_accounting/python/dp_accounting/dp_accounting/pld"
RDP = "dp_accounting/python/dp_accounting/dp_accounting/rdp"
PLACES = 5.1e-8  # unittest's assertAlmostEqual: seven decimal places
NAMES = {"ADD": "add", "REM": "remove", "REP": "replace", "math": math, "np": np, "dict": dict}
SOURCES = {
    "dp_accounting": "google/differential-privacy at b5b0286e, python/dp_accounting/dp_accounting",
    "autodp": "yuxiangw/autodp at 06489ea4; its values are from tensorflow_privacy's rdp_accountant",
    "fourier_accountant": "DPBayes/PLD-Accountant at 2d9702b2",
}


LOOSER = "an upper bound: "
RENYI = LOOSER + "moments convert to a larger eps than the loss distribution"
# By the name of the test or call, and then by a setting: why a value is not within the bounds.
REASONS = {
    "test_get_smallest_subsampled_gaussian_noise": {
        ("num_queries", 1): LOOSER
        + "of losses on a lattice; mpmath gives delta 9.9999885e-6 at this noise, not 1e-5"
    },
    "test_compute_rdp_poisson_sampled_gaussian": {
        ("order", 1.5): LOOSER + "3 % above the integral, which mpmath gives as 6.50070897e-4"
    },
    "test_advanced_composition": {
        ("total_delta", 0.06): LOOSER + "only eps in steps of twice that of one query are looked at",
        ("total_delta", 0.1): LOOSER + "only eps in steps of twice that of one query are looked at",
    },
    "test_compute_epsilon_delta_pure_dp": {
        ("eps", 1.1): LOOSER
        + "a Renyi divergence of 1.1 at orders up to 32, which pure DP implies, and not its curve"
    },
    "accountants.RDPAccountant().get_epsilon(delta)": {("delta", 1e-6): RENYI},
    "rdp.RdpAccountant().compose(event).get_epsilon(delta)": {("delta", 1e-6): RENYI},
    "accountants.PRVAccountant().get_epsilon(delta)": {
        ("delta", 1e-6): LOOSER + "it adds its allowed error of eps, 0.01"
    },
    "compute_epsilon(delta, steps): upper": {
        ("delta", 1e-6): LOOSER + "it adds its allowed error of eps, 0.01"
    },
    "compute_epsilon(delta, steps): lower": {
        ("delta", 1e-6): "a lower bound: it subtracts its allowed error of eps, 0.01"
    },
}


def reason(one):
    """The reason of a value, if there is one."""
    for test, settings in REASONS.items():
        for (name, at), words in settings.items():
            if one["test"].endswith(test) and one[name] == at:
                return {"reason": words}
    return {}


def function(path, name):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name)


def value(node, **names):
    return eval(compile(ast.Expression(node), "<peer>", "eval"), {"__builtins__": {}} | NAMES | names)


def cases(root, file, name):
    """The parameters of a parameterised test, by name."""
    node = function(root / file, name)
    arguments = [one.arg for one in node.args.args][1:]
    for decorator in node.decorator_list:
        for given in decorator.args:
            found = value(given)
            if isinstance(found, dict):
                yield found
            elif len(found) > len(arguments):
                yield dict(zip(arguments, found[1:], strict=True))  # the first is the name of the case
            else:
                yield dict(zip(arguments, found, strict=True))


def row(project, test, quantity, setting, number, tolerance, **more):
    return (
        {"project": project, "test": test, "quantity": quantity}
        | setting
        | {
            "value": number,
            "tolerance": tolerance,
        }
        | more
    )


def of_deltas(root):
    """Deltas of one release, and the noise for a delta."""
    file, own = f"{PLD}/privacy_loss_mechanism_test.py", "pld/privacy_loss_mechanism_test.py: "
    kinds = {
        "laplace": ("parameter", lambda one: {"scale": one}),
        "discrete_laplace": ("parameter", lambda one: {"scale": 1 / one}),
        "gaussian": ("standard_deviation", lambda one: {"sigma": one}),
    }
    for kind, (noise, named) in kinds.items():
        name = f"test_{kind}_get_delta_for_epsilon"
        for one in cases(root, file, name):
            if one["sampling_prob"] < 1.0 and (kind != "gaussian" or one["adjacency_type"] == "replace"):
                continue  # dpmech samples Gaussian releases only, and has no REPLACE_ONE under Poisson
            setting = named(one[noise]) | {
                "sensitivity": one["sensitivity"] * (2 if one["adjacency_type"] == "replace" else 1),
                "sampling_prob": one["sampling_prob"],
                "add": one["adjacency_type"] == "add",
                "eps": one["epsilon"],
            }
            yield row("dp_accounting", own + name, f"{kind}.delta", setting, one["expected_delta"], PLACES)
    name = "test_gaussian_from_privacy_parameters"
    for one in cases(root, file, name):
        if one["sampling_prob"] < 1.0 and one["adjacency_type"] == "replace":
            continue
        setting = {
            "sensitivity": one["sensitivity"] * (2 if one["adjacency_type"] == "replace" else 1),
            "sampling_prob": one["sampling_prob"],
            "add": one["adjacency_type"] == "add",
            "eps": one["epsilon"],
            "delta": one["delta"],
        }
        number = one["expected_standard_deviation"]
        yield row("dp_accounting", own + name, "gaussian.sigma", setting, number, 5.1e-4)


def of_compositions(root):
    """Calibrations and rates over several releases, and claims."""
    file, own = f"{PLD}/accountant_test.py", "pld/accountant_test.py: "
    for kind, name, tolerance in (
        ("laplace", "test_get_smallest_laplace_noise", 0.1),
        ("discrete_laplace", "test_get_smallest_discrete_laplace_noise", 1e-3),
        ("gaussian", "test_get_smallest_gaussian_noise", PLACES),
        ("gaussian", "test_get_smallest_subsampled_gaussian_noise", PLACES),
    ):
        for one in cases(root, file, name):
            keys = ("sensitivity", "epsilon", "delta", "num_queries", "sampling_prob")
            setting = {"eps" if key == "epsilon" else key: one[key] for key in keys if key in one}
            number = one.get("expected_parameter", one.get("expected_std"))
            quantity = f"{kind}.{'rate' if kind == 'discrete_laplace' else 'noise'}"
            slow = {"slow": True} if kind != "gaussian" and one["num_queries"] > 10 else {}
            yield row("dp_accounting", own + name, quantity, setting, number, tolerance, **slow)
    name = "test_advanced_composition"
    for one in cases(root, file, name):
        if one["expected_total_epsilon"] is not None:
            setting = {"eps": one["epsilon"], "delta": one["delta"], "num_queries": one["num_queries"]}
            setting["total_delta"] = one["total_delta"]
            number = one["expected_total_epsilon"]
            yield row("dp_accounting", own + name, "claims.eps", setting, number, PLACES)
    file, own = f"{PLD}/privacy_loss_distribution_test.py", "pld/privacy_loss_distribution_test.py: "
    for name in ("test_randomized_response_tpr", "test_randomized_response_tpr_at_extreme_fprs"):
        for one in cases(root, file, name):
            setting = {"noise_parameter": 0.5, "categories": one.get("num_buckets", 2), "fpr": one["fpr"]}
            number = one["expected_tpr"]
            yield row("dp_accounting", own + name, "randomized_response.tpr", setting, number, 1e-3 * number)
    name = "test_gaussian_tpr_at_extreme_fpr"
    for one in cases(root, file, name):
        setting = {"sigma": 1.0, "sensitivity": 1.0, "fpr": one["fpr"]}
        yield row("dp_accounting", own + name, "gaussian.tpr", setting, one["tpr"], 1e-3 * one["tpr"])
    file = "pld/pld_privacy_accountant_test.py: "
    setting = {"sigma": 0.5, "sensitivity": 1.0, "sampling_prob": 0.2, "num_queries": 3, "eps": 1.0}
    test = file + "test_poisson_subsampled_gaussian"
    yield row("dp_accounting", test, "gaussian.total_delta", setting, 0.15594, 1e-3)
    setting = {
        "sigma": math.sqrt(3.0),
        "sensitivity": 1.0,
        "sampling_prob": 1.0,
        "num_queries": 3,
        "eps": 1.0,
    }
    test = file + "test_gaussian_basic"
    yield row("dp_accounting", test, "gaussian.total_delta", setting, 0.126936, 1e-3)


def of_renyi(root):
    """Renyi divergences."""
    file, own = f"{RDP}/rdp_privacy_accountant_test.py", "rdp/rdp_privacy_accountant_test.py: "
    name = "test_compute_rdp_poisson_sampled_gaussian"
    stated = [6.70579741e-04, 1.08548710e-03, 2.18075656e-03, 2.38460375e-02, 1.67416308e02]
    for order, number in zip((1.5, 2.5, 5.0, 50.0, 100.0), stated, strict=True):
        setting = {"sigma": 2.5, "sampling_prob": 0.01, "num_queries": 50, "order": order}
        yield row("dp_accounting", own + name, "gaussian.renyi", setting, number, 1e-4 * number)
    name = "test_compute_rdp_randomized_response_replace_one"
    for one in cases(root, file, name):
        orders = (1.5, 2.5, 5.0, 50.0, 100.0, "infinite")
        for order, number in zip(orders, one["expected_rdps"], strict=True):
            setting = {"noise_parameter": one["noise_parameter"], "categories": one["num_buckets"]}
            setting["order"] = order
            yield row(
                "dp_accounting", own + name, "randomized_response.renyi", setting, number, 1e-4 * number
            )
    name = "test_compute_epsilon_delta_pure_dp"
    setting = {"eps": 1.1, "delta": 1e-5}
    yield row("dp_accounting", own + name, "pure.eps", setting, 1.32783806176, PLACES)
    file = "autodp/test/unit_test_dp_sgd_poisson_sampling_add_remove.py"
    tree = ast.parse((root / file).read_text(encoding="utf-8"))
    params = next(
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id == "params"
    )
    for one in value(params):
        # Divergences of more steps are multiples of that of one.
        if one["steps"] == 1 and one["q"] > 0.0:
            setting = {
                "sigma": one["sigma"],
                "sampling_prob": one["q"],
                "num_queries": 1,
                "order": one["order"],
            }
            number = one["tfp_rdp_value"]
            test = "test/unit_test_dp_sgd_poisson_sampling_add_remove.py: params"
            yield row("autodp", test, "gaussian.renyi", setting, number, 0.01 * number)


def of_fourier(root):
    """Deltas and eps of the direction REMOVE."""
    for file, name in (
        ("test_compute_delta.py", "test_get_delta_R_regression_valid_params"),
        ("test_compute_epsilon.py", "test_get_epsilon_R_regression_valid_params"),
    ):
        node = function(root / "fourier_accountant" / "tests" / file, name)
        data = next(
            one.value
            for one in ast.walk(node)
            if isinstance(one, ast.Assign) and one.targets[0].id == "test_data"
        )
        for given, number in value(data):
            setting = {
                "sigma": given["sigma"],
                "sampling_prob": given["q"],
                "num_queries": int(given["ncomp"]),
                "points": int(given["nx"]),
                "window": given["L"],
            }
            test = f"tests/{file}: {name}"
            if "target_eps" in given:
                setting["eps"] = given["target_eps"]
                quantity = "gaussian.remove_delta"
            else:
                setting["delta"] = given["target_delta"]
                quantity = "gaussian.remove_eps"
            slow = {"slow": True} if given["ncomp"] > 1e4 else {}
            yield row("fourier_accountant", test, quantity, setting, number, PLACES, **slow)


PLANS = (
    (1.0, 0.01, 1000),
    (0.8, 0.005, 1000),
    (2.0, 0.05, 200),
    (1.5, 0.1, 100),
    (0.6, 0.001, 5000),
    (4.0, 0.2, 300),
)


def installed():
    """What installed libraries return; an upper end is said to be one."""
    from dp_accounting import dp_event, pld, rdp
    from opacus.accountants import PRVAccountant as OpacusPrv
    from opacus.accountants import RDPAccountant as OpacusRdp
    from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

    def version(name):
        return f"{name} {importlib.metadata.version(name.replace('_', '-'))}"

    for sigma, q, steps in PLANS:
        setting = {"sigma": sigma, "sampling_prob": q, "num_queries": steps, "delta": 1e-6}

        def told(package, call, number, setting=setting):
            return row(version(package), call, "gaussian.total_eps", setting, number, 0.0)

        for kind, call in ((OpacusRdp, "RDPAccountant"), (OpacusPrv, "PRVAccountant")):
            accountant = kind()
            accountant.history = [(sigma, q, steps)]
            yield told(
                "opacus", f"accountants.{call}().get_epsilon(delta)", accountant.get_epsilon(delta=1e-6)
            )
        step = dp_event.PoissonSampledDpEvent(q, dp_event.GaussianDpEvent(sigma))
        whole = dp_event.SelfComposedDpEvent(step, steps)
        for accountant, call in (
            (rdp.RdpAccountant(), "rdp.RdpAccountant()"),
            (pld.PLDAccountant(), "pld.PLDAccountant()"),
        ):
            number = accountant.compose(whole).get_epsilon(1e-6)
            yield told("dp_accounting", f"{call}.compose(event).get_epsilon(delta)", number)
        accountant = PRVAccountant(
            prvs=[PoissonSubsampledGaussianMechanism(noise_multiplier=sigma, sampling_probability=q)],
            max_self_compositions=[steps],
            eps_error=0.01,
            delta_error=1e-10,
        )
        ends = accountant.compute_epsilon(1e-6, [steps])
        for number, end in zip(ends, ("lower", "estimate", "upper"), strict=True):
            call = f"PRVAccountant(eps_error=0.01, delta_error=1e-10).compute_epsilon(delta, steps): {end}"
            yield told("prv_accountant", call, float(number))


def main():
    root = pathlib.Path(sys.argv[1])
    values = [*of_deltas(root), *of_compositions(root), *of_renyi(root), *of_fourier(root), *installed()]
    lines = ",\n  ".join(json.dumps(one | reason(one)) for one in values)
    FILE.write_text(
        f'{{\n "sources": {json.dumps(SOURCES)},\n "values": [\n  {lines}\n ]\n}}\n', encoding="utf-8"
    )
    print(f"{len(values)} values")


if __name__ == "__main__":
    main()
