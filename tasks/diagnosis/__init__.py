"""Finds by measurement why a run is slow or has stopped making progress."""
