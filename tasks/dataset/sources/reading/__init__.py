"""What the sources read with: tables, archives and folders, none of which knows what a sample is for."""
