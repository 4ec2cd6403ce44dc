//! The log: where it goes, and how its lines are written.
//!
//! Callers, programs, images and engines choose a part of the logged values, and not all libraries that log them escape them.
//! So every value is escaped here, where none can be forgotten: no value can forge a line, or control a terminal.

use std::fmt::{self, Write as _};
use std::io::{self, IsTerminal as _, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::SystemTime;

use humantime::format_rfc3339_micros;
use isolator_pool::quote::{Escaping, escaped};
use rustix::fs::FileType;
use serde_json::json;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::format::{Format, Json, JsonFields, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// The format of the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people
    #[default]
    Text,
    /// An object of JSON on each line
    Json,
}

/// Replaces the filter of this process.
type SetFilter = Box<dyn Fn(EnvFilter) + Send + Sync>;

static SET_FILTER: OnceLock<SetFilter> = OnceLock::new();

/// The filter for lines of our own modules at this level and above, unless `RUST_LOG` has another.
fn filter(level: &str) -> EnvFilter {
    // These modules log each error answer, with an identifier of any length, and each answer to a cancelled request.
    const OF_CLIENTS: &str = "rmcp=error,rmcp::service=off";
    let usual = format!("warn,{OF_CLIENTS},isolator={level},isolator_pool={level}");
    EnvFilter::try_from_default_env().unwrap_or_else(|_| usual.into())
}

/// Writes lines at this level and above from now on.
pub(crate) fn set_level(level: &str) {
    if let Some(set) = SET_FILTER.get() {
        set(filter(level));
    }
}

/// Writes the log of this process to standard error: standard output belongs to the protocol and to programs. Lines that can't
/// be written are [counted](problem), which ends no process.
pub fn to_stderr(level: &str, format: LogFormat) {
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter(level))
        // Locked for a whole line: another thread's must not come between its parts.
        .with_writer(move || Lines { output: io::stderr().lock(), losses: &LOSSES, format })
        .with_ansi(io::stderr().is_terminal() && format == LogFormat::Text)
        .log_internal_errors(false);
    // Reloading fails only without a subscriber, and setting only if it was set before. Both never happen.
    let set: SetFilter = match format {
        LogFormat::Text => {
            let log = log.fmt_fields(Fields).with_filter_reloading();
            let handle = log.reload_handle();
            log.init();
            Box::new(move |filter| drop(handle.reload(filter)))
        }
        LogFormat::Json => {
            let log = log.fmt_fields(JsonFields::new()).event_format(JsonLines::new());
            let log = log.with_filter_reloading();
            let handle = log.reload_handle();
            log.init();
            Box::new(move |filter| drop(handle.reload(filter)))
        }
    };
    let _ = SET_FILTER.set(set);
}

/// Lines that could not be written.
#[derive(Debug)]
struct Losses {
    /// Those that the log has not reported yet.
    unreported: AtomicU64,
    /// Whether a part of the last one was written.
    is_cut: AtomicBool,
}

impl Losses {
    const fn none() -> Self {
        Self { unreported: AtomicU64::new(0), is_cut: AtomicBool::new(false) }
    }
}

static LOSSES: Losses = Losses::none();

/// The problem with the log of this process, if it has one: operators can't read it there.
pub(crate) fn problem() -> Option<String> {
    let unreported = LOSSES.unreported.load(Ordering::Relaxed);
    if unreported > 0 {
        return Some(format!("the log can't be written, and {unreported} line(s) of it are lost"));
    }
    let found = rustix::fs::fstat(io::stderr()).ok()?;
    let is_file = FileType::from_raw_mode(found.st_mode).is_file();
    (is_file && found.st_nlink == 0).then(|| {
        "the file of the log was removed, so its lines are lost: start the server again, and let what rotates the file copy \
         and truncate it"
            .to_owned()
    })
}

/// Writes lines of the log, and before a line the number of those that were lost.
struct Lines<W> {
    output: W,
    losses: &'static Losses,
    format: LogFormat,
}

impl<W: Write> Write for Lines<W> {
    /// Writes a whole line, which is lost if it can't be written.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let unreported = self.losses.unreported.load(Ordering::Relaxed);
        let mut whole = Vec::new();
        if unreported > 0 {
            if self.losses.is_cut.load(Ordering::Relaxed) {
                whole.push(b'\n');
            }
            whole.extend(self.format.lost(unreported).bytes());
        }
        let reported = whole.len();
        whole.extend(line);
        let mut written = 0;
        let ended = loop {
            if written == whole.len() {
                break true;
            }
            match self.output.write(&whole[written..]) {
                Ok(0) => break false,
                Ok(more) => written += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break false,
            }
        };
        if reported > 0 && written >= reported {
            self.losses.unreported.fetch_sub(unreported, Ordering::Relaxed);
        }
        if !ended {
            self.losses.unreported.fetch_add(1, Ordering::Relaxed);
        }
        if written > 0 || ended {
            self.losses.is_cut.store(!ended && written != reported, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

impl LogFormat {
    /// The line with the number of lost lines.
    fn lost(self, lines: u64) -> String {
        let (time, target) = (format_rfc3339_micros(SystemTime::now()), module_path!());
        let message = "lines of the log could not be written and are lost";
        match self {
            Self::Text => format!("{time}  WARN {target}: {message} lines={lines}\n"),
            Self::Json => format!(
                "{}\n",
                json!({ "timestamp": time.to_string(), "level": "WARN", "message": message, "lines": lines, "target": target })
            ),
        }
    }
}

/// Writes events as JSON, each on its line. Characters that are special to a terminal but not to JSON are escaped, too, as JSON
/// escapes them.
struct JsonLines(Format<Json>);

impl JsonLines {
    fn new() -> Self {
        Self(tracing_subscriber::fmt::format().json().flatten_event(true).with_current_span(false))
    }
}

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'lookup> LookupSpan<'lookup>,
    N: for<'writer> FormatFields<'writer> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut line = String::new();
        self.0.format_event(context, Writer::new(&mut line), event)?;
        writeln!(writer, "{}", escaped(line.trim_end_matches('\n')))
    }
}

/// Writes the log of a launcher to standard error, which its server copies into its own log.
pub fn of_launcher_to_stderr(filter: &str) {
    tracing_subscriber::fmt()
        .fmt_fields(Fields)
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(false)
        .without_time()
        .log_internal_errors(false)
        .init();
}

/// Writes the message and the fields of an event, with their special characters escaped.
struct Fields;

impl<'w> FormatFields<'w> for Fields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'w>, fields: R) -> fmt::Result {
        let mut line = Line { writer, is_empty: true, written: Ok(()) };
        fields.record(&mut line);
        line.written
    }
}

