"""Correctness and speed on a GPU, compared with other libraries on the same card; see __main__ for
the command.

    correct     values and gradients of reads, compared with the reference in float64 on the CPU
    additive    additive attention: eager, torch.compile
    dot         inner products: scaled_dot_product_attention and FlexAttention, called directly
    gpt         training a language model of 12 blocks of width 768
    seq2seq     training an encoder-decoder of 6 + 6 blocks of width 512
    decode      greedy and beam search with the same weights: Transformers' generate
    recipes     every recipe trains, evaluates and predicts on the device and resumes on the CPU

Contestants of a part take turns in one process; medians count.
"""
