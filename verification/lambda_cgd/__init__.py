"""Statements of the DP-lambda-CGD paper, each with its check."""
