"""Statements of the DP-Muon paper, each with its check."""
