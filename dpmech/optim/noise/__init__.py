"""Noise: row t of sigma clip_norm C^-1 Z, for every parameter."""

from dpmech.optim.noise.lattice import LatticeLoss, lattice_loss
from dpmech.optim.noise.normals import Generator
from dpmech.optim.noise.rows import NoiseMode
from dpmech.optim.noise.stream import NoiseStream, Uncopied

__all__ = ["Generator", "LatticeLoss", "NoiseMode", "NoiseStream", "Uncopied", "lattice_loss"]
