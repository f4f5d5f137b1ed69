"""Model families: one recipe each."""
