"""One SVG with a light and a dark look, of which the viewer shows the one that its user prefers."""

from xml.etree import ElementTree

_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
# Programs that know no media queries (Inkscape, librsvg) show the light one; so do those that do not know `display`, as
# it covers the other.
_STYLE = "@media (prefers-color-scheme: dark) { #light { display: none } #dark { display: inline } }"


def adaptive(light: bytes, dark: bytes) -> bytes:
    """The two pictures, of one size, in one."""
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _XLINK)
    root = ElementTree.fromstring(light)
    style = ElementTree.Element(f"{{{_SVG}}}style")
    style.text = _STYLE
    shown = _group(root, "light", display="inline")
    hidden = _group(_renamed(ElementTree.fromstring(dark)), "dark", display="none")
    root[:] = [style, hidden, shown]
    content: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return content


def _group(root: ElementTree.Element, name: str, display: str) -> ElementTree.Element:
    group = ElementTree.Element(f"{{{_SVG}}}g", {"id": name, "display": display})
    group.extend(child for child in root if child.tag != f"{{{_SVG}}}metadata")
    return group


def _renamed(root: ElementTree.Element) -> ElementTree.Element:
    """The same with identifiers of its own, and references that follow."""
    for element in root.iter():
        for key, value in element.attrib.items():
            if key == "id":
                element.set(key, f"dark-{value}")
            elif key == f"{{{_XLINK}}}href" and not value.startswith("data:"):
                element.set(key, value.replace("#", "#dark-"))
            elif "url(#" in value:
                element.set(key, value.replace("url(#", "url(#dark-"))
    return root
