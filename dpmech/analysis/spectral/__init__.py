"""Spectral denoising: which singular values rise above noise, and how far."""

from dpmech.analysis.spectral import denoising, singular_values

__all__ = ["denoising", "singular_values"]
