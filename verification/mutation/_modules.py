"""Which modules are altered, in which groups, and by which names they are called."""

import random
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
    "analysis": _all("analysis"),
    "gaussian": [
        f"accounting.{name}"
        for name in (
            *("gaussian", "rdp", "estimates", "search", "losses", "composition"),
            *("mixed_composition", "lots", "methods", "dispatch"),
        )
    ],
    "poisson": [f"accounting.{name}" for name in ("poisson", "prv", "dominating", "block_clipping")],
    "sampled bins": [
        f"accounting.{name}"
        for name in (
            *(
                "balls_in_bins",
                "gaussian_groups",
                "bin_gram",
                "gram",
                "structured_gram",
                "mixture",
                "importance",
                "site_tilts",
            ),
            *("tuple_proposals", "collective", "design_points", "sampled", "sampling", "confidence"),
            "certified",
        )
    ],
    "programmed bins": [
        f"accounting.{name}"
        for name in (
            *("ring", "ring_bridge", "ring_constant", "ring_gram", "ring_grid", "ring_programme"),
            *("programmed", "splitting", "allocation_rdp"),
        )
    ],
    "renyi": ["accounting.directed", "accounting.renyi_orders"],
    "kernels": ["accounting.ring_kernels", "integer_kernels"],
    "sensitivities": ["sensitivities", "separated_sets", "series", "integer_convolution", "linalg", "bounds"],
    "verifying": [
        f"verifying.{name}"
        for name in (
            *("checks", "integrals", "limits", "privacy_routes", "recomputation", "rigour", "runs"),
            *("sensitivity_routes", "series_recursion"),
        )
    ],
    "ledger": ["ledger", "ledger_entries", "ledger_file", "ledger_totals", "privacy_filters", "currencies"],
    "noise": [
        f"optim.{name}"
        for name in ("noise", "correlation", "generators", "noise_error", "noise_rows", "noise_state")
    ],
    "clipping": [
        f"optim.{name}" for name in ("accumulator", "clipped_sum", "clipping", "intake", "per_example")
    ],
}
# numba compiles these: what stands in the function is not what runs.
COMPILED = {"accounting.ring_kernels", "integer_kernels"}
MODULES = [module for group in GROUPS.values() for module in group]


class UnknownModuleError(ValueError):
    """No module, or no group, has that name."""


def named(name: str) -> list[str]:
    """The modules that a name stands for.

    Args:
        name: a group (which goes before a module of its name), or a module: as it is imported
            (`dpmech.accounting.prv`), below dpmech (`accounting.prv`), by its last part (`prv`), by its path.

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


def all_mutants(module: str) -> list[Mutant]:
    """All alterations of a module."""
    return list(mutants(module, source_of(module).read_text(encoding="utf-8")))


def drawn(module: str, size: int | None, seed: int) -> list[Mutant]:
    """The mutants of a module that are tried: all, or its part of a sample over its group.

    A larger sample of the same seed holds the smaller one.

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
        order = list(range(len(pool)))
        random.Random(seed).shuffle(order)
        pool = [pool[index] for index in sorted(order[:size])]
    return [one for one in pool if one.module == module]
