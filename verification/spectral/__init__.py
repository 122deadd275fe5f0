"""Statements of the spectral denoising paper, each with its check."""