struct Line<'w> {
    writer: Writer<'w>,
    is_empty: bool,
    written: fmt::Result,
}

impl Visit for Line<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.written = self.written.and_then(|()| self.write(field.name(), value));
    }
}

impl Line<'_> {
    fn write(&mut self, name: &str, value: &dyn fmt::Debug) -> fmt::Result {
        // The level and the target of a library that logs without spans. They are in the line already.
        if name.starts_with("log.") {
            return Ok(());
        }
        if !std::mem::take(&mut self.is_empty) {
            self.writer.write_char(' ')?;
        }
        if name != "message" {
            write!(self.writer, "{}=", name.trim_start_matches("r#"))?;
        }
        write!(Escaping(&mut self.writer), "{value:?}")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn logged_values_stay_in_their_line() {
        let kept = Kept::default();
        let writer = kept.clone();
        let log = tracing_subscriber::fmt()
            .fmt_fields(Fields)
            .with_writer(move || writer.clone())
            .with_ansi(true)
            .without_time();
        tracing::subscriber::with_default(log.finish(), || {
            let forged = "x\nERROR forged\u{1b}[2J\u{202e}\u{200b}\u{9b}";
            let _span = tracing::info_span!("span", of = %forged).entered();
            tracing::info!(id = %forged, debug = ?forged, text = forged, number = 7, "said {forged}");
        });
        let bytes = kept.0.lock().unwrap().clone();
        let line = String::from_utf8(bytes).unwrap();
        let line = line.strip_suffix('\n').unwrap();
        assert_eq!(line.matches("ERROR forged").count(), 5, "{line}");
        assert!(line.contains("said x\\nERROR forged\\u001b[2J\\u202e\\u200b\\u009b"), "{line}");
        assert!(line.contains("number=7"), "{line}");
        assert!(!line.contains(['\n', '\u{202e}', '\u{200b}', '\u{9b}']), "{line}");
        assert!(!line.contains("\u{1b}[2J"), "{line}");
    }

    #[test]
    fn a_line_of_json_has_all_values_without_special_characters() {
        let kept = Kept::default();
        let writer = kept.clone();
        let log = tracing_subscriber::fmt()
            .fmt_fields(JsonFields::new())
            .event_format(JsonLines::new())
            .with_writer(move || writer.clone());
        let forged = "x\nERROR \"forged\"\u{1b}[2J\u{202e}\u{200b}\u{9b}\u{e0041}";
        tracing::subscriber::with_default(log.finish(), || {
            let _span = tracing::info_span!("span", of = %forged).entered();
            tracing::info!(id = %forged, text = forged, number = 7, "said {forged}");
        });
        let bytes = kept.0.lock().unwrap().clone();
        let line = String::from_utf8(bytes).unwrap();
        let line = line.strip_suffix('\n').unwrap();
        assert_eq!(escaped(line), line);
        let read: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!((&read["id"], &read["text"]), (&forged.into(), &forged.into()), "{line}");
        assert_eq!(read["message"], format!("said {forged}"));
        assert_eq!((&read["number"], &read["level"]), (&7.into(), &"INFO".into()), "{line}");
        assert_eq!(read["spans"][0]["of"], forged, "{line}");
    }

    /// An output with room for a number of bytes.
    struct Small<'a>(&'a mut Vec<u8>, usize);

    impl Write for Small<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let room = self.1 - self.0.len();
            if room == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let length = bytes.len().min(room);
            self.0.extend_from_slice(&bytes[..length]);
            Ok(length)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_log_reports_how_many_lines_are_lost() {
        static OF_TEST: Losses = Losses::none();
        let mut written = Vec::new();
        let mut write = |room, line: &str| {
            let output = Small(&mut written, room);
            let mut lines = Lines { output, losses: &OF_TEST, format: LogFormat::Json };
            lines.write_all(line.as_bytes()).unwrap();
        };
        write(8, "one\n");
        for line in ["a line that is cut\n", "two\n", "three\n"] {
            write(8, line);
        }
        write(1000, "four\n");
        write(1000, "five\n");
        let text = String::from_utf8(written).unwrap();
        let lines: Vec<_> = text.lines().collect();
        let ["one", "a li", lost, "four", "five"] = lines.as_slice() else { panic!("{text}") };
        let lost: serde_json::Value = serde_json::from_str(lost).unwrap();
        assert_eq!((&lost["lines"], &lost["level"]), (&3.into(), &"WARN".into()), "{text}");
    }
}
