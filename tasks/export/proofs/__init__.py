"""Programs that load an export with the other library alone; none of them imports Tarmac."""
