"""Configs of autoencoders, and of their regularizers. Importing them needs no torch."""

from dataclasses import field
from typing import Annotated, ClassVar, Literal

from regard.settings.declare import check_unused, settings
from regard.settings.ranges import Layers, Range, Width


@settings
class NoRegularizerConfig:
    """No regularizer: R(h) = 0."""

    name: ClassVar[str] = "none"


@settings
class _WeightConfig:
    """Weight of a regularizer."""

    weight: Annotated[float, Range(0, 1e6)] = 1e-3
    """Weight in the loss."""


@settings
class L1Config(_WeightConfig):
    """R(h) = weight |h|_1, for sparse codes."""

    name: ClassVar[str] = "l1"


@settings
class L2Config(_WeightConfig):
    """R(h) = weight |h|_2^2, for small codes."""

    name: ClassVar[str] = "l2"


@settings
class ContractiveConfig(_WeightConfig):
    """R = weight |dh/dy|_F^2, squared Frobenius norm of the encoder's Jacobian. (rifai2011)"""

    name: ClassVar[str] = "contractive"


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

    kind: Literal["dense", "convolutional", "quantized", "latent"] = "dense"
    """dense: linear layers before and after the code; convolutional: two convolutions with stride
    2; quantized: convolutions to a grid of vectors, each replaced by the nearest entry of a
    codebook (VQ-VAE); latent: of vectors, no encoder, the code is the angle z of lowest energy."""
    code_dim: Width | None = None
    """Size of the code, or of each vector of the grid (quantized); 32 if not given; not latent."""
    layers: Layers = 2
    """Linear layers of the encoder, and of the decoder (dense, latent). 1: h = f(W_h y + b_h), y~ =
    g(W_y h + b_y); more: hidden layers with GELU."""
    hidden: Width | None = None
    """Size of the hidden layers (dense, latent, with more than one layer); 512 if not given."""
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
    smoothness: Annotated[float, Range(0, 1e6)] = 1e-3
    """Weight in the loss of |dy~/dz|^2 at random angles z, which prevents folds (latent)."""

    def __post_init__(self) -> None:
        kind = f"kind={self.kind}"
        if self.kind == "latent":
            check_unused(self, ("code_dim", "noise"), kind)
            _check(self.code_activation, "code_activation", kind, None)
            _check(self.regularizer.name, "regularizer", kind, "none")
        else:
            check_unused(self, ("smoothness",), kind)
        if self.kind == "quantized":
            _check(self.code_activation, "code_activation", kind, "identity", None)
            _check(self.output_activation, "output_activation", kind, "identity")
            _check(self.cost, "cost", kind, "squared")
            _check(self.regularizer.name, "regularizer", kind, "none")
        else:
            check_unused(self, ("codebook_size", "downsampling_layers", "commitment"), kind)
        if self.kind in ("dense", "latent"):
            check_unused(self, ("channels",), kind)
        if self.kind not in ("dense", "latent"):
            _check(self.layers, "layers", f"{kind}, whose layers are fixed", 2)
            _check(self.hidden, "hidden", kind, None)
        elif self.layers == 1:
            _check(self.hidden, "hidden", "layers=1", None)
        if self.regularizer.name == "kl":
            reason = "regularizer=kl, which compares means in (0, 1)"
            _check(self.code_activation, "code_activation", reason, "sigmoid", None)
        if self.cost == "cross-entropy":
            reason = "cost=cross-entropy, which takes the logarithms of y~ and 1 - y~"
            _check(self.output_activation, "output_activation", reason, "sigmoid")
        if self.regularizer.name == "contractive" and self.kind != "dense":
            raise ValueError(f"regularizer must be none, l1, l2 or kl with {kind}, got contractive")

    @property
    def f(self) -> Literal["identity", "sigmoid", "tanh", "relu"]:
        return self.code_activation or ("sigmoid" if self.regularizer.name == "kl" else "identity")

    @property
    def code_size(self) -> int:
        return 1 if self.kind == "latent" else self.code_dim or 32

    @property
    def whole_batch(self) -> str | None:
        """Setting with which a training step must be one batch of one process; None: any step."""
        if self.kind == "quantized":
            return "kind quantized, whose codebook is that of one batch"
        if self.regularizer.name == "kl":
            return "regularizer kl, whose means are those of one batch"
        return None


def _check(value: object, name: str, reason: str, *allowed: object) -> None:
    if value not in allowed:
        rule = "left out" if allowed == (None,) else allowed[0]
        raise ValueError(f"{name} must be {rule} with {reason}, got {value}")
