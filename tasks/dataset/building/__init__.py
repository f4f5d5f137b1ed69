"""The steps of a build, in the order of `tasks.dataset.build`: list, plan, convert, assemble."""
