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
        "analysis.spectral.alignment",
        "analysis.noise_share.budgeted_floor",
        "analysis.noise_share.convergence",
        "analysis.spectral.denoising",
        "analysis.noise_share.first_moment",
        "analysis.muon.heat",
        "analysis._arguments",
        "analysis.noise_share.moment_scatter",
        "analysis.muon.stationarity",
        "analysis.muon.newton_schulz",
        "analysis.noise_share.share",
        "analysis.sde.dynamics",
        "analysis.sde.bounds",
        "analysis.sde.directions",
        "analysis.sde.sign",
        "analysis.sde.simulation",
        "analysis.sde.stationary",
        "analysis.sde.tuning",
        "analysis.noise_share.signal_ceiling",
        "analysis.spectral.singular_values",
    ],
    "gaussian": [
        "accounting.gaussian",
        "numerics.roots",
        "accounting.renyi",
        "accounting.discrete_gaussian",
        "samplers.discrete_gaussian",
        "accounting.balls_in_bins.sampling.results",
        "accounting.sigma_search",
        "accounting.poisson.lattice",
        "accounting.poisson.step_loss",
        "accounting.poisson.mixture_loss",
        "accounting.poisson.one_sided_loss",
        "accounting.poisson.truncated_loss",
        "accounting.poisson.parted_loss",
        "accounting.poisson.fixed_loss",
        "accounting.poisson.convolution",
        "composition.announced_total",
        "composition.announced_whole",
        "composition.ledger_counts",
        "accounting.renyi_composition",
        "composition.lot",
        "accounting.methods",
        "accounting.dispatch",
        "accounting.independent_noise",
    ],
    "poisson": [
        "accounting.poisson.accountant",
        "accounting.poisson.contour",
        "accounting.poisson.direction",
        "accounting.poisson.far_losses",
        "accounting.poisson.lattice_route",
        "accounting.poisson.line",
        "accounting.poisson.one_step",
        "accounting.poisson.prv",
        "accounting.poisson.release",
        "accounting.poisson.transform",
        "accounting.poisson.user_accountant",
        "accounting.poisson.truncated_accountant",
        "accounting.poisson.fixed_accountant",
        "accounting.replaced_renyi",
        "accounting.balls_in_bins.ring.dominating",
        "composition.block_clipping",
    ],
    "profiles": [
        "accounting.gaussian_curve",
        "accounting.profiles.composition",
        "accounting.profiles.crossing",
        "accounting.profiles.dp_accounting_form",
        "accounting.profiles.gaussian_part",
        "accounting.profiles.gaussian_envelope",
        "accounting.profiles.loss_atoms",
        "accounting.profiles.lower_atoms",
        "accounting.profiles.node_placing",
        "accounting.profiles.parts",
        "accounting.profiles.private_selection",
        "accounting.profiles.profile",
        "accounting.profiles.profile_answers",
        "accounting.profiles.risk",
        "accounting.profiles.run_counts",
        "accounting.profiles.tradeoff",
        "accounting.profiling",
    ],
    "sampled bins": [
        "accounting.balls_in_bins.dominating_pair",
        "accounting.balls_in_bins.proposals.gaussian_groups",
        "accounting.balls_in_bins.gram.base",
        "accounting.balls_in_bins.gram.dense",
        "accounting.balls_in_bins.gram.sequential",
        "accounting.balls_in_bins.gram.structured",
        "accounting.balls_in_bins.proposals.mixture",
        "accounting.balls_in_bins.proposals.rounding",
        "accounting.balls_in_bins.proposals.remove_mixture",
        "accounting.balls_in_bins.proposals.add_mixture",
        "accounting.balls_in_bins.proposals.choice",
        "accounting.user_bins.accountants",
        "accounting.user_bins.gram",
        "accounting.min_sep.gram",
        "accounting.min_sep.removing",
        "accounting.min_sep.adding",
        "accounting.min_sep.accountants",
        "accounting.balls_in_bins.streams",
        "accounting.balls_in_bins.sampling.estimate",
        "accounting.balls_in_bins.proposals.tilted_normal",
        "accounting.balls_in_bins.proposals.tuples",
        "accounting.balls_in_bins.moment_bound",
        "accounting.balls_in_bins.proposals.all_bins_tilt",
        "accounting.balls_in_bins.proposals.design_points",
        "accounting.balls_in_bins.half_space",
        "accounting.balls_in_bins.sampling.estimate_accountant",
        "accounting.balls_in_bins.sampling.reach",
        "accounting.balls_in_bins.sampling.certified_accountant",
        "accounting.balls_in_bins.sampling.aims",
        "accounting.balls_in_bins.sampling.blocks",
        "accounting.balls_in_bins.sampling.confidence",
        "accounting.balls_in_bins.sampling.certified_bound",
        "accounting.balls_in_bins.sampling.pilots",
        "accounting.balls_in_bins.sampling.certified_curve",
        "accounting.balls_in_bins.sampling.curve_estimate",
        "accounting.balls_in_bins.sampling.whole_curve",
        "accounting.balls_in_bins.sampling.bets",
        "accounting.balls_in_bins.sampling.adaptation",
        "accounting.balls_in_bins.in_turn",
        "accounting.balls_in_bins.sampling.rough_sigma",
    ],
    "programmed bins": [
        "accounting.balls_in_bins.ring.bound",
        "accounting.balls_in_bins.ring.bridge",
        "accounting.balls_in_bins.ring.shared_factor",
        "accounting.balls_in_bins.ring.rounding",
        "accounting.balls_in_bins.ring.gram",
        "accounting.balls_in_bins.ring.grid",
        "accounting.balls_in_bins.ring.programme",
        "accounting.balls_in_bins.ring.walk",
        "accounting.balls_in_bins.ring.accountant",
        "accounting.balls_in_bins.ring.node_laws",
        "accounting.balls_in_bins.ring.mixture_fit",
        "accounting.balls_in_bins.ring.mixture_gram",
        "accounting.balls_in_bins.ring.transform",
        "accounting.balls_in_bins.ring.transform_parts",
        "accounting.balls_in_bins.by_default",
        "accounting.balls_in_bins.ring.tilted",
        "accounting.balls_in_bins.ring.tilted_group",
        "accounting.balls_in_bins.ring.tilted_law",
        "accounting.balls_in_bins.ring.tilted_series",
        "accounting.balls_in_bins.ring.tilted_traces",
        "accounting.balls_in_bins.ring.large_bins",
        "accounting.balls_in_bins.ring.traces",
        "accounting.balls_in_bins.ring.white_law",
        "accounting.balls_in_bins.ring.lattice",
        "accounting.balls_in_bins.ring.exponential_sums",
        "accounting.balls_in_bins.independent.ratio",
        "accounting.balls_in_bins.independent.jumps",
        "accounting.balls_in_bins.independent.total",
        "accounting.balls_in_bins.independent.direction",
        "accounting.balls_in_bins.independent.accountant",
        "accounting.balls_in_bins.fresh_epochs",
        "accounting.balls_in_bins.moments",
    ],
    "renyi": [
        "accounting.renyi_orders",
    ],
    "numbers": [
        "numerics.rounding",
        "numerics.binomial",
        "numerics.guarantee",
        "numerics.provenance",
        "numerics.refinement",
        "numerics.gauss_legendre",
        "numerics.lattices",
    ],
    "mechanism": [
        "mechanism.mechanism",
        "mechanism.noise_cost",
        "mechanism.participation",
        "mechanism.sampled_participation",
        "mechanism.user_participation",
        "mechanism.truncated_participation",
        "mechanism.fixed_participation",
        "mechanism.fixed_draw",
        "mechanism.epoch_bins",
        "mechanism.min_sep_participation",
        "mechanism.rest_law",
        "mechanism.truncation",
        "mechanism.unsampled_participation",
        "mechanism.workloads",
    ],
    "kernels": [
        "accounting.balls_in_bins.ring.kernels",
        "accounting.min_sep.kernels",
        "numerics.integer_kernels",
    ],
    "sensitivities": [
        "mechanism.sensitivities",
        "numerics.separated_sums",
        "numerics.series",
        "numerics.integer_convolution",
        "numerics.toeplitz",
        "numerics.bounds",
    ],
    "checker": [*_all("checker"), "checker.__main__"],
    "verifying": [
        "verifying.claims",
        "verifying.documents",
        "verifying.labels",
        "verifying.ledgers",
        "verifying.limits",
        "verifying.policy",
        "verifying.policy_checks",
        "verifying.report",
        "verifying.rigour",
        "verifying.run_checks",
        "verifying.signature_checks",
    ],
    "signing": [
        "signing.envelope",
        "signing.keys",
        "signing.signatures",
        "signing.statement",
    ],
    "ledger": [
        "composition.file_lock",
        "composition.ledger",
        "composition.ledger_answers",
        "composition.release_profiles",
        "composition.ledger_entries",
        "composition.ledger_file",
        "composition.ledger_totals",
        "composition.privacy_filters",
        "composition.currencies",
    ],
    "noise": [
        "optim.noise.stream",
        "optim.noise.rows",
        "optim.noise.normals",
        "optim.noise.box_muller",
        "optim.noise.lattice",
        "optim.noise.lattice_bound",
        "optim.noise.secure_normals",
        "optim.noise.scales",
        "optim.noise.error_bound",
        "optim.noise.chunks",
        "optim.noise.state",
    ],
    "clipping": [
        "certificates.adaptive_clip",
        "optim.clip_norms",
        "optim.clipping.lot_sum",
        "optim.clipping.clipped_sum",
        "optim.clipping.styles",
        "optim.clipping.grad_samples",
        "optim.clipping.per_example",
    ],
}
# numba compiles these: what stands in the function is not what runs.
COMPILED = {
    "accounting.balls_in_bins.ring.kernels",
    "accounting.min_sep.kernels",
    "numerics.integer_kernels",
}
MODULES = [module for group in GROUPS.values() for module in group]


class UnknownModuleError(ValueError):
    """No module, or no group, has that name."""


def named(name: str) -> list[str]:
    """The modules that a name stands for.

    Args:
        name: a group (which goes before a module of its name), or a module: as it is imported
            (`dpmech.engines.losses.prv`), below dpmech (`accounting.poisson.prv`), by its last part
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
