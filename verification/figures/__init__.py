"""Scripts that redraw the papers' simulations and state how well the library agrees with them."""
