"""Plans as people write them: names, TOML, the integer steps of a training plan."""

from dpmech.plans.claim_files import read_claims
from dpmech.plans.entries import (
    OWNERS,
    Entry,
    FamilyEntry,
    build_strategy,
    parse_entries,
    parse_families,
    read_plan,
)
from dpmech.plans.names import FAMILIES, METHODS, SAMPLINGS, STRATEGIES, chosen_method
from dpmech.plans.training_plan import TrainingPlan

__all__ = [
    "FAMILIES",
    "METHODS",
    "OWNERS",
    "SAMPLINGS",
    "STRATEGIES",
    "Entry",
    "FamilyEntry",
    "TrainingPlan",
    "build_strategy",
    "chosen_method",
    "parse_entries",
    "parse_families",
    "read_claims",
    "read_plan",
]
