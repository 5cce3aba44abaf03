"""Exchange of models and tokenizers with other libraries."""
