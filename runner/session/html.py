"""Makes a text of HTML that a person or a model can read: tables with a line for each row, lists, and what is in between."""

_SKIPPED = {"head", "script", "style", "svg", "template", "title"}
_BLOCKS = set(
    "address article aside blockquote br caption dd div dl dt fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6 header hr li "
    "main nav ol p pre section summary table tr ul".split()
)
_EMPTY = {"br", "hr"}


def text_of(html):
    """Returns the text, which is empty if there is none."""
    reader = _reader()
    reader.feed(html)
    reader.close()
    lines = (" ".join(line.split()) for line in "".join(reader.parts).split("\n"))
    return "\n".join(line for line in lines if line)


def _reader():
    class Reader(library("html.parser").HTMLParser):
        def __init__(self):
            super().__init__(convert_charrefs=True)
            self.parts, self._skipped = [], []
            # How many cells the row has so far, and how many are still in the way of a rule below it.
            self._cells = 0

        def handle_starttag(self, tag, attributes):
            if tag in _SKIPPED:
                self._skipped.append(tag)
            elif tag in ("td", "th"):
                span = dict(attributes).get("colspan") or "1"
                self._cells += 1
                self.parts.append(" | " if self._cells > 1 else "")
                # The cell reaches over these.
                self._span = min(int(span), 50) if span.isdigit() else 1
            elif tag in _BLOCKS:
                self._cells = 0
                self.parts.append("\n- " if tag == "li" else "\n")

        def handle_endtag(self, tag):
            if tag in self._skipped:
                while self._skipped.pop() != tag:
                    pass
            elif tag in ("td", "th"):
                self.parts.append(" | " * (self._span - 1))
                self._cells += self._span - 1
                self._span = 1
            elif tag in _BLOCKS and tag not in _EMPTY:
                self._cells = 0
                self.parts.append("\n")

        def handle_data(self, data):
            if not self._skipped:
                # Lines of the source mean nothing.
                self.parts.append(data.replace("\n", " "))

        _span = 1

    return Reader()
