"""Composition: several releases about the same people, of one lot or over a project's life."""

from dpmech.composition.executed import RunningEpsilon, executed_epsilon
from dpmech.composition.ledger import Ledger
from dpmech.composition.ledger_entries import CountsRelease, Mode, Release
from dpmech.composition.ledger_file import is_ledger, locked, parsed
from dpmech.composition.lot import BlockClipping, Join, Lot, join
from dpmech.composition.privacy_filters import ClaimCurrency, Currency, GdpCurrency, RenyiCurrency
from dpmech.composition.private_selection import PrivateSelection

__all__ = [
    "BlockClipping",
    "ClaimCurrency",
    "CountsRelease",
    "Currency",
    "GdpCurrency",
    "Join",
    "Ledger",
    "Lot",
    "Mode",
    "PrivateSelection",
    "Release",
    "RenyiCurrency",
    "RunningEpsilon",
    "executed_epsilon",
    "is_ledger",
    "join",
    "locked",
    "parsed",
]
