"""The kernel command line, read as the kernel reads it.

The rules are those of `next_arg()` in the kernel's lib/cmdline.c and of
`parse_args()` in kernel/params.c: white space parts words, double quotes
protect it, there is no escape character, a single quote is an ordinary
character, `--` ends the list (what follows is for init). One difference: the
kernel also takes the byte 0xA0 for a space, which would cut letters of UTF-8
apart.
"""

from __future__ import annotations

_SPACES = " \t\n\v\f\r"
_SIZE_SUFFIXES = {"k": 10, "m": 20, "g": 30, "t": 40, "p": 50}


def parse(text: str) -> list[tuple[str, str | None]]:
    """All words up to `--`, in order, as (name, value); the value of a bare word is None."""
    words: list[tuple[str, str | None]] = []
    position = _skip_spaces(text, 0)
    while position < len(text):
        end = _end_of_word(text, position)
        word = _split(text[position:end])
        if word == ("--", None):
            break
        words.append(word)
        position = _skip_spaces(text, end)
    return words


def last_value(words: list[tuple[str, str | None]], name: str) -> str | None:
    """The value of the last word of that name; None where there is none or it has no value."""
    values = [value for word, value in words if word == name]
    return values[-1] if values else None


def parse_size(text: str) -> int:
    """Bytes, with the kernel's suffixes K, M, G, T, P (powers of 1024).

    Raises ValueError when the text is not a positive whole number with such a suffix.
    """
    shift = _SIZE_SUFFIXES.get(text[-1:].lower(), 0)
    digits = text[:-1] if shift else text
    if not (digits.isascii() and digits.isdigit()) or int(digits) == 0:
        raise ValueError(f"{text!r} is not a size (a positive number with K, M, G, T or P)")
    return int(digits) << shift


def _skip_spaces(text: str, position: int) -> int:
    while position < len(text) and text[position] in _SPACES:
        position += 1
    return position


def _end_of_word(text: str, start: int) -> int:
    in_quotes = False
    for position in range(start, len(text)):
        if text[position] == '"':
            in_quotes = not in_quotes
        elif text[position] in _SPACES and not in_quotes:
            return position
    return len(text)


def _split(word: str) -> tuple[str, str | None]:
    quoted = word.startswith('"')
    if quoted:
        word = word[1:]
    # The kernel looks for the sign after the first character: `=x` is a name.
    equals = word.find("=", 1)
    if equals < 0:
        return (word.removesuffix('"') if quoted else word), None
    name, value = word[:equals], word[equals + 1 :]
    if value.startswith('"'):
        value = value[1:].removesuffix('"')
    elif quoted:
        value = value.removesuffix('"')
    return name, value
