"""The commands of `tarmac`, by what they work on; each imports torch and Prefect only when it is called."""
