"""Noise: row t of sigma clip_norm C^-1 Z, for every parameter."""

from dpmech.optim.noise.fused import fused_on
from dpmech.optim.noise.lattice import LatticeLoss, lattice_loss
from dpmech.optim.noise.normals import Generator
from dpmech.optim.noise.rows import NoiseMode
from dpmech.optim.noise.secure_normals import LATTICES
from dpmech.optim.noise.stream import NoiseStream, Uncopied

__all__ = [
    "LATTICES",
    "Generator",
    "LatticeLoss",
    "NoiseMode",
    "NoiseStream",
    "Uncopied",
    "fused_on",
    "lattice_loss",
]
