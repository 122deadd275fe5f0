"""Statements of the papers, checked by running code.

Statements are quoted: "DP-SGD" in them is the papers' word, independent noise, whatever the sampling.
"""
