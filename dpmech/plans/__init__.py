"""Plans as people write them: names, TOML, the integer steps of a training plan."""

from dpmech.plans.claim_files import read_claims
from dpmech.plans.entries import (
    Entry,
    FamilyEntry,
    build_strategy,
    parse_entries,
    parse_families,
    read_plan,
)
from dpmech.plans.names import (
    FAMILIES,
    METHODS,
    STRATEGIES,
    chosen_method,
    owners,
    sampling_kind,
    samplings,
)
from dpmech.plans.training_plan import TrainingPlan

__all__ = [
    "FAMILIES",
    "METHODS",
    "STRATEGIES",
    "Entry",
    "FamilyEntry",
    "TrainingPlan",
    "build_strategy",
    "chosen_method",
    "owners",
    "parse_entries",
    "parse_families",
    "read_claims",
    "read_plan",
    "sampling_kind",
    "samplings",
]
