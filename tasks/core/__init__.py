"""What every other package stands on: config, findings, files, leases, processes and engines."""
