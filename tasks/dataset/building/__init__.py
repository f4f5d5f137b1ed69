"""The steps of a build, in the order of `tasks.dataset.building.run`: list, plan, convert, assemble."""
