"""Which modules are altered, in which groups, and by which names they are called."""

import ast
import hashlib
from collections.abc import Sequence
from pathlib import Path

from verification.mutation._mutants import Mutant, mutants

ROOT = Path(__file__).parents[2]
PACKAGE = "dpmech"


def _all(folder: str) -> list[str]:
    return sorted(
        f"{folder}.{path.stem}" for path in (ROOT / PACKAGE / folder).glob("*.py") if path.stem[0] != "_"
    )


# A random sample is drawn from all mutants of a group. Modules without a formula stand in none.
GROUPS: dict[str, list[str]] = {
    "analysis": [
        "analysis.spectral",
        "analysis.noise_share.convergence",
        "analysis.noise_share.moments",
        "analysis.muon.newton_schulz",
        "analysis._arguments",
        "analysis.muon.stationarity",
        "analysis.sde.dynamics",
        "analysis.sde.bounds",
        "analysis.sde.stationary",
        "analysis.noise_share.signal_ceiling",
        "analysis.noise_share.targets",
        "analysis.sde.estimates",
    ],
    "gaussian": [
        "engines.gaussian",
        "numerics.roots",
        "engines.discrete_gaussian",
        "engines.basic_mechanisms",
        "engines.profiles.exact_losses",
        "drawing.discrete_gaussian",
        "engines.gaussian_mixture.estimate",
        "engines.sigma_search",
        "engines.losses.lattice",
        "engines.losses.step_losses",
        "engines.losses.release",
        "engines.losses.replaced",
        "engines.losses.convolution",
        "ledgers.ledger_totals",
        "ledgers.ledger_entries",
        "ledgers.shared_batch",
        "methods",
        "schemes.scheme",
        "engines.releases",
    ],
    "poisson": [
        "engines.losses.accountants",
        "engines.losses.contour",
        "engines.losses.direction",
        "engines.losses.lattice_route",
        "engines.losses.revealed",
        "engines.schedules",
        "engines.losses.prv",
        "engines.losses.transform",
        "engines.convex_order.ring",
    ],
    "profiles": [
        "engines.profiles.composition",
        "engines.profiles.dp_accounting_form",
        "engines.profiles.gaussian_envelope",
        "engines.profiles.atoms",
        "engines.profiles.curves",
        "engines.profiles.private_selection",
        "engines.profiles.profile",
        "engines.profiles.tradeoff",
        "engines.accountant",
    ],
    "sampled bins": [
        "engines.gaussian_mixture.dominating_pair",
        "engines.gaussian_mixture.points",
        "engines.gaussian_mixture.gram",
        "engines.gaussian_mixture.dense_gram",
        "engines.gaussian_mixture.proposal",
        "engines.gaussian_mixture.mixtures",
        "schemes.balls_in_bins.accountant",
        "engines.gaussian_mixture.user_gram",
        "engines.gaussian_mixture.chains",
        "engines.gaussian_mixture.chain_mixtures",
        "engines.gaussian_mixture.allocation_chain",
        "engines.gaussian_mixture.waiting_copies",
        "engines.gaussian_mixture.streams",
        "engines.gaussian_mixture.tilted_normal",
        "engines.gaussian_mixture.tilt_kernels",
        "engines.gaussian_mixture.tuples",
        "engines.gaussian_mixture.moments",
        "engines.gaussian_mixture.all_bins_tilt",
        "engines.gaussian_mixture.estimate_accountant",
        "engines.gaussian_mixture.rough_sigma",
        "engines.gaussian_mixture.certified_accountant",
        "engines.gaussian_mixture.pilots",
        "engines.gaussian_mixture.samples",
        "engines.gaussian_mixture.certified_bound",
        "engines.gaussian_mixture.certified_curve",
        "engines.gaussian_mixture.sequential_tests",
        "engines.in_turn",
    ],
    "programmed bins": [
        "engines.convex_order.bound",
        "engines.convex_order.dynamic_program",
        "engines.convex_order.grid",
        "engines.convex_order.accountant",
        "engines.convex_order.node_laws",
        "engines.convex_order.mixture_ring",
        "engines.convex_order.arma",
        "engines.convex_order.arma_lattice",
        "engines.convex_order.arma_traces",
        "engines.convex_order.pair_traces",
        "engines.convex_order.transform",
        "engines.convex_order.exponentials",
        "engines.convex_order.interpolated",
        "engines.convex_order.tilted",
        "engines.convex_order.tilted_law",
        "engines.convex_order.traces",
        "engines.independent_sum.likelihood_ratio",
        "engines.independent_sum.direction",
        "engines.independent_sum.accountant",
        "engines.independent_sum.fresh_epochs",
        "engines.independent_sum.blocks",
    ],
    "renyi": [
        "engines.renyi",
    ],
    "numbers": [
        "numerics.rounding",
        "numerics.binomial",
        "numerics.refinement",
        "numerics.quadrature",
    ],
    "mechanism": [
        "mechanism.mechanism",
        "mechanism.noise_cost",
        "mechanism.participation",
        "schemes.poisson.participation",
        "schemes.cyclic_poisson.participation",
        "schemes.fixed_size.participation",
        "schemes.balls_in_bins.participation",
        "schemes.b_min_sep.participation",
        "schemes.fixed_order.participation",
        "mechanism.workloads",
    ],
    "kernels": [
        "engines.convex_order.kernels",
        "engines.gaussian_mixture.allocation_kernels",
        "engines.gaussian_mixture.chain_kernels",
    ],
    "sensitivities": [
        "mechanism.sensitivities",
        "numerics.toeplitz",
        "numerics.series",
        "numerics.bounds",
    ],
    "checker": [*_all("checker"), "checker.__main__"],
    "verifying": [
        "verifying.claims",
        "verifying.documents",
        "verifying.labels",
        "certificates.policy",
        "verifying.policy_checks",
        "verifying.report",
    ],
    "signing": [
        "verifying.signing",
        "certificates.signatures",
        "certificates.keys",
    ],
    "ledger": [
        "ledgers.ledger_file",
        "ledgers.ledger",
        "ledgers.privacy_filters",
    ],
    "noise": [
        "optim.noise.stream",
        "optim.noise.noise_rows",
        "optim.noise.addition",
        "optim.noise.fused",
        "optim.noise.pairs",
        "optim.noise.rows",
        "optim.noise.normals",
        "optim.noise.lattice",
        "optim.noise.secure_normals",
    ],
    "clipping": [
        "certificates.adaptive_clip",
        "optim.private_optimizer",
        "optim.clipping.clipped_sum",
        "optim.clipping.styles",
        "optim.clipping.factored",
        "optim.clipping.per_example",
    ],
}
# numba compiles these: what stands in the function is not what runs.
COMPILED = {
    "engines.convex_order.kernels",
    "engines.gaussian_mixture.allocation_kernels",
    "engines.gaussian_mixture.chain_kernels",
}
MODULES = [module for group in GROUPS.values() for module in group]


