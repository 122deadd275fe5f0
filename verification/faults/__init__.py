"""Planted faults: changes of the code that issues claims, which lower a sigma, and the checker's verdict."""
