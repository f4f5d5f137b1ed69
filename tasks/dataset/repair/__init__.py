"""How a damaged version is made whole: from what is left of it, from its neighbours, from its source."""
