"""Memory: the key-value pairs that queries read.

    (k_1, v_1) ... (k_n, v_n)      keys (..., n, d_k)      values (..., n, d_v)

A memory is a value: it is passed in and returned, never hidden on a module. A fixed one (encoder states) has its
keys mapped once by `map_keys_with(score)`; a growing one (the past of a decoder) gives a longer one by `extend`.
Other kinds are in regard.attention.memories (of a fixed size), sliding (the last pairs) and quantized (int8).

Source: lectures, A (attention as reading a memory).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.attention.masks import Mask
from regard.attention.places import Places
from regard.attention.scores import Score

_LONG = 2**15
"""Numbers in the keys from which on a memory that grows gets room: shorter ones are copied faster than that."""


Prepared = dict[str, object]
"""By the name of a kernel, what it made of the keys of one memory for its next reads."""


class Store(ABC):
    """What reads and decoders ask of a memory, however it keeps its pairs."""

    keys: Tensor
    """(..., key, key_dim)"""
    values: Tensor
    """(..., key, value_dim)"""
    mask: Mask | None
    """Hides keys from every query; a read's own mask comes on top."""
    mapped_by: Score | None
    """The score whose `map_keys` the keys have been through; None if they are as given."""

    prepared: Prepared | None = None
    """Where kernels keep what they made of these very keys; None where keys change under the same memory."""

    @property
    def size(self) -> int:
        """Number of keys, places that are not filled yet included."""
        return self.keys.shape[-2]

    @abstractmethod
    def places(self, num_queries: int) -> Places:
        """Where queries stand that read this memory: the last of them at the last key."""

    @abstractmethod
    def map_keys_with(self, score: Score) -> Self:
        """The same memory with keys mapped once, for many reads with this score."""

    @abstractmethod
    def extend(self, keys: Float[Tensor, "... new key_dim"], values: Float[Tensor, "... new value_dim"]) -> Self:
        """This memory followed by new pairs, whose keys are mapped as the ones already here are."""

    @abstractmethod
    def select(self, index: Int[Tensor, " rows"]) -> Self:
        """The rows `index` of the first axis, in that order (beams, finished sentences)."""

    @abstractmethod
    def crop(self, size: int) -> Self:
        """As it was after its first `size` pairs, those counted that it has let go of since."""


class _Room(NamedTuple):
    """Where a memory that grows lies, with slots to spare behind its pairs."""

    keys: Tensor
    """(..., slot, key_dim)"""
    values: Tensor
    """(..., slot, value_dim)"""


@final
@dataclass(frozen=True, eq=False)
class Memory(Store):
    """Keys (..., key, key_dim), values (..., key, value_dim), and which of them may be read at all.

    Shared: the tensors are those that were given, and `crop` gives views of them. A memory that has grown without
    gradients lies in a larger room, and the first memory that extends it is written into the same room, behind its
    pairs, where it does not look; whoever extends it next gets a room of its own. So no memory sees another grow.
    Cost:    `extend` copies a pair O(1) times in the long run (all pairs at every call, if they are few or have
             gradients), and the room is half as large again as the pairs (16 pairs at least).
    Raises:  ValueError if there are not as many keys as values (both numbers are in the message).
    """

    keys: Float[Tensor, "... key key_dim"]
    """What queries are compared with."""
    values: Float[Tensor, "... key value_dim"]
    """What a read gives back, weighted."""
    mask: Mask | None = None
    """Hides keys from every query (padding); a read's own mask comes on top."""
    mapped_by: Score | None = None
    """The score whose `map_keys` these keys have been through; None if they are as given."""
    _spare: list[_Room | None] = field(default_factory=list, init=False, repr=False)
    """The right to write behind these pairs, taken out by the first who extends them.

    None: they came by one extension, so the next is to make a room. Nothing here: not grown, or not since `select`,
    which copies (a beam that is reordered every step would only copy more by having rooms), or the right is taken.
    """

    prepared: Prepared = field(default_factory=dict, init=False, repr=False)
    """Where kernels keep what they made of these very keys: a longer memory or a part of this one starts afresh."""

    def __post_init__(self) -> None:
        if self.keys.shape[-2] != self.values.shape[-2]:
            raise ValueError(
                f"a memory needs a value for each key, but has {self.keys.shape[-2]} keys "
                f"and {self.values.shape[-2]} values"
            )

    def places(self, num_queries: int) -> Places:
        """Where queries stand that read this memory: the last of them at the last key."""
        return Places(num_queries, self.size, self.keys.device)

    def map_keys_with(self, score: Score) -> Self:
        """The same memory with keys mapped once, for many reads with this score."""
        if self.mapped_by is score:
            return self
        check_unmapped(self)
        return replace(self, keys=score.map_keys(self.keys), mapped_by=score)

    def extend(self, keys: Float[Tensor, "... new key_dim"], values: Float[Tensor, "... new value_dim"]) -> Self:
        """This memory followed by new pairs. Keys must be mapped as the ones already here are.

        Raises: ValueError if the memory has a mask, which would not know of the new keys, or if shapes or devices
                are not those of the pairs already here; TypeError if dtypes are not.
        """
        check_can_grow(self)
        check_new_pairs(self.keys, self.values, keys, values)
        if not _wants_room(self.keys, self.values, keys, values):
            return self._copied_with(keys, values)
        try:
            room = self._spare.pop()  # not a look and then a pop: several threads may extend one prompt
        except IndexError:
            longer = self._copied_with(keys, values)
            longer._spare.append(None)
            return longer
        old, size = self.size, self.size + keys.shape[-2]
        if room is None or not _may_hold(room, size):
            room = _Room(_roomy(self.keys, size), _roomy(self.values, size))
        room.keys.narrow(-2, old, size - old).copy_(keys)
        room.values.narrow(-2, old, size - old).copy_(values)
        longer = replace(self, keys=room.keys.narrow(-2, 0, size), values=room.values.narrow(-2, 0, size))
        longer._spare.append(room)
        return longer

    def select(self, index: Int[Tensor, " rows"]) -> Self:
        """The rows `index` of the first axis, in that order (beams, finished sentences)."""
        return replace(
            self,
            keys=self.keys.index_select(0, index),
            values=self.values.index_select(0, index),
            mask=None if self.mask is None else self.mask.select(index),
        )

    def crop(self, size: int) -> Self:
        """The first `size` pairs."""
        if not 0 <= size <= self.size:
            raise ValueError(f"size must be between 0 and {self.size}, but is {size}")
        return replace(self, keys=self.keys[..., :size, :], values=self.values[..., :size, :])

    def _copied_with(self, keys: Tensor, values: Tensor) -> Self:
        return replace(self, keys=torch.cat((self.keys, keys), -2), values=torch.cat((self.values, values), -2))


