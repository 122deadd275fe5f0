"""Plans as people write them: names, TOML, the integer steps of a training plan."""

from dpmech.plans.files import read_claims, read_policy, read_strategy, write_strategy
from dpmech.plans.names import (
    FAMILIES,
    METHODS,
    NO_SAMPLINGS,
    STRATEGIES,
    StrategyName,
    check_known,
    chosen_method,
    meant,
    owners,
    sampling_kind,
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
    "StrategyName",
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
    "sampling_kind",
    "samplings",
    "write_strategy",
]
