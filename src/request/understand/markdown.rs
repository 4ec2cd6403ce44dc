//! Finds the block of a Markdown text that is the program.

use std::ops::Range;

use super::lines::{Lines, Style};

/// Marks at the beginning of a fence, the line that begins or ends a block. Some programs escape them.
const MARKS: [&str; 3] = ["```", "~~~", "\\`\\`\\`"];

/// The mark that some editors put before a text.
const BOM: char = '\u{feff}';

/// Words that lines of programs begin with, and sentences rarely.
const KEYWORDS: [&str; 32] = [
    "async", "await", "break", "case", "class", "const", "continue", "def", "del", "else",
    "except", "export", "finally", "for", "from", "func", "function", "global", "if", "import",
    "let", "new", "package", "pass", "raise", "return", "switch", "throw", "try", "var", "while",
    "with",
];

/// The line that begins or ends a block.
#[derive(Debug, Clone, Copy)]
struct Fence<'t> {
    mark: char,
    length: usize,
    /// Spaces before it.
    indent: usize,
    /// The first word behind it.
    tag: &'t str,
    has_tag: bool,
}

impl<'t> Fence<'t> {
    fn of(line: &'t str) -> Option<Self> {
        let line = line.trim_start_matches(BOM);
        let text = line.trim_start();
        let mark = text.chars().find(|c| *c != '\\').filter(|c| matches!(c, '`' | '~'))?;
        let mut rest = text;
        let mut length = 0;
        while let Some(after) = rest.strip_prefix('\\').unwrap_or(rest).strip_prefix(mark) {
            (rest, length) = (after, length + 1);
        }
        let info = rest.trim();
        if length < 3 || info.contains('`') {
            return None;
        }
        let word = info.trim_start_matches(['{', '.']);
        let is_end = |c: char| !(c.is_alphanumeric() || "+#.-_".contains(c));
        let tag = word.split(is_end).next().unwrap_or_default();
        let indent = line.len() - text.len();
        Some(Self { mark, length, indent, tag, has_tag: !info.is_empty() })
    }

    fn is_ended_by(&self, other: &Self) -> bool {
        other.mark == self.mark && other.length >= self.length && !other.has_tag
    }
}

/// A block of a Markdown text.
#[derive(Debug)]
pub(super) struct Block {
    /// The word behind its first fence.
    pub(super) tag: String,
    /// The marks of that fence.
    pub(super) mark: &'static str,
    place: Range<usize>,
    indent: usize,
    is_ended: bool,
    /// Another block may begin in it.
    is_doubtful: bool,
}

impl Block {
    /// Removes everything outside of the block.
    pub(super) fn take_from(&self, text: &mut String) {
        text.truncate(self.place.end);
        text.drain(..self.place.start);
        if self.indent > 0 {
            let lines = text.split('\n').map(|line| {
                let spaces = line.len() - line.trim_start_matches([' ', '\t']).len();
                &line[spaces.min(self.indent)..]
            });
            *text = lines.collect::<Vec<_>>().join("\n");
        }
    }
}

/// The blocks of a text, if it is Markdown.
#[derive(Debug)]
pub(super) struct Markdown {
    pub(super) blocks: Vec<Block>,
    /// Whether there is more than one block without anything around it.
    pub(super) has_more: bool,
    /// Whether everything outside of the blocks is sentences.
    is_prose: bool,
}

impl Markdown {
    /// `None` if the text has no fences, or only such as a program can have in its strings.
    pub(super) fn of(text: &str, style: Option<Style>) -> Option<Self> {
        if !MARKS.iter().any(|mark| text.contains(mark)) {
            return None;
        }
        let mut lines = lines(text).skip_while(|(_, line)| is_blank(line)).peekable();
        let (_, first) = lines.peek()?;
        if Fence::of(first).is_none() && !has_fence(text, style?) {
            return None;
        }
        let mut markdown = Self { blocks: Vec::new(), has_more: false, is_prose: true };
        while let Some((start, line)) = lines.next() {
            let Some(fence) = Fence::of(line) else {
                markdown.has_more |= !is_blank(line);
                markdown.is_prose &= is_prose(line);
                continue;
            };
            let inside = start + line.len() + 1;
            let rest = text.get(inside..).unwrap_or_default();
            let block = block(&fence, rest, inside, style);
            while lines.next_if(|(at, _)| block.is_ended && *at <= block.place.end + 1).is_some() {}
            let is_ended = block.is_ended;
            markdown.has_more |= !markdown.blocks.is_empty();
            markdown.blocks.push(block);
            if !is_ended {
                break;
            }
        }
        Some(markdown)
    }

