"""Sampling schemes: which examples take part when, the accountant, and the sampler, in one folder each."""

from dpmech.schemes.scheme import (
    BatchRule,
    Scheme,
    accountant_for,
    add_scheme,
    effective_method,
    method_among,
    offered,
    remove_scheme,
    scheme_of,
    schemes,
    unsampled_method,
)
from dpmech.schemes.scheme import find_folders as _find_folders

__all__ = [
    "BatchRule",
    "Scheme",
    "accountant_for",
    "add_scheme",
    "effective_method",
    "method_among",
    "offered",
    "remove_scheme",
    "scheme_of",
    "schemes",
    "unsampled_method",
]

_find_folders(__name__, __path__)
