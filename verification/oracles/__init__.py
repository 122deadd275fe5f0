"""Oracles of the checks: mpmath, dense algebra, brute force; none of them imports the library."""
