"""Operations in torch, some with a compiled implementation in regard.native."""
