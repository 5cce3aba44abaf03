"""What a machine makes of a trained run: how fast it trains and answers, and where the time goes."""
