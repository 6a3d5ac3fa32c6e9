"""HTML that is escaped by construction: what is not :class:`Markup` is text, and shown as such."""

import html
from typing import Any

from slimguard.system.texts import visible

_VOID = frozenset(['meta', 'br', 'hr', 'col'])


class Markup(str):
    """A string that is HTML already."""


def text(value: Any) -> Markup:
    """Anything as text for a page.

    Characters that show nothing, or turn the text around them (the bidirectional ones), are
    written as escapes: what a run has named shall look like what it is.
    """
    return Markup(html.escape(visible(value), quote=True))


def join(children) -> Markup:
    """Pieces of HTML or text, lists of them, or None, one after the other."""
    parts = []
    for child in children:
        if isinstance(child, (list, tuple)):
            parts.append(join(child))
        elif child is not None:
            parts.append(child if isinstance(child, Markup) else text(child))
    return Markup(''.join(parts))


def element(tag: str, *children, **attributes) -> Markup:
    """An element of HTML or SVG.

    Args:
      tag: its name.
      *children: Markup, anything else as text, lists of both, or None for nothing.
      **attributes: `class_` and `for_` lose their underscore, `aria_label` becomes `aria-label`;
        None leaves an attribute out.
    """
    said = []
    for key, value in attributes.items():
        if value is not None:
            said.append(' %s="%s"' % (key.rstrip('_').replace('_', '-'), text(value)))
    if tag in _VOID:
        return Markup('<%s%s>' % (tag, ''.join(said)))
    return Markup('<%s%s>%s</%s>' % (tag, ''.join(said), join(children), tag))
