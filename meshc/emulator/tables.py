"""Whole numbers in lines of text, compiled: files of messages are read and written with them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshc.emulator.compiled import compiled, inlined, whole

Text = NDArray[np.uint8]
Ints = NDArray[np.int64]
COMMA, SEMICOLON, NEWLINE, RETURN, ZERO, MOST_DIGITS = 44, 59, 10, 13, 48, 15


@compiled
def parse(text: Text, table: Ints) -> int:
    """Read lines of whole numbers with commas between them into the rows of a table.

    Returns how many lines there were, or -1 if a line has anything else, another number of fields
    than the table has columns, or a number of more than 15 digits.
    """
    last = table.shape[1] - 1
    row = 0
    col = 0
    value = 0
    digits = 0
    for k in range(len(text)):
        byte = whole(text[k])
        digit = byte - ZERO
        if 0 <= digit <= 9:
            value = 10 * value + digit
            digits += 1
            continue
        if byte == RETURN and k + 1 < len(text) and text[k + 1] == NEWLINE:
            continue
        ends = byte == NEWLINE
        if digits == 0 or digits > MOST_DIGITS or ends != (col == last):
            return -1
        if not ends and byte != COMMA:
            return -1
        table[row, col] = value
        value = 0
        digits = 0
        col += 1
        if ends:
            row += 1
            col = 0
    if digits or col:  # a last line without its end
        if digits == 0 or digits > MOST_DIGITS or col != last:
            return -1
        table[row, col] = value
        row += 1
    return row


@compiled
def parse_after(
    text: Text, table: Ints, after: int, later: NDArray[np.uint32], keys: Ints
) -> tuple[int, int]:
    """As `parse`, of lines with one more field, at position `after`: whole numbers with semicolons
    between them, or nothing; as the last field it may be left out with its comma.

    later, keys: each of those numbers and the row in which it stands. Returns how many lines and
    how many such numbers there were, or -1 and 0.
    """
    last = table.shape[1]
    row = 0
    col = 0
    value = 0
    digits = 0
    pairs = 0
    begin = 0  # of this line's numbers in `keys`
    size = len(text)
    for k in range(size + 1):
        if k == size and col == 0 and digits == 0:
            break
        byte = whole(text[k]) if k < size else NEWLINE
        digit = byte - ZERO
        if 0 <= digit <= 9:
            value = 10 * value + digit
            digits += 1
            continue
        if byte == RETURN and k + 1 < size and text[k + 1] == NEWLINE:
            continue
        ends = byte == NEWLINE
        if digits > MOST_DIGITS:
            return -1, 0
        if col == after:
            if digits:
                keys[pairs] = value
                later[pairs] = row
                pairs += 1
            elif byte == SEMICOLON or pairs > begin:
                return -1, 0
            if byte == SEMICOLON:
                value = 0
                digits = 0
                continue
        elif digits == 0:
            return -1, 0
        else:
            table[row, col - (col > after)] = value
        if not ends and byte != COMMA:
            return -1, 0
        value = 0
        digits = 0
        if ends:
            if col != last and not (col == last - 1 and after == last):
                return -1, 0
            row += 1
            col = 0
            begin = pairs
        else:
            if col == last:
                return -1, 0
            col += 1
    return row, pairs


@inlined
def put(out: Text, at: int, value: int) -> int:
    """Write a comma and a whole number of at least 0; returns where it ends."""
    out[at] = COMMA
    end = at + 2
    rest = value // 10
    while rest:
        end += 1
        rest //= 10
    for k in range(end - 1, at, -1):
        out[k] = ZERO + value % 10
        value //= 10
    return end


@compiled
def extend(text: Text, commas: int, row: int, columns: Ints, out: Text) -> tuple[int, int]:
    """Copy lines and write one row of columns behind each that is not empty, from a row on.

    A line with fewer commas than its header, whose last field is left out, gets one more. Returns
    how much of `out` is used, and the next row.
    """
    at = 0
    begin = 0
    while begin < len(text):
        end = begin
        while end < len(text) and text[end] != NEWLINE:
            end += 1
        last = end
        while last > begin and text[last - 1] <= 32:
            last -= 1
        if last > begin:
            found = 0
            for k in range(begin, last):
                out[at] = text[k]
                at += 1
                found += text[k] == COMMA
            if found < commas:
                out[at] = COMMA
                at += 1
            for k in range(columns.shape[1]):
                at = put(out, at, columns[row, k])
            out[at] = NEWLINE
            at += 1
            row += 1
        begin = end + 1
    return at, row
