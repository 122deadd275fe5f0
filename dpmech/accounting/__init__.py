"""Accountants: the privacy of a mechanism as a function of sigma."""
