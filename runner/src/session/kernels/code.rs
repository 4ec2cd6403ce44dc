//! A cell of code, as the message that a kernel gets.

use std::collections::BTreeMap;
use std::io;

use isolator_runner::wire::Interpreter;

const CHECKPOINT: u8 = 1;
const TYPESCRIPT: u8 = 2;
const COLUMNS: u8 = 4;
const VARIABLES: u8 = 8;
const FOR_PROGRAM: u8 = 16;

/// A cell of code for a kernel.
pub(in crate::session) struct Code<'a> {
    pub(in crate::session) number: u32,
    pub(in crate::session) typescript: bool,
    /// Columns of the terminal, if it is one.
    pub(in crate::session) columns: Option<u16>,
    /// Variables only for this cell.
    pub(in crate::session) env: &'a BTreeMap<String, String>,
    /// Whether a program gets the things that it shows.
    pub(in crate::session) for_program: bool,
    pub(in crate::session) source: &'a [u8],
}

impl Code<'_> {
    /// Everything before the source.
    pub(super) fn head(
        &self,
        interpreter: Interpreter,
        makes_checkpoint: bool,
    ) -> io::Result<Vec<u8>> {
        // Node.js lays out values by itself.
        let columns = self.columns.filter(|_| interpreter == Interpreter::Python);
        let flags = if makes_checkpoint { CHECKPOINT } else { 0 }
            | if self.typescript { TYPESCRIPT } else { 0 }
            | if columns.is_some() { COLUMNS } else { 0 }
            | if self.env.is_empty() { 0 } else { VARIABLES }
            | if self.for_program { FOR_PROGRAM } else { 0 };
        let mut head = self.number.to_be_bytes().to_vec();
        head.push(flags);
        head.extend(columns.into_iter().flat_map(u16::to_be_bytes));
        head.extend(variables(self.env)?);
        Ok(head)
    }
}

/// The variables of a cell as its kernel reads them: the length of all, and a null character after each.
fn variables(env: &BTreeMap<String, String>) -> io::Result<Vec<u8>> {
    if env.is_empty() {
        return Ok(Vec::new());
    }
    let all: String = env.iter().map(|(name, value)| format!("{name}={value}\0")).collect();
    let length = u32::try_from(all.len()).map_err(io::Error::other)?.to_be_bytes();
    Ok([&length[..], all.as_bytes()].concat())
}
