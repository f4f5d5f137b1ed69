"""What every other package stands on: config, findings, files, leases, processes, engines. Imports no sibling."""
