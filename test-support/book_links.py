"""Checks that every relative link in a built book leads to a file, and every fragment to an id.

Usage: book_links.py DIRECTORY
"""

import pathlib
import sys
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

# These repeat other pages, or are served from any address.
SKIPPED = {"print.html", "404.html", "toc.html"}


class Page(HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.links, self.ids = [], set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.ids.add(value)
            elif name in ("href", "src") and value:
                self.links.append(value)


def main(root):
    pages = {path.resolve(): Page(path) for path in root.rglob("*.html")}
    broken, checked = [], 0
    for path, page in pages.items():
        if path.name in SKIPPED:
            continue
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            checked += 1
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            known = pages.get(target)
            fragment = unquote(parts.fragment)
            if not target.exists() or known and fragment and fragment not in known.ids:
                broken.append(f"{path.relative_to(root.resolve())}: {link}")
    print("\n".join(sorted(broken)) or f"{checked} links in {len(pages)} pages")
    return 1 if broken or not checked else 0


sys.exit(main(pathlib.Path(sys.argv[1])))
