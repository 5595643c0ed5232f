"""Hostile input, generated: what a file, a folder or a command line could hold at worst.

Each module has `attacks(chance, folder)`, an endless supply of things to try. Trying one may end well or in a `UserError`.
Every other exception, a crash, a file outside of the folder, or too much memory or time is a fault of ours.
"""

from __future__ import annotations

import random
from collections.abc import Callable

Attack = Callable[[], object]


def mutated(content: bytes, chance: random.Random) -> bytes:
    """The same with some damage: bits, bytes, pieces lost, doubled or moved, or numbers at their limits."""
    damaged = bytearray(content)
    for _ in range(chance.choice((1, 1, 1, 2, 5, 20))):
        if not damaged:
            break
        at = chance.randrange(len(damaged))
        length = chance.choice((1, 2, 4, 8, 64))
        match chance.randrange(8):
            case 0:
                damaged[at] ^= 1 << chance.randrange(8)
            case 1:
                damaged[at] = chance.randrange(256)
            case 2:
                del damaged[at : at + length]
            case 3:
                damaged[at:at] = damaged[at : at + length]
            case 4:
                damaged[at : at + length] = chance.randbytes(length)
            case 5:
                damaged[at : at + length] = chance.choice((b"\0", b"\xff", b"\x7f")) * length
            case 6:
                damaged = damaged[:at]
            case _:
                damaged[at:at] = chance.choice((b"-1", b"1e999", b"NaN", b"9" * 30, b"[", b"{", b'"', b"\n", b"$", b"\0"))
    return bytes(damaged)
