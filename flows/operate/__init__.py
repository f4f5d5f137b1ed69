"""What lets flows run: a Prefect server, its deployments, and the start of a flow from a terminal."""
