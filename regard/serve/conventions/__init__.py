"""APIs of other services that clients know."""
