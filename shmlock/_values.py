"""Values that all threads of a process share: codecs to and from bytes, and what makes them read-only."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Codec(Protocol):
    """How a value becomes bytes and comes back. Both raise ValueError or TypeError for what they can't take.

    What another process published is decoded with it, so it should run no code that the bytes name.
    """

    def encode(self, value: Any, /) -> bytes: ...
    def decode(self, data: bytes, /) -> Any: ...


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


class Json:
    """JSON as RFC 8259 has it: UTF-8, no NaN, no infinities. What it encodes, it decodes."""

    def __init__(self) -> None:
        # `json.dumps` and `loads` make both anew at each call that has options: 5 us, twice a small value's decoding.
        self._encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        self._decoder = json.JSONDecoder(parse_constant=_refuse_constant)

    def encode(self, value: object, /) -> bytes:
        try:
            return self._encoder.encode(value).encode()
        except RecursionError:
            raise ValueError("nested too deeply for JSON") from None

    def decode(self, data: bytes, /) -> object:
        try:
            return self._decoder.decode(data.decode())
        except RecursionError:
            raise ValueError("nested too deeply for JSON") from None


class Bytes:
    """Bytes as they are. What it encodes, it decodes."""

    def encode(self, value: object, /) -> bytes:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise TypeError(f'codec="bytes" publishes bytes, not {type(value).__name__}')
        return bytes(value)

    def decode(self, data: bytes, /) -> bytes:
        return data


CODECS: Final[dict[str, Codec]] = {"json": Json(), "bytes": Bytes()}


def _read_only(*_: object, **__: object) -> NoReturn:
    raise TypeError("this value is shared by all threads and read-only; copy.deepcopy makes one that can be changed")


class FrozenDict(dict[Any, Any]):
    """A dict that is read as fast as any, and not changed. Copies and pickles are plain dicts."""

    __slots__ = ()
    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = __ior__ = _read_only

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return dict, (list(self.items()),)


class FrozenList(list[Any]):
    """A list that is read as fast as any, and not changed. Copies and pickles are plain lists."""

    __slots__ = ()
    __setitem__ = __delitem__ = append = clear = extend = insert = pop = remove = reverse = sort = _read_only
    __iadd__ = __imul__ = _read_only

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return list, (tuple(self),)


# What needs no look inside; most items of most values are such.
_PLAIN: Final = frozenset({str, int, float, bool, type(None), bytes})


def freeze(value: Any) -> Any:
    """The same value with every dict, list, set and bytearray in it read-only.

    Where all items are plain, it is one look in C at their types: 0.03 us an item instead of 0.23.
    """
    if isinstance(value, dict):
        plain = _PLAIN.issuperset(map(type, value.values()))
        return FrozenDict(value if plain else {key: freeze(item) for key, item in value.items()})
    if isinstance(value, list):
        return FrozenList(value if _PLAIN.issuperset(map(type, value)) else map(freeze, value))
    if type(value) is tuple:
        return tuple(map(freeze, value))
    if isinstance(value, set):
        return frozenset(value)
    return bytes(value) if isinstance(value, bytearray) else value
