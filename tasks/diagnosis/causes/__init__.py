"""The causes of a stall, by where they lie: each says what supports it and what refutes it."""
