"""The program that proves an export; its folder keeps modules of Tarmac out of its import path."""
