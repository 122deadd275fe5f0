"""Mutations of the analysis: every formula is altered in turn, and a test has to notice."""
