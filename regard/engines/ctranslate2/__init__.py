"""The CTranslate2 engine."""
