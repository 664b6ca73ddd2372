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


class Json:
    """JSON as RFC 8259 has it: UTF-8, no NaN, no infinities."""

    def encode(self, value: object, /) -> bytes:
        try:
            return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        except RecursionError:
            raise ValueError("nested too deeply for JSON") from None

    def decode(self, data: bytes, /) -> object:
        try:
            return json.loads(data, parse_constant=_refuse_constant)
        except RecursionError:
            raise ValueError("nested too deeply for JSON") from None


class Bytes:
    """Bytes as they are."""

    def encode(self, value: object, /) -> bytes:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise TypeError(f'codec="bytes" publishes bytes, not {type(value).__name__}')
        return bytes(value)

    def decode(self, data: bytes, /) -> bytes:
        return data


CODECS: Final[dict[str, Codec]] = {"json": Json(), "bytes": Bytes()}


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


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


def freeze(value: Any) -> Any:
    """The same value with every dict, list, set and bytearray in it read-only."""
    if isinstance(value, dict):
        return FrozenDict({key: freeze(item) for key, item in value.items()})
    if isinstance(value, list):
        return FrozenList([freeze(item) for item in value])
    if type(value) is tuple:
        return tuple(freeze(item) for item in value)
    if isinstance(value, set):
        return frozenset(value)
    return bytes(value) if isinstance(value, bytearray) else value
