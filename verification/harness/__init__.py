"""How statements are registered, judged and written up."""
