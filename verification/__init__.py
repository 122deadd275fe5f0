"""Statements of the papers, checked by running code."""
