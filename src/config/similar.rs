//! Names that look like another: suggestions for those that are misspelt.

/// Names that are longer are not compared: the time that it takes grows with both lengths.
const MAX_COMPARED: usize = 120;

/// How similar a name must be to be suggested, from 0 to 1.
pub(super) const SIMILAR: f64 = 0.6;

/// The most similar of the names, if it is at least so similar, from 0 to 1.
pub(super) fn nearest<'a>(
    name: &str,
    names: impl Iterator<Item = &'a String>,
    least: f64,
) -> Option<&'a String> {
    let rated = names.map(|known| (similarity(name, known), known));
    let fits = rated.filter(|(rating, _)| *rating >= least);
    fits.max_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, known)| known)
}

/// How similar two names are, from 0 to 1.
pub(super) fn similarity(a: &str, b: &str) -> f64 {
    if a.len() > MAX_COMPARED {
        return 0.0;
    }
    strsim::normalized_damerau_levenshtein(&squashed(a), &squashed(b))
}

/// A name without case and separators, which are often mixed up.
pub(super) fn squashed(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_lowercase()
}
