"""The steps of a build, in the order of `tasks.dataset.build.run`: list, plan, convert, assemble."""