    /// The block that must be the program. `is_meant` says whether a word behind a fence is the program's
    /// language.
    pub(super) fn program(&self, is_meant: impl Fn(&str) -> bool) -> Option<&Block> {
        let [only] = &self.blocks[..] else {
            let mut meant = self.blocks.iter().filter(|block| is_meant(&block.tag));
            let block = meant.next().filter(|_| meant.next().is_none())?;
            let are_others = self.blocks.iter().all(|block| !block.tag.is_empty());
            return Some(block).filter(|_| are_others && self.is_sure(block));
        };
        Some(only)
            .filter(|block| self.is_sure(block) && (block.tag.is_empty() || is_meant(&block.tag)))
    }

    fn is_sure(&self, block: &Block) -> bool {
        let is_one = block.is_ended || !block.tag.is_empty() || block.mark != MARKS[1];
        self.is_prose && is_one && !block.is_doubtful && !block.place.is_empty()
    }
}

/// The lines of a text, without their ends, and where they begin.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut start = 0;
    text.split('\n').map(move |line| {
        let at = start;
        start += line.len() + 1;
        (at, line)
    })
}

/// Whether a source has a fence outside of its strings and comments.
fn has_fence(text: &str, style: Style) -> bool {
    let mut state = Lines::new(style);
    text.split('\n').any(|line| {
        let is_fence = state.is_outside() && Fence::of(line).is_some();
        state.read(line);
        is_fence
    })
}

/// The block whose first fence is before the text `rest`, which begins at `inside`.
fn block(fence: &Fence<'_>, rest: &str, inside: usize, style: Option<Style>) -> Block {
    let mut state = style.map(Lines::new);
    let mut depth = 0_usize;
    let (mut end, mut last, mut is_doubtful) = (None, None, false);
    for (start, line) in lines(rest) {
        let is_outside = state.is_none_or(|state| state.is_outside());
        if let Some(state) = &mut state {
            state.read(line);
        }
        let other = Fence::of(line).filter(|o| o.mark == fence.mark && o.length >= fence.length);
        let Some(other) = other else {
            last = last.filter(|_| is_blank(line));
            continue;
        };
        last = Some(start).filter(|_| fence.is_ended_by(&other));
        if !is_outside {
            continue;
        }
        match (fence.is_ended_by(&other), style) {
            (true, _) if depth == 0 => {
                end = Some(start);
                break;
            }
            (true, _) => depth -= 1,
            (false, None) => depth += 1,
            (false, Some(_)) => is_doubtful = true,
        }
    }
    // A string without an end may seem to go on.
    let end = end.or(last);
    let place = inside..inside + end.map_or(rest.len(), |end| end.saturating_sub(1));
    let mark = if fence.mark == '~' { MARKS[1] } else { MARKS[0] };
    let (tag, indent, is_ended) = (fence.tag.to_owned(), fence.indent, end.is_some());
    Block { tag, mark, place, indent, is_ended, is_doubtful }
}

fn is_blank(line: &str) -> bool {
    line.trim_start_matches(BOM).trim().is_empty()
}

/// Whether a line is words, and not code.
fn is_prose(line: &str) -> bool {
    let line = line.trim_start_matches(BOM).trim();
    let is_rule = line.chars().all(|c| matches!(c, '-' | '*' | '_'));
    if is_rule || line.starts_with("# ") || line.starts_with("##") {
        return true;
    }
    // Quoted code is not part of the program.
    let words: String = line.split('`').step_by(2).collect();
    let first = words.split(|c: char| !c.is_alphanumeric()).find(|word| !word.is_empty());
    let is_call =
        words.split('(').rev().skip(1).any(|before| before.ends_with(char::is_alphanumeric));
    let is_code = words.contains(['=', ';', '{', '}', '[', ']', '<', '>', '\\', '@']) || is_call;
    let is_sentence = line.contains(' ') || line.ends_with([':', '.', '!']);
    !is_code && is_sentence && first.is_none_or(|first| !KEYWORDS.contains(&first))
}
