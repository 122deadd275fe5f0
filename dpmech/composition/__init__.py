"""Composition: several releases about the same people, of one lot or over a project's life."""

from dpmech.composition.block_clipping import BlockClipping
from dpmech.composition.currencies import ClaimCurrency, GdpCurrency, RenyiCurrency
from dpmech.composition.executed import executed_epsilon
from dpmech.composition.file_lock import locked
from dpmech.composition.ledger import Ledger
from dpmech.composition.ledger_counts import CountsRelease
from dpmech.composition.ledger_entries import Mode, Release
from dpmech.composition.ledger_file import is_ledger, parsed
from dpmech.composition.lot import Join, Lot, join
from dpmech.composition.privacy_filters import Currency
from dpmech.composition.private_selection import PrivateSelection
from dpmech.composition.running import RunningEpsilon

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
