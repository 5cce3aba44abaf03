"""Claims on scores, weights and choices, and on energies."""
