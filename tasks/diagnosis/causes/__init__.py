"""The causes of a stall, by where they lie: each states what supports and what refutes it."""
