"""A mkdocs hook: formulas become MathML when the site is built, so that pages need no script and no network to show them."""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_content(content: str, **_: Any) -> str:
    def replace(found: re.Match[str]) -> str:
        display = "block" if found[2] == "[" else "inline"
        return convert(html.unescape(found[3]), display=display)

    return FORMULA.sub(replace, content)
