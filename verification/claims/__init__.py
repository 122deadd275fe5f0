"""Published privacy claims (TOML, for `dpmech audit`), and the procedures that reproduce their numbers."""
