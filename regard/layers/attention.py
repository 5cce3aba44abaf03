"""Attention layer: one read of the memory X by the queries X', with three maps and nothing else.

    C = Attn(X, X')         Q = X' W_Q    K = X W_K    V = X W_V
    c_j = sum_i softmax_i(q_j . k_i) v_i

Rows are items, and each W is (in, out); the layer stores the transpose, as torch does: Q = X'
query.weight^T. Attn(X, X') names the memory first, code the queries: attention(x_prime, x).

Row j of the output depends on x'_j and on all of X. C = Attn(X, X) is self-attention; layers of it
stack without residual connections or norms.

Source: lectures, C.1, C.2 and C.5.
"""

from regard.attention.biases import Bias
from regard.attention.choices import Choice
from regard.attention.scores import Dot, Score
from regard.layers.multihead import MultiHead
from regard.layers.read import Role


class Attention(MultiHead):
    """Attention with one head and without W_o: its parameters are W_Q, W_K, W_V and its score's.

        attention = regard.Attention(5, 7, head_dim=4, head_value_dim=3)
        c = attention(x_prime, x)       (batch, target, 5), (batch, source, 7) -> (batch, target, 3)

    query_dim, key_dim and value_dim are the sizes of the items that are projected: those of X',
    those of X (default: query_dim), and those of X that become values (default: key_dim). head_dim
    (default: query_dim), head_key_dim and head_value_dim (default: head_dim) are the sizes of
    queries, keys and values. score (default: Dot, without a scale), choice, bias, kernel and role
    are those of `Read`.
    Parameters: query (head_dim, query_dim), key (head_key_dim, key_dim), value (head_value_dim,
    value_dim), with biases if projection_bias=True.
    """

    def __init__(
        self,
        query_dim: int,
        key_dim: int | None = None,
        *,
        value_dim: int | None = None,
        head_dim: int | None = None,
        head_key_dim: int | None = None,
        head_value_dim: int | None = None,
        score: Score | None = None,
        choice: Choice | None = None,
        bias: Bias | None = None,
        kernel: str = "auto",
        projection_bias: bool = False,
        role: Role | None = None,
    ):
        super().__init__(
            query_dim,
            num_heads=1,
            source_dim=key_dim,
            value_dim=value_dim,
            head_dim=head_dim,
            head_key_dim=head_key_dim,
            head_value_dim=head_value_dim,
            score=Dot() if score is None else score,
            choice=choice,
            bias=bias,
            kernel=kernel,
            projection_bias=projection_bias,
            output_projection=False,
            role=role,
        )
