//! Writes the seeds into the corpus of each target.

use std::path::Path;
use std::{fs, io};

fn main() -> io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus");
    for (target, name, seed) in isolator_fuzz_inputs::seeds::all() {
        fs::create_dir_all(corpus.join(target))?;
        fs::write(corpus.join(target).join(name), seed)?;
    }
    Ok(())
}
