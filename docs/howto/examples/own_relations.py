"""A reader of graphs: relations between the items, which the encoder reads along.

    weight_ij = softmax_j(q_i . k_j / sqrt(d) + t[h, edge_ij])     t: a number per head and kind

`train FILE` trains an encoder to find whether two marked nodes are connected; `load FILE` loads it.
"""

import sys

import torch
from safetensors.torch import load_model, save_model
from torch import Tensor, nn

from regard import Batch, ClassWriter, Model, Reader, Related, Transformer


class GraphReader(Reader):
    """Reader of nodes (batch, node, features) with relations (batch, node, node) of integers."""

    def __init__(self, features: int, dim: int, *, kinds: int, heads: int) -> None:
        super().__init__()
        self.dim = dim
        self.map, self.bias = nn.Linear(features, dim), nn.Embedding(kinds, heads)

    def forward(self, source: Related) -> Related:
        bias = self.bias(source.relations).permute(0, 3, 1, 2)  # (batch, head, node, node)
        return Related.of(self.map(source.items), source.lengths, bias)


def build() -> Model:
    core = Transformer(layers=2, width=16, heads=2, feedforward=32, positions="none", decodes=False)
    reader, writer = GraphReader(2, 16, kinds=2, heads=2), ClassWriter(16, num_classes=2)
    return Model(reader=reader, core=core, writer=writer)


def batch(rows: int = 64, nodes: int = 4) -> Batch[Related, Tensor]:
    edges = torch.rand(rows, nodes, nodes).triu(1) > 0.5
    edges = edges | edges.mT
    marked = torch.eye(nodes)[:, :2].repeat(rows, 1, 1)
    lengths = torch.randint(2, nodes + 1, (rows,))
    return Batch(Related.of(marked, lengths, edges.long()), edges[:, 0, 1].long())


def answer(model: Model) -> Tensor:
    edges = torch.tensor([[[0, 1, 0], [1, 0, 1], [0, 1, 0]]])
    return model.eval()(Related.of(torch.eye(3)[None, :, :2], torch.tensor([3]), edges))


if __name__ == "__main__":
    command, path = sys.argv[1:]
    model = build()
    if command == "train":
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        for _ in range(100):
            optimizer.zero_grad()
            model.loss(batch()).total.backward()
            optimizer.step()
        save_model(model, path)
    load_model(model, path)
    print(answer(model))
