"""The steps of a build, in the order of `tasks.dataset.building.builder`: list, plan, convert, assemble."""
