"""Why a run is slow or stands still, found by measuring."""
