"""Conversion of mechanisms, histories and accountants from and to other packages."""

from dpmech.interchange.dp_events import to_dp_event
from dpmech.interchange.flower import FlowerAccountant, FlowerSpent
from dpmech.interchange.histories import NOTHING, Steps, from_opacus_history, history_profile, steps_of

__all__ = [
    "NOTHING",
    "FlowerAccountant",
    "FlowerSpent",
    "Steps",
    "from_opacus_history",
    "history_profile",
    "steps_of",
    "to_dp_event",
]
