"""Commands with outputs other than answers: log-probabilities of given texts, vectors."""
