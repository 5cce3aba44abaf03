"""Claims on recurrent models with and without attention."""
