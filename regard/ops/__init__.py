"""Operations in plain torch, some with a compiled implementation in regard.native (see
regard.ops.dispatch)."""
