"""Operations in plain torch, some with a compiled implementation in `regard.native`, asked for in `ops.dispatch`."""
