"""Spectral denoising: which singular values rise above noise, and how far."""

from dpmech.analysis.spectral import alignment, denoising, singular_values

__all__ = ["alignment", "denoising", "singular_values"]
