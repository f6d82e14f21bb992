"""Texts with control sequences or invisible characters, which could change a terminal or mislead the reader."""

import base64

ATTACKS = {
    "title": "\x1b]0;EVIL\x07",
    "clipboard": f"\x1b]52;c;{base64.b64encode(b'EVIL').decode()}\x1b\\",
    "link": "\x1b]8;;http://evil.example\x07EVIL\x1b]8;;\x07",
    "clear": "\x1b[2J\x1b[3J\x1b[HEVIL",
    "conceal": "\x1b[8mEVIL\x1b[0m",
    "reset": "\x1bcEVIL",
    "answer back": "\x1b[6n\x1b[c\x05EVIL",
    "device control": "\x1bP$q\x22pEVIL\x1b\\",
    "C1": "\x9b2J\x9d0;EVIL\x9c",
    "overwrite": "EVIL\r\x08\x08\x7f",
    "bidirectional": "\u202eEVIL\u202c\u2066EVIL\u2069\u061c\u200f",
    "invisible": "E\u200bV\u2060I\ufeffL\xad\u3164\u034f",
    "tags": "EVIL\U000e0001\U000e0045\U000e0056\U000e007f",
    "variation": "E\ufe00\U000e0100\U000e0101VIL",
    "separators": "EVIL\u2028\u2029\x85\x0b\x0c",
}
