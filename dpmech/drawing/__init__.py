"""Sampling of batches and of integer noise: the base of all samplers, random and secure words."""

from dpmech.drawing.base import Allocation, Sampler, whole_epoch
from dpmech.drawing.contributions import Contributions, numbered_users
from dpmech.drawing.discrete_gaussian import discrete_gaussian
from dpmech.drawing.random_words import PHILOX, check_steps, chosen, coins, groups, order
from dpmech.drawing.secure_words import CIPHER, block_cipher, keystream

__all__ = [
    "CIPHER",
    "PHILOX",
    "Allocation",
    "Contributions",
    "Sampler",
    "block_cipher",
    "check_steps",
    "chosen",
    "coins",
    "discrete_gaussian",
    "groups",
    "keystream",
    "numbered_users",
    "order",
    "whole_epoch",
]
