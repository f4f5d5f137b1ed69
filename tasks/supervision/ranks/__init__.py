"""The ranks of a training: started, looked at, ended, and judged by what they leave."""
