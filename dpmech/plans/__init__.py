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
    NO_SAMPLINGS,
    STRATEGIES,
    StrategyName,
    chosen_method,
    owners,
    sampling_kind,
    samplings,
)
from dpmech.plans.policy_files import read_policy
from dpmech.plans.strategy_files import read_strategy, write_strategy
from dpmech.plans.suggestions import check_known, meant
from dpmech.plans.training_plan import TrainingPlan

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
