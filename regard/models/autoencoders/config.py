"""Configs of autoencoders, and of their regularizers. Importing them needs no torch."""

from dataclasses import field
from typing import Annotated, ClassVar, Literal

from regard.settings.declare import settings
from regard.settings.ranges import Layers, Range, Width


@settings
class NoRegularizerConfig:
    """No regularizer: R(h) = 0."""

    name: ClassVar[str] = "none"


@settings
class L1Config:
    """R(h) = weight |h|_1, for sparse codes."""

    name: ClassVar[str] = "l1"

    weight: Annotated[float, Range(0, 1e6)] = 1e-3
    """Weight in the loss."""


@settings
class L2Config:
    """R(h) = weight |h|_2^2, for small codes."""

    name: ClassVar[str] = "l2"

    weight: Annotated[float, Range(0, 1e6)] = 1e-3
    """Weight in the loss."""


@settings
class ContractiveConfig:
    """R = weight |dh/dy|_F^2, squared Frobenius norm of the encoder's Jacobian. (rifai2011)"""

    name: ClassVar[str] = "contractive"

    weight: Annotated[float, Range(0, 1e6)] = 1e-3
    """Weight in the loss."""


@settings
class KLConfig:
    """R = weight sum_j KL(target || mean of h_j over the batch), for sparse codes. (ng2011)"""

    name: ClassVar[str] = "kl"

    weight: Annotated[float, Range(0, 1e6)] = 1.0
    """Weight in the loss."""
    target: Annotated[float, Range(0, 1, is_open_below=True, is_open_above=True)] = 0.05
    """Mean of each number of the code, rho."""


RegularizerConfig = NoRegularizerConfig | L1Config | L2Config | ContractiveConfig | KLConfig
"""Config of any regularizer of an autoencoder."""


@settings
class AutoencoderConfig:
    """Config of an autoencoder."""

    kind: Literal["dense", "convolutional", "quantized"] = "dense"
    """dense: linear layers before and after the code; convolutional: two convolutions with stride
    2; quantized: convolutions to a grid of vectors, each replaced by the nearest entry of a
    codebook (VQ-VAE)."""
    code_dim: Width = 32
    """Size of the code; of each vector of the grid (quantized)."""
    layers: Layers = 2
    """Linear layers of the encoder, and of the decoder (dense). 1: h = f(W_h y + b_h), y~ = g(W_y h
    + b_y); more: hidden layers with GELU."""
    hidden: Width | None = None
    """Size of the hidden layers (dense, with more than one layer); 512 if not given."""
    code_activation: Literal["identity", "sigmoid", "tanh", "relu"] | None = None
    """f, the nonlinearity of the code; if not given identity, with regularizer=kl sigmoid."""
    output_activation: Literal["identity", "sigmoid", "tanh", "relu"] = "identity"
    """g, the nonlinearity of the reconstruction (not with quantized)."""
    cost: Literal["squared", "absolute", "cross-entropy"] = "squared"
    """C(y, y~), summed over the numbers of y: squared error, absolute error, or -y log y~ - (1 - y)
    log(1 - y~), which needs output_activation sigmoid and y within [0, 1]."""
    regularizer: RegularizerConfig = field(default_factory=NoRegularizerConfig)
    """none, l1, l2, contractive or kl (sparse mean activations): R(h)."""
    channels: Annotated[int, Range(1, 4_096)] = 32
    """Channels of the outer convolution; the inner ones have twice as many."""
    noise: Annotated[float, Range(0, 1_000)] = 0.0
    """Standard deviation of the noise on the encoder's input in training (denoising)."""
    codebook_size: Annotated[int, Range(2, 1_048_576)] = 512
    """Entries of the codebook (quantized)."""
    downsampling_layers: Annotated[int, Range(1, 16)] = 2
    """Number of convolutions with stride 2 between the image and the grid of codes (quantized)."""
    commitment: Annotated[float, Range(0, 1e6)] = 0.25
    """Weight in the loss of the squared distance of the vectors from their entries (quantized)."""

    def __post_init__(self) -> None:
        if self.kind == "quantized":
            plain = {"code_activation": None, "output_activation": "identity", "cost": "squared"}
            for name, value in plain.items():
                if getattr(self, name) not in (value, "identity"):
                    raise ValueError(
                        f"{name} must be {value or 'identity'} with kind=quantized, got "
                        f"{getattr(self, name)}"
                    )
            if self.regularizer.name != "none":
                raise ValueError(
                    "regularizer must be none with kind=quantized, whose codes are indices, got "
                    f"{self.regularizer.name}"
                )
        if self.kind != "dense" and self.layers != 2:
            raise ValueError(
                f"layers must be left out with kind={self.kind}, whose layers are fixed, got "
                f"{self.layers}"
            )
        if self.hidden is not None and (self.kind != "dense" or self.layers == 1):
            reason = f"kind={self.kind}" if self.kind != "dense" else "layers=1"
            raise ValueError(
                f"hidden must be left out with {reason}, which has no hidden layers, got "
                f"{self.hidden}"
            )
        if self.regularizer.name == "kl" and self.code_activation not in (None, "sigmoid"):
            raise ValueError(
                "code_activation must be sigmoid with regularizer=kl, which compares means in (0, "
                "1), got "
                f"{self.code_activation}"
            )
        if self.cost == "cross-entropy" and self.output_activation != "sigmoid":
            raise ValueError(
                "output_activation must be sigmoid with cost=cross-entropy, which takes the "
                "logarithms of y~ and "
                f"1 - y~, got {self.output_activation}"
            )
        if self.regularizer.name == "contractive" and self.kind != "dense":
            raise ValueError(
                f"regularizer must be none, l1, l2 or kl with kind={self.kind}, got contractive"
            )

    @property
    def hidden_size(self) -> int:
        """Size of the hidden layers."""
        return 512 if self.hidden is None else self.hidden

    @property
    def f(self) -> Literal["identity", "sigmoid", "tanh", "relu"]:
        """Nonlinearity of the code."""
        return self.code_activation or ("sigmoid" if self.regularizer.name == "kl" else "identity")
