"""Statements of the SDE paper, each with its check."""
