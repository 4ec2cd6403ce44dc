"""How IPython shows things in a session: as messages to the runner, with bounds, and with texts for models."""

import io
import sys

_forms = load("forms")
_LONGEST_TEXT = _forms["LONGEST_TEXT"]
_NARROWEST = 20
# Of the texts of values that `%history -o` prints.
_MOST_BYTES_OF_TEXTS = 4 << 20

_PLAIN = {int, float, complex, bool, str, bytes, list, tuple, dict, set, frozenset}

_DisplayHook = library("IPython.core.displayhook").DisplayHook
_DisplayPublisher = library("IPython.core.displaypub").DisplayPublisher
_formatters = library("IPython.core.formatters")
_RepresentationPrinter = library("IPython.lib.pretty").RepresentationPrinter


class Hook(_DisplayHook):
    """Shows the value of a cell."""

    session = None
    # Without the checks that traits make each time.
    exec_result = None

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self._weights = load("weights")["Weights"](_MOST_BYTES_OF_TEXTS)

    def write_output_prompt(self):
        pass

    def write_format_data(self, format_dict, md_dict=None):
        self.session.send(_forms["bounded"](format_dict, self.session.is_for_program), is_result=True)

    def log_output(self, format_dict):
        texts, text = self.shell.history_manager.output_hist_reprs, format_dict.get("text/plain")
        if isinstance(text, str):
            text_kept = texts[self.prompt_count] = text[:_LONGEST_TEXT]
            for old in self._weights.add(self.prompt_count, sys.getsizeof(text_kept)):
                texts.pop(old, None)
            if self.shell.logger.log_output:
                self.shell.logger.log_write(text, "output")

    def finish_displayhook(self):
        self._is_active = False


class Publisher(_DisplayPublisher):
    """Shows what the client passes to `display`."""

    session = None

    def _setup_execution_tracking(self):
        """What is shown is not kept in the history."""

    def publish(self, data, metadata=None, source=None, *, transient=None, update=False, **more):
        if data:
            self.session.send(_forms["bounded"](data, self.session.is_for_program))

    def clear_output(self, wait=False):
        """Does nothing: the output of a cell stays."""


# `%config` knows these by IPython's names.
class DisplayFormatter(_formatters.DisplayFormatter):
    """Makes the forms of values."""

    session = None

    def format(self, obj, include=None, exclude=None):
        if type(obj) in _PLAIN and not (include or exclude or self.session.is_for_program or any(self._printers)):
            # It has no other form.
            return {"text/plain": self.formatters["text/plain"](obj)}, {}
        found, metadata = super().format(obj, include, exclude)
        if not found:
            return found, metadata
        more = {}
        if "image/png" not in found and "image/svg+xml" not in found:
            picture = _forms["picture_of"](obj, self.session)
            if picture:
                more[picture[0]] = picture[1]
        if self.session.is_for_program:
            more.update(load("programs")["more"](obj))
        for kind, content in more.items():
            if kind not in found and (not include or kind in include) and not (exclude and kind in exclude):
                found[kind] = content
        return found, metadata

    def watch_printers(self):
        """Keeps what the client can register for types, so that it is quick to see that nothing is there."""
        self._printers = []
        for one in [self.ipython_display_formatter, self.mimebundle_formatter, *self.formatters.values()]:
            if not isinstance(one, _formatters.PlainTextFormatter):
                self._printers += [one.type_printers, one.singleton_printers]
                one.observe(self._stop_watching, ["type_printers", "singleton_printers"])

    def _stop_watching(self, change):
        self._printers.append(True)


class _TooMuch(Exception):
    """There is more text than is ever sent."""


class _Text(io.StringIO):
    """Takes no more text than can be sent."""

    def write(self, text):
        if self.tell() + len(text) > 2 * _LONGEST_TEXT:
            super().write(text[: 2 * _LONGEST_TEXT])
            raise _TooMuch
        return super().write(text)


class PlainTextFormatter(_formatters.PlainTextFormatter):
    """Makes the text of a value, in lines that fit into the terminal of the session, if there is one."""

    session = None

    @_formatters.catch_format_error
    def __call__(self, obj):
        if not self.pprint:
            return repr(obj)
        columns = self.session.columns
        width = self.max_width if columns is None else max(columns - 1, _NARROWEST)
        text = _Text()
        printer = _RepresentationPrinter(
            text,
            self.verbose,
            width,
            self.newline,
            max_seq_length=self.max_seq_length,
            singleton_pprinters=self.singleton_printers,
            type_pprinters=self.type_printers,
            deferred_pprinters=self.deferred_printers,
        )
        try:
            printer.pretty(obj)
            printer.flush()
        except _TooMuch:
            return text.getvalue() + "\n... (cut here)"
        return text.getvalue()


def _long(value, printer, cycle):
    """The text of a string, of which no more is made than can be sent."""
    if len(value) <= 2 * _LONGEST_TEXT:
        printer.text(repr(value))
    else:
        printer.text(repr(value[:_LONGEST_TEXT]))
        raise _TooMuch


def formatter(shell, session):
    """Returns the formatter of a shell."""
    made = DisplayFormatter(parent=shell)
    made.session = session
    text = made.formatters["text/plain"] = PlainTextFormatter(parent=made)
    text.session = session
    text.for_type(str, _long)
    text.for_type(bytes, _long)
    made.watch_printers()
    return made