def check_can_grow(memory: Store) -> None:
    """Raise ValueError if the memory has a mask, which would not know of new keys."""
    if memory.mask is not None:
        raise ValueError(f"a memory with a mask cannot grow, but has {memory.mask!r}")


def check_unmapped(memory: Store) -> None:
    """Raise ValueError if the memory's keys have been mapped."""
    if memory.mapped_by is not None:
        raise ValueError(
            f"these keys were mapped by another {type(memory.mapped_by).__name__}: a mapped memory serves "
            "only the score that mapped it"
        )


def check_new_pairs(
    old_keys: Tensor, old_values: Tensor, keys: Tensor, values: Tensor, *, dtype: torch.dtype | None = None
) -> None:
    """Raise ValueError or TypeError unless new pairs can follow old ones: sizes, one value a key, dtypes, devices.

    dtype: what reads see, if that is not the dtype that pairs are kept in.
    """
    for name, old, new in (("keys", old_keys, keys), ("values", old_values, values)):
        if new.dim() < 2 or new.shape[:-2] != old.shape[:-2] or new.shape[-1] != old.shape[-1]:
            shape = ", ".join((*map(str, old.shape[:-2]), "new", str(old.shape[-1])))
            raise ValueError(f"new {name} must be ({shape}), but are {tuple(new.shape)}")
        wanted = old.dtype if dtype is None else dtype
        if new.dtype != wanted:
            raise TypeError(f"new {name} must have the memory's dtype {wanted}, but have {new.dtype}")
        if new.device != old.device:
            raise ValueError(f"new {name} must be on the memory's device {old.device}, but are on {new.device}")
    if keys.shape[-2] != values.shape[-2]:
        raise ValueError(f"a key needs a value, but there are {keys.shape[-2]} new keys and {values.shape[-2]} values")


def _wants_room(old_keys: Tensor, *others: Tensor) -> bool:
    """Whether the memory is long, and nobody follows what becomes of its tensors (gradients, maps, compilers)."""
    if torch.compiler.is_compiling() or torch.is_grad_enabled() or old_keys.numel() < _LONG:
        return False
    return not any(torch._C._functorch.is_functorch_wrapped_tensor(tensor) for tensor in (old_keys, *others))


def _may_hold(room: _Room, size: int) -> bool:
    """Whether it has so many slots, and is not locked: tensors of inference mode are, outside of it."""
    locked = room.keys.is_inference() and not torch.is_inference_mode_enabled()
    return size <= room.keys.shape[-2] and not locked


def _roomy(tensor: Tensor, size: int) -> Tensor:
    """The tensor (..., key, dim) at the start of one with `size` slots and half as many again, at least 16."""
    *leading, old, dim = tensor.shape
    room = tensor.new_empty(*leading, size + max(size // 2, 16), dim)
    room.narrow(-2, 0, old).copy_(tensor)
    return room
