"""Plans in user notation: names, TOML, and the integer steps of a training plan."""

from dpmech.plans.files import read_claims, read_policy, read_strategy, write_strategy
from dpmech.plans.names import (
    FAMILIES,
    METHODS,
    NO_SAMPLINGS,
    STRATEGIES,
    check_known,
    chosen_method,
    meant,
    owners,
    samplings,
)
from dpmech.plans.training_plans import (
    Entry,
    FamilyEntry,
    TrainingPlan,
    build_strategy,
    parse_entries,
    parse_families,
    read_plan,
)

__all__ = [
    "FAMILIES",
    "METHODS",
    "NO_SAMPLINGS",
    "STRATEGIES",
    "Entry",
    "FamilyEntry",
    "TrainingPlan",
    "build_strategy",
    "check_known",
    "chosen_method",
    "meant",
    "owners",
    "parse_entries",
    "parse_families",
    "read_claims",
    "read_plan",
    "read_policy",
    "read_strategy",
    "samplings",
    "write_strategy",
]
