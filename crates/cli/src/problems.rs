//! Shows the problems of a definition in its source text, with carets.

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};
use std::io::{IsTerminal, Write};
use std::ops::Range;

pub struct Shown {
    pub is_warning: bool,
    pub code: String,
    pub message: String,
    pub hint: Option<String>,
    /// The path in the document, such as `tasks.charge.url`.
    pub path: String,
    /// Bytes of the source text.
    pub span: Range<usize>,
}

impl From<&lang::Diagnostic> for Shown {
    fn from(problem: &lang::Diagnostic) -> Shown {
        Shown {
            is_warning: problem.severity == lang::Severity::Warning,
            code: problem.code.to_owned(),
            message: problem.message.clone(),
            hint: problem.hint.clone(),
            path: problem.path.clone(),
            span: problem.span.start..problem.span.end,
        }
    }
}

pub fn show(name: &str, source: &str, problems: &[Shown]) {
    // The renderer does not escape these control characters, and terminals obey them. A middle dot is also two
    // bytes long, so every span stays valid.
    let source = &source.replace(|c| matches!(c, '\u{80}'..='\u{9f}'), "·");
    let is_styled = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let renderer = if is_styled { Renderer::styled() } else { Renderer::plain() };
    let mut out = std::io::stderr().lock();
    for problem in problems {
        // Bytes that are not UTF-8 became a longer replacement character, so a span may end inside one.
        let start = source.floor_char_boundary(problem.span.start);
        let span = start..source.ceil_char_boundary(problem.span.end).max(start);
        let label = if problem.path.is_empty() { "here" } else { problem.path.as_str() };
        let snippet = Snippet::source(source).path(name).annotation(AnnotationKind::Primary.span(span).label(label));
        let level = if problem.is_warning { Level::WARNING } else { Level::ERROR };
        let mut report: Vec<Group<'_>> =
            vec![level.primary_title(problem.message.as_str()).id(problem.code.as_str()).element(snippet)];
        if let Some(hint) = &problem.hint {
            report.push(Group::with_title(Level::HELP.secondary_title(hint.as_str())));
        }
        let _ = writeln!(out, "{}\n", renderer.render(&report));
    }
    let count = |is_warning: bool, word: &str| match problems.iter().filter(|p| p.is_warning == is_warning).count() {
        0 => None,
        1 => Some(format!("1 {word}")),
        n => Some(format!("{n} {word}s")),
    };
    let counts: Vec<String> = [count(false, "problem"), count(true, "warning")].into_iter().flatten().collect();
    if !counts.is_empty() {
        let _ = writeln!(out, "{name}: {}", counts.join(", "));
    }
}

/// The word that begins at a line and column (in characters, from 1), which is how the server reports a place.
pub fn span_at(source: &str, line: u32, column: u32) -> Range<usize> {
    let lines = source.split_inclusive('\n');
    let before: usize = lines.clone().take(line.saturating_sub(1) as usize).map(str::len).sum();
    let text = lines.clone().nth(line.saturating_sub(1) as usize).unwrap_or_default().trim_end();
    let skip = column.saturating_sub(1) as usize;
    let start = text.char_indices().nth(skip).map_or(text.len(), |(at, _)| at);
    let rest = &text[start..];
    let len = match rest.chars().next() {
        Some(quote @ ('"' | '\'')) => rest[1..].find(quote).map_or(rest.len(), |end| end + 2),
        Some(_) => rest.find([' ', ',', '}', ']', ':', '"', '\'']).unwrap_or(rest.len()).max(1),
        None => 0,
    };
    let end = source.ceil_char_boundary((before + start + len).min(source.len()));
    (before + start).min(source.len())..end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_and_column_select_the_word_that_begins_there() {
        let source = "name: été\ntasks:\n  a: { needs: [\"x y\", b] }\n";
        for (line, column, expected) in [
            (1, 1, "name"),
            (1, 7, "été"),
            (2, 1, "tasks"),
            (3, 3, "a"),
            (3, 16, "\"x y\""),
            (3, 23, "b"),
            (3, 99, ""),
            (9, 1, ""),
            (0, 0, "name"),
        ] {
            assert_eq!(&source[span_at(source, line, column)], expected, "{line}:{column}");
        }
    }
}
