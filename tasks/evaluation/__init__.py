"""What a checkpoint is worth: evaluators, their statistics, and the results they leave."""