class UnknownModuleError(ValueError):
    """No module, or no group, has that name."""


def named(name: str) -> list[str]:
    """The modules that a name stands for.

    Args:
        name: a group (which goes before a module of its name), or a module: as it is imported
            (`dpmech.engines.losses.prv`), below dpmech (`engines.losses.prv`), by its last part
            (`prv`), by its path.

    Raises:
        UnknownModuleError: it stands for none, or its last part for several.
    """
    if name in GROUPS:
        return GROUPS[name]
    dotted = name.removesuffix(".py").replace("/", ".").removeprefix(f"{PACKAGE}.")
    if (ROOT / PACKAGE / f"{dotted.replace('.', '/')}.py").exists():
        return [dotted]
    found = [
        ".".join(path.relative_to(ROOT / PACKAGE).with_suffix("").parts)
        for path in sorted((ROOT / PACKAGE).rglob(f"{dotted}.py"))
    ]
    if len(found) != 1:
        several = f"; it may be {' or '.join(found)}" if found else ""
        raise UnknownModuleError(
            f"no one module {name}{several}; groups: {', '.join(GROUPS)}; modules: {', '.join(MODULES)}"
        )
    return found


def group_of(module: str) -> str:
    """The group of a module, or its own name if it stands in none."""
    return next((name for name, members in GROUPS.items() if module in members), module)


def source_of(module: str) -> Path:
    """Its file."""
    return ROOT / PACKAGE / f"{module.replace('.', '/')}.py"


def code_of(module: str) -> str:
    """What tells two states of its code apart."""
    return digest_of(source_of(module).read_text(encoding="utf-8"))


def digest_of(source: str) -> str:
    """What tells two sources apart that compute differently.

    Comments, docstrings, layout, the types of arguments, and where a name is imported from are left out.
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            if ast.get_docstring(node) is not None:
                node.body[:1] = []
            imports = ast.Import | ast.ImportFrom
            node.body[:] = [one for one in node.body if not isinstance(one, imports)] or [ast.Pass()]
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        if isinstance(node, ast.arg):
            node.annotation = None
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()[:16]


def all_mutants(module: str) -> list[Mutant]:
    """All alterations of a module."""
    return list(mutants(module, source_of(module).read_text(encoding="utf-8")))


def drawn(module: str, size: int | None, seed: int) -> list[Mutant]:
    """The mutants of a module that are tried: all, or its part of a sample over its group.

    The draw orders mutants by a hash of the seed and of each one's own statement, so that a change of the
    code leaves the rest of a sample where it was. A larger sample of the same seed holds the smaller one.

    Args:
        module: below dpmech, dotted.
        size: how many are drawn in the group; None for all. A group that has fewer is tried in full.
        seed: of the draw.
    """
    if size is None:
        return all_mutants(module)
    members: Sequence[str] = GROUPS.get(group_of(module), [module])
    pool = [one for member in members for one in all_mutants(member)]
    if size < len(pool):
        limit = sorted(one.rank(seed) for one in pool)[size - 1]
        pool = [one for one in pool if one.rank(seed) <= limit]
    return [one for one in pool if one.module == module]
