"""Statements of the noise-share paper, each with its check."""
