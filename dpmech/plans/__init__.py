"""Plans in user notation: names, TOML, and the integer steps of a training plan."""

from dpmech.plans.files import published_claims, read_claims, read_policy, read_strategy, write_strategy
from dpmech.plans.names import (
    FAMILIES,
    METHODS,
    NO_SAMPLINGS,
    STRATEGIES,
    check_known,
    chosen_method,
    meant,
    owners,
    sampling_name,
    samplings,
)
from dpmech.plans.recommending import SAMPLINGS, recommend
from dpmech.plans.training_plans import (
    Entry,
    TrainingPlan,
    build_strategy,
    parse_entries,
    read_plan,
)
from dpmech.plans.workloads import SCHEDULES, workload_of

__all__ = [
    "FAMILIES",
    "METHODS",
    "NO_SAMPLINGS",
    "SAMPLINGS",
    "SCHEDULES",
    "STRATEGIES",
    "Entry",
    "TrainingPlan",
    "build_strategy",
    "check_known",
    "chosen_method",
    "meant",
    "owners",
    "parse_entries",
    "published_claims",
    "read_claims",
    "read_plan",
    "read_policy",
    "read_strategy",
    "recommend",
    "sampling_name",
    "samplings",
    "workload_of",
    "write_strategy",
]
