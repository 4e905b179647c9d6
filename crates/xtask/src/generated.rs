//! Generated blocks of Markdown on pages that are written by hand:
//!
//! ```text
//! <!-- generated: events -->
//! …
//! <!-- /generated -->
//! ```
//!
//! Only such blocks may say what is not built yet ([`claims`]): a sentence elsewhere goes out of date unnoticed.

use anyhow::{Context, Result};

const BEGIN: &str = "<!-- generated: ";
const END: &str = "<!-- /generated -->";

/// Phrases that say that something does not exist yet.
const CLAIMS: &[&str] =
    &["not yet", "not built", "not implemented", "unimplemented", "planned", "in this release", "coming soon"];

/// The page with `content` in its block `name`.
pub fn fill(page: &str, name: &str, content: &str) -> Result<String> {
    let begin = format!("{BEGIN}{name} -->\n");
    let (before, rest) = page.split_once(&begin).with_context(|| format!("there is no line `{}`", begin.trim_end()))?;
    let (_, after) = rest.split_once(END).with_context(|| format!("the block `{name}` has no line `{END}`"))?;
    Ok(format!("{before}{begin}\n{content}\n{END}{after}"))
}

/// The names of a page's blocks.
pub fn blocks(page: &str) -> impl Iterator<Item = &str> {
    page.lines().filter_map(|line| line.strip_prefix(BEGIN)?.strip_suffix(" -->"))
}

/// Lines outside blocks and headings that say that something does not exist yet, each with the phrase. A phrase may
/// begin on the line before.
pub fn claims(page: &str) -> Vec<(usize, &'static str)> {
    let mut found = Vec::new();
    let (mut is_generated, mut before) = (false, String::new());
    for (i, line) in page.lines().enumerate() {
        is_generated = (is_generated || line.starts_with(BEGIN)) && line != END;
        let is_prose = !is_generated && !line.starts_with('#');
        let line = if is_prose { line.trim().to_lowercase() } else { String::new() };
        let both = format!("{before} {line}");
        let new = |words: &&&str| both.matches(**words).count() > before.matches(**words).count();
        found.extend(CLAIMS.iter().filter(new).map(|words| (i + 1, *words)));
        before = line;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# One\n<!-- generated: a -->\nold: not yet\n<!-- /generated -->\nkept\n<!-- generated: b -->\n<!-- /generated -->\n";

    #[test]
    fn a_block_is_filled_and_the_rest_stays() {
        let filled = fill(PAGE, "a", "| new |\n").unwrap();
        assert_eq!(
            filled,
            PAGE.replace("-->\nold: not yet\n<!--", "-->\n\n| new |\n\n<!--"),
            "only the first block changes"
        );
        assert_eq!(fill(&filled, "a", "| new |\n").unwrap(), filled, "again changes nothing");
        assert_eq!(blocks(&filled).collect::<Vec<_>>(), ["a", "b"]);
        for (page, name) in [(PAGE, "c"), ("<!-- generated: a -->\n", "a")] {
            assert!(fill(page, name, "").is_err(), "{name}");
        }
    }

    #[test]
    fn claims_are_found_in_prose_only() {
        let page = "## Not built yet\n\
            Scripts are not\n  yet supported. Works.\n\
            It is Planned.\n\
            a plan, not a yeti\n\
            <!-- generated: x -->\nnot yet\n<!-- /generated -->\n\
            Not yet, not yet.\n";
        assert_eq!(claims(page), [(3, "not yet"), (4, "planned"), (9, "not yet")]);
        assert_eq!(claims(PAGE), []);
    }
}
