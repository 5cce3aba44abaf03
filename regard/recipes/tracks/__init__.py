"""Trajectory forecasting: sets of agents."""
